"""How to move it: one file per method, and the table of them.

Methods know demands with one source per chunk; `reduction` turns the others into those. Importing a method may take
half a second (numba), so the table imports them on first use.
"""

from collections.abc import Iterator

from flowccl.demand.demand import Demand
from flowccl.methods.clock import Clock
from flowccl.methods.method import Method
from flowccl.methods.reduction import with_reductions
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology

CLASSICS = ("ring", "recursive-doubling", "direct", "tree")


def _greedy(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.greedy import greedy

    return greedy(topology, demand, clock)


def _routed(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.routed import routed

    return routed(topology, demand, clock)


def _classic(name: str) -> Method:
    def run(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
        from flowccl.methods import classics

        yield classics.CLASSICS[name](topology, demand)

    return run


METHODS: dict[str, Method] = {
    "greedy": with_reductions(_greedy),
    "routed": with_reductions(_routed),
    **{name: with_reductions(_classic(name)) for name in CLASSICS},
}
"""Name on the command line -> method."""
