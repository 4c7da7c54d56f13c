"""What must move, seen from the floors: chunks with the same sources and destinations as one group, and distances."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.topology.topology import Topology


@dataclass(frozen=True, eq=False)
class Needs:
    """Groups of chunks: group g has `bytes[g]`, its sources and its destinations (pointer and ranks)."""

    topology: Topology
    bytes: NDArray[np.int64]
    source_ptr: NDArray[np.int64]
    source: NDArray[np.int32]
    destination_ptr: NDArray[np.int64]
    destination: NDArray[np.int32]

    @classmethod
    def of(cls, demand: Demand, topology: Topology) -> "Needs":
        """Group the chunks of a demand."""
        chunk_group, first = _group(demand)
        size = np.bincount(chunk_group, demand.chunk_bytes).astype(np.int64)
        sources = _rows(demand.source_ptr, demand.source_rank, first)
        return cls(topology, size, *sources, *_rows(demand.destination_ptr, demand.destination_rank, first))

    @property
    def copies(self) -> bool:
        """Whether some group has several destinations."""
        return len(self.destination) > len(self.bytes)

    @cached_property
    def destination_group(self) -> NDArray[np.int64]:
        """The group of each entry of `destination`."""
        return np.repeat(np.arange(len(self.bytes)), np.diff(self.destination_ptr))

    @cached_property
    def source_group(self) -> NDArray[np.int64]:
        """The group of each entry of `source`."""
        return np.repeat(np.arange(len(self.bytes)), np.diff(self.source_ptr))

    @cached_property
    def latency_ps(self) -> NDArray[np.float64]:
        """Least latency between any two nodes, rounded down."""
        return np.floor(_all_pairs(self.topology, self.topology.link_latency_ps.astype(np.float64)))

    @cached_property
    def hops(self) -> NDArray[np.float64]:
        """Fewest links between any two nodes."""
        return np.floor(_all_pairs(self.topology, np.ones(len(self.topology.links))))

    def farthest(self, distance: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """Per entry of `destination`: the farthest source of its group, and how far it is."""
        away = np.zeros(len(self.destination))
        which = np.zeros(len(self.destination), dtype=np.int32)
        if len(self.source) == len(self.bytes):
            which = self.source[self.destination_group]
            return distance[which, self.destination], which
        for g in range(len(self.bytes)):
            rows = slice(int(self.destination_ptr[g]), int(self.destination_ptr[g + 1]))
            sources = self.source[self.source_ptr[g] : self.source_ptr[g + 1]]
            table = distance[np.ix_(sources, self.destination[rows])]
            away[rows], which[rows] = table.max(axis=0), sources[table.argmax(axis=0)]
        return away, which

    def crossing(self, far: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Groups with a source on the near side and a destination on the far side."""
        starts = np.zeros(len(self.bytes), dtype=np.bool_)
        starts[self.source_group[~far[self.source]]] = True
        ends = np.zeros(len(self.bytes), dtype=np.bool_)
        ends[self.destination_group[far[self.destination]]] = True
        return np.flatnonzero(starts & ends)

    def heads_and_tails(
        self, far: NDArray[np.bool_], links: NDArray[np.int64], group: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int32]]:
        """Latency before and after each crossing link for each group, and the destination that this is for.

        Before: from the nearest source on the near side to the link. After: the link and the way to one destination
        on the far side, the one that is worst to reach.
        """
        before = self.latency_ps[: self.topology.num_gpus, self.topology.link_src[links]]
        after = self.topology.link_latency_ps[links] + self.latency_ps[self.topology.link_dst[links]].T
        chosen = np.zeros(len(self.bytes), dtype=np.bool_)
        chosen[group] = True
        rows = np.flatnonzero(chosen[self.source_group] & ~far[self.source])
        starts = np.flatnonzero(np.diff(self.source_group[rows], prepend=-1))
        heads = np.minimum.reduceat(before[self.source[rows]], starts, axis=0)
        rows = np.flatnonzero(chosen[self.destination_group] & far[self.destination])
        nearest = after.min(axis=1)
        order = np.lexsort((-nearest[self.destination[rows]], self.destination_group[rows]))
        rows = rows[order]
        worst = self.destination[rows[np.flatnonzero(np.diff(self.destination_group[rows], prepend=-1))]]
        return heads, after[worst], worst


def _rows(
    ptr: NDArray[np.int64], rank: NDArray[np.int32], which: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Some rows of a ragged table."""
    count = np.diff(ptr)[which]
    start = np.repeat(ptr[:-1][which] - np.cumsum(count) + count, count)
    return np.concatenate(([0], np.cumsum(count))).astype(np.int64), rank[start + np.arange(len(start))]


def _group(demand: Demand) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The group of each chunk, and the first chunk of each group."""
    if len(demand.source_rank) == len(demand) == len(demand.destination_rank):
        key = demand.source_rank.astype(np.int64) * demand.num_gpus + demand.destination_rank
        _, first, group = np.unique(key, return_index=True, return_inverse=True)
        return group.reshape(-1), first
    place: dict[tuple[bytes, bytes], int] = {}
    first_chunks: list[int] = []
    group_of = np.zeros(len(demand), dtype=np.int64)
    for chunk in range(len(demand)):
        signature = (demand.sources(chunk).tobytes(), demand.destinations(chunk).tobytes())
        group_of[chunk] = place.setdefault(signature, len(place))
        if len(place) > len(first_chunks):
            first_chunks.append(chunk)
    return group_of, np.array(first_chunks, dtype=np.int64)


def _all_pairs(topology: Topology, weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shortest distances; a tiny addition per link keeps links of weight 0, and is rounded off by the caller."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import dijkstra

    count = len(topology.nodes)
    order = np.lexsort((weight, topology.link_dst, topology.link_src))
    src, dst, value = topology.link_src[order], topology.link_dst[order], weight[order] + 2.0**-20
    least = np.ones(len(order), dtype=np.bool_)  # of parallel links, the nearest
    least[1:] = (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
    graph = csr_matrix((value[least], (src[least], dst[least])), (count, count))
    return np.asarray(dijkstra(graph), dtype=np.float64)
