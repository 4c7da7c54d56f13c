"""A problem: a machine and a demand on it, with the facts that methods ask about, each computed once."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.topology.topology import Topology

if TYPE_CHECKING:
    from flowccl.topology.hierarchy import Hierarchy
    from flowccl.topology.symmetry.permutations import Symmetry


@dataclass(frozen=True)
class Problem:
    """A demand on a topology. Equal problems have equal topologies and demands."""

    topology: Topology
    demand: Demand

    @property
    def is_plain(self) -> bool:
        """Whether dedicated links are the only constraint: no limits, no changing bandwidth, no buffer limits."""
        return not self.topology.has_extra_constraints

    @property
    def is_reduction(self) -> bool:
        """Whether any chunk is reduced from several contributions."""
        return self.demand.reduces

    @property
    def is_multicast(self) -> bool:
        """Whether any chunk, reduced or not, has several destinations."""
        return not self.demand.is_unicast

    @property
    def is_allreduce(self) -> bool:
        """Whether the demand reduces, and some chunk has several destinations."""
        return self.is_reduction and self.is_multicast

    @property
    def deliveries(self) -> int:
        """Number of (chunk, destination) pairs."""
        return len(self.demand.destination_rank)

    @property
    def is_whole_machine(self) -> bool:
        """Whether all GPUs of the machine take part, and all data is ready at time zero."""
        demand = self.demand
        return demand.group is None and demand.ready_ps is None and demand.num_gpus == self.topology.num_gpus

    @cached_property
    def free_groups(self) -> "tuple[Symmetry, ...]":
        """Symmetry groups of which no element but the identity fixes a GPU or a link."""
        from flowccl.topology.symmetry.free_groups import free_groups

        return free_groups(self.topology)

    @cached_property
    def hierarchy(self) -> "Hierarchy":
        """The levels of the machine: hosts, racks, ..."""
        from flowccl.topology.hierarchy import hierarchy

        return hierarchy(self.topology)

    @cached_property
    def is_regular(self) -> bool:
        """Whether a symmetry group acts regularly on the GPUs: the machine looks the same from each of them."""
        from flowccl.topology.symmetry.regular_groups import regular_group

        return regular_group(self.topology) is not None

    @cached_property
    def reducing_switch(self) -> int | None:
        """A switch that reduces and copies and joins all ranks of an allreduce; None if there is none."""
        from flowccl.topology.reducing_switches import reducing_switch

        return None if self.allreduce_ranks is None else reducing_switch(self.topology, self.allreduce_ranks)

    @cached_property
    def allreduce_ranks(self) -> list[int] | None:
        """The ranks of an allreduce, ascending: every chunk is reduced over all of them, for all of them. Else None."""
        demand = self.demand
        first = demand.sources(0)
        count = len(first)
        tables = (demand.source_rank, demand.destination_rank)
        if count < 2 or any(len(table) != count * len(demand) for table in tables):
            return None
        if any(np.any(np.diff(pointer) != count) for pointer in (demand.source_ptr, demand.destination_ptr)):
            return None
        order = np.sort(first)
        if any(np.any(np.sort(table.reshape(-1, count), axis=1) != order) for table in tables):
            return None
        ranks: list[int] = order.tolist()
        return ranks

    @cached_property
    def bytes_over_latency(self) -> float:
        """Time to receive one copy of all chunks at the slowest GPU, over the largest latency between two GPUs."""
        from flowccl.topology.neighbours import neighbours

        topology, demand = self.topology, self.demand
        ranks = np.unique(demand.destination_rank)
        into = np.bincount(topology.link_dst, topology.link_GBps, len(topology.nodes))[ranks]
        once_ps = float(demand.chunk_bytes.sum()) * 1000 / max(float(into.min()), 1e-9)
        near = neighbours(topology, 1).distance_ps(1.0)[np.ix_(ranks, ranks)]
        return once_ps / max(float(near.max()), 1.0)

    @cached_property
    def duplex_GBps(self) -> NDArray[np.float64]:
        """For each node, the smaller one of its total bandwidth in and its total bandwidth out."""
        topology, nodes = self.topology, len(self.topology.nodes)
        into = np.bincount(topology.link_dst, topology.link_GBps, nodes)
        out = np.bincount(topology.link_src, topology.link_GBps, nodes)
        return np.minimum(into, out)

    @cached_property
    def is_uneven(self) -> bool:
        """Whether some destination has more bandwidth than another."""
        return bool(np.ptp(self.duplex_GBps[np.unique(self.demand.destination_rank)]) > 0)
