"""Commodities: chunks with the same sources and destinations as one group, and the distances between nodes."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.bounds.cuts import Cut
from flowccl.demand.demand import Demand
from flowccl.topology.topology import Topology


@dataclass(frozen=True, eq=False)
class Commodities:
    """Groups of chunks: group g has `bytes[g]`, sources and destinations (pointer and ranks).

    `ready_ps` is the release time of each source. `tail_ps` is time that must pass after each destination has the data:
    the release times of a reversed reduction.
    """

    topology: Topology
    bytes: NDArray[np.int64]
    source_ptr: NDArray[np.int64]
    source: NDArray[np.int32]
    destination_ptr: NDArray[np.int64]
    destination: NDArray[np.int32]
    ready_ps: NDArray[np.int64]
    tail_ps: NDArray[np.int64]

    @classmethod
    def of(cls, demand: Demand, topology: Topology, tail_ps: NDArray[np.int64] | None = None) -> "Commodities":
        """Group the chunks of a demand; `tail_ps` has one entry per entry of `demand.destination_rank`."""
        tail = np.zeros(len(demand.destination_rank), dtype=np.int64) if tail_ps is None else tail_ps
        chunk_group, first = _group(demand, tail)
        size = np.bincount(chunk_group, demand.chunk_bytes).astype(np.int64)
        sources = _rows(demand.source_ptr, demand.source_rank, first)
        destinations = _rows(demand.destination_ptr, demand.destination_rank, first)
        ready = _rows(demand.source_ptr, demand.available_ps, first)[1]
        return cls(topology, size, *sources, *destinations, ready, _rows(demand.destination_ptr, tail, first)[1])

    @property
    def copies(self) -> bool:
        """Whether a group has several destinations."""
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
    def _source_bits(self) -> NDArray[np.uint8]:
        return _bits(self.source_group, self.source, len(self.bytes), self.topology.num_gpus)

    @cached_property
    def _destination_bits(self) -> NDArray[np.uint8]:
        return _bits(self.destination_group, self.destination, len(self.bytes), self.topology.num_gpus)

    @cached_property
    def latency_ps(self) -> NDArray[np.float64]:
        """Least latency between any two nodes, rounded down."""
        return np.floor(_all_pairs(self.topology, self.topology.link_delay_ps.astype(np.float64)))

    @cached_property
    def head_ps(self) -> NDArray[np.float64]:
        """Least time from any node until its data can be on a link that leaves a node, rounded down."""
        return heads_of(self.topology, self.latency_ps)

    @cached_property
    def hops(self) -> NDArray[np.float64]:
        """Fewest links between any two nodes."""
        return np.floor(_all_pairs(self.topology, np.ones(len(self.topology.links))))

    def farthest(self, distance: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """Return, per entry of `destination`, the distance of the farthest source of its group, and that source."""
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
        """Return the groups with a source on the near side and a destination on the far side."""
        starts = _touches(self.source, self._source_bits, ~far)
        ends = _touches(self.destination, self._destination_bits, far)
        return np.flatnonzero(starts & ends)

    def crossing_bytes(self, far: NDArray[np.bool_]) -> int:
        """Return the bytes of the groups with a source on the near side and a destination on the far side."""
        if self._bytes_between is None:
            return int(self.bytes[self.crossing(far)].sum())
        gpus = self.topology.num_gpus
        return int((self._bytes_between @ far[:gpus].astype(np.int64))[~far[:gpus]].sum())

    @cached_property
    def _bytes_between(self) -> NDArray[np.int64] | None:
        """The bytes from each GPU to each other one, where every group has one source and one destination."""
        if not len(self.source) == len(self.bytes) == len(self.destination):
            return None
        table = np.zeros((self.topology.num_gpus, self.topology.num_gpus), dtype=np.int64)
        np.add.at(table, (self.source, self.destination), self.bytes)
        return table

    def heads_and_tails(
        self, cut: Cut, group: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int32]]:
        """Return the latency before and after each crossing link per group, and the destination that the latter is for.

        Before: from the nearest source on the near side to the link. After: the link and the path to the destination
        on the far side that is farthest from the cut.
        """
        far, links = cut.far, cut.links
        before = self.head_ps[: self.topology.num_gpus, self.topology.link_src[links]]
        after = cut.delay_ps + self.latency_ps[self.topology.link_dst[links]].T
        chosen = np.zeros(len(self.bytes), dtype=np.bool_)
        chosen[group] = True
        rows = np.flatnonzero(chosen[self.source_group] & ~far[self.source])
        starts = np.flatnonzero(np.diff(self.source_group[rows], prepend=-1))
        heads = np.minimum.reduceat(before[self.source[rows]] + self.ready_ps[rows][:, None], starts, axis=0)
        rows = np.flatnonzero(chosen[self.destination_group] & far[self.destination])
        nearest = after.min(axis=1)
        away = nearest[self.destination[rows]] + self.tail_ps[rows]
        rows = rows[np.lexsort((-away, self.destination_group[rows]))]
        rows = rows[np.flatnonzero(np.diff(self.destination_group[rows], prepend=-1))]
        worst = self.destination[rows]
        return heads, after[worst] + self.tail_ps[rows][:, None], worst


def _bits(group: NDArray[np.int64], rank: NDArray[np.int32], groups: int, gpus: int) -> NDArray[np.uint8]:
    """The ranks of each group as packed bits; nothing if each group has one rank."""
    if len(rank) == groups:
        return np.zeros((0, 0), dtype=np.uint8)
    bits = np.zeros((groups, -(-gpus // 8)), dtype=np.uint8)
    np.bitwise_or.at(bits, (group, rank >> 3), (128 >> (rank & 7)).astype(np.uint8))
    return bits


def _touches(rank: NDArray[np.int32], bits: NDArray[np.uint8], inside: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether each group has a rank in a set of nodes."""
    if not len(bits):
        return inside[rank]
    return np.asarray((bits & np.packbits(inside)[: bits.shape[1]]).any(axis=1))


