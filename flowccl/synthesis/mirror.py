"""A reduction with one destination is searched for as the distribution that it is, run backwards.

So a reduce-scatter takes the same steps as the allgather of the reversed machine, and ends as early.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from flowccl.demand.demand import Demand
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import reverse
from flowccl.topology.topology import Topology

_BACKWARD = {"reduce_scatter": "allgather", "reduce": "broadcast"}


@dataclass(frozen=True)
class Mirror:
    """The distribution, on the reversed machine, that takes the place of a reduction on `topology`."""

    topology: Topology
    demand_of: Callable[[int], Demand]
    reductions: dict[tuple[int, int], Demand] = field(default_factory=dict)

    @classmethod
    def of(cls, topology: Topology, demand_of: Callable[[int], Demand]) -> "Mirror | None":
        """The mirror of a reduction; None for other demands, and where time backwards is another problem."""
        demand = demand_of(1)
        if not (demand.reduces and demand.is_unicast) or demand.ready_ps is not None or demand.tenants:
            return None
        costs = topology.changes or topology.has_buffer_limits or topology.has_overheads or topology.has_reduce_rate
        if costs or (topology.copies | topology.reduces)[~topology.stores].any():
            return None
        return cls(topology, demand_of)

    @property
    def machine(self) -> Topology:
        """The machine that the distribution is for."""
        return self.topology.reversed

    def distribution(self, count: int) -> Demand:
        """The distribution with this many chunks per block."""
        demand = self.demand_of(count)
        self.reductions[demand.pieces, len(demand)] = demand
        return replace(demand.backward, collective=_BACKWARD.get(demand.collective, demand.collective))

    def reduction(self, found: Schedule) -> Schedule:
        """A schedule of the distribution, run backwards."""
        back = reverse(found, self.reductions[found.demand.pieces, len(found.demand)], reduce=True)
        return replace(back, topology=self.topology)