def _rows(
    ptr: NDArray[np.int64], rank: NDArray[Any], which: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Some rows of a ragged table."""
    count = np.diff(ptr)[which]
    start = np.repeat(ptr[:-1][which] - np.cumsum(count) + count, count)
    return pointers(count), rank[start + np.arange(len(start))]


def _group(demand: Demand, tail_ps: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The group of each chunk, and the first chunk of each group."""
    late = demand.ready_ps is not None or bool(tail_ps.any())
    if len(demand.source_rank) == len(demand) == len(demand.destination_rank) and not late:
        key = demand.source_rank.astype(np.int64) * demand.num_gpus + demand.destination_rank
        _, first, group = np.unique(key, return_index=True, return_inverse=True)
        return group.reshape(-1), first
    place: dict[tuple[bytes, bytes], int] = {}
    first_chunks: list[int] = []
    group_of = np.zeros(len(demand), dtype=np.int64)
    for chunk in range(len(demand)):
        signature = (demand.sources(chunk).tobytes(), demand.destinations(chunk).tobytes())
        if late:
            waits = demand.available_ps[demand.source_ptr[chunk] : demand.source_ptr[chunk + 1]]
            tails = tail_ps[demand.destination_ptr[chunk] : demand.destination_ptr[chunk + 1]]
            signature = (signature[0] + waits.tobytes(), signature[1] + tails.tobytes())
        group_of[chunk] = place.setdefault(signature, len(place))
        if len(place) > len(first_chunks):
            first_chunks.append(chunk)
    return group_of, np.array(first_chunks, dtype=np.int64)


def heads_of(topology: Topology, latency_ps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the least time from any node until its data can be on a link that leaves a node, rounded down.

    The overhead of a message is no part of that where its data has not reached the next storing node yet: behind a
    switch, a slower link may carry the data while the first link still has its overhead.
    """
    if not topology.has_overheads:
        return latency_ps
    src, dst, count = topology.link_src.astype(np.int64), topology.link_dst.astype(np.int64), len(topology.nodes)
    stores, plain = topology.stores[src], topology.link_latency_ps.astype(np.float64)
    last = np.where(stores, src, src + count)  # the last message of the way: from a storing node through switches
    start, end = np.concatenate((src, last)), np.concatenate((dst, dst + count))
    weight = np.concatenate((topology.link_delay_ps.astype(np.float64), plain))
    table = np.floor(_distances(2 * count, start, end, weight)[:count, count:])
    return np.where(topology.stores[None, :], latency_ps, table)


def _all_pairs(topology: Topology, weight: NDArray[np.float64]) -> NDArray[np.float64]:
    return _distances(len(topology.nodes), topology.link_src, topology.link_dst, weight)


def _distances(
    count: int, link_src: NDArray[Any], link_dst: NDArray[Any], weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Shortest distances. Each link gets a small extra weight, which keeps links of weight 0; callers round it off."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import dijkstra

    order = np.lexsort((weight, link_dst, link_src))
    src, dst, value = link_src[order], link_dst[order], weight[order] + 2.0**-20
    least = np.ones(len(order), dtype=np.bool_)  # of parallel links, the shortest
    least[1:] = (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
    graph = csr_matrix((value[least], (src[least], dst[least])), (count, count))
    return np.asarray(dijkstra(graph), dtype=np.float64)
