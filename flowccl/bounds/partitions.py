"""Floors from partitions: GPUs in several parts, and what must go from part to part to add up and to spread.

A sum of contributions in s parts, wanted in d parts, costs at least s + d - 2 arrivals at parts (one more where no
part both contributes and wants): until s - 1 arrivals have joined the s parts, nobody has the sum; then every other
part that wants it needs one more. With every GPU a part and an allreduce this is theorem 18 of the thesis (2n - 2
downloads), with one destination theorem 16, with one source theorems 8 and 10. An arrival joins two parts only where
nothing between the parts adds up; where nothing there copies, the same number of departures is needed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.bounds.commodities import Commodities
from flowccl.bounds.cuts import Cut
from flowccl.topology.topology import Topology

_MOST_ENTRIES = 4_000_000  # sources and destinations of all groups, times partitions

_MOST_TO_JOIN = 300  # nodes of a machine whose weakest partitions are sought
_WEAKEST = 4

Part = NDArray[np.int64]  # of each node: its part, or -1 between the parts


@dataclass(frozen=True, eq=False)
class Crossing(Cut):
    """The links into all parts of a partition (or out of them), from any other part or from between them."""

    part: Part
    inward: bool

    @cached_property
    def links(self) -> NDArray[np.int64]:
        """The links that cross."""
        here, there = self.part[self.topology.link_dst], self.part[self.topology.link_src]
        if not self.inward:
            here, there = there, here
        return np.flatnonzero((here >= 0) & (here != there))

    def away_ps(self, commodities: Commodities) -> NDArray[np.float64]:
        """Latency that each crossing cannot avoid: from a storing node to the link, the link, on to a storing node."""
        src, dst = self.topology.link_src[self.links], self.topology.link_dst[self.links]
        stores = np.flatnonzero(self.topology.stores)
        before = commodities.latency_ps[np.ix_(stores, src)]
        after = commodities.latency_ps[np.ix_(dst, stores)].T
        own = self.part[dst] if self.inward else self.part[src]
        inside = self.part[stores][:, None] == own[None, :]
        near, far = (~inside, inside) if self.inward else (inside, ~inside)
        head = np.where(near, before, np.inf).min(axis=0)
        tail = np.where(far, after, np.inf).min(axis=0)
        return np.asarray(head + self.topology.link_delay_ps[self.links] + tail)


def partition_bounds(commodities: Commodities) -> Iterator[tuple[float, Crossing, float]]:
    """For each partition and side: (floor in ps, the links, bytes that must cross them)."""
    topology = commodities.topology
    entries = len(commodities.source) + len(commodities.destination)
    for count, (name, part) in enumerate(_partitions(topology)):
        if count * entries > _MOST_ENTRIES:
            return
        between = part < 0
        volume = _volume(commodities, part)
        for inward, spoiled in ((True, topology.reduces), (False, topology.copies)):
            if np.any(between & spoiled) or volume <= 0:
                continue
            words = f"{'into' if inward else 'out of'} {name}, all together"
            crossing = Crossing(topology, words, np.zeros(0, dtype=np.bool_), part, inward)
            if len(crossing.links):
                away = crossing.away_ps(commodities)
                yield crossing.earliest_ps(away, volume), crossing, volume


def _volume(commodities: Commodities, part: Part) -> float:
    """Bytes that must arrive at parts: those of each group, times the arrivals that it needs."""
    parts = int(part.max()) + 1
    starts = np.unique(commodities.source_group * parts + part[commodities.source])
    ends = np.unique(commodities.destination_group * parts + part[commodities.destination])
    groups = len(commodities.bytes)
    s = np.bincount(starts // parts, minlength=groups)
    d = np.bincount(ends // parts, minlength=groups)
    both = np.bincount(np.intersect1d(starts, ends) // parts, minlength=groups)
    return float((commodities.bytes * (s + d - 2 + (both == 0))).sum())


def _partitions(topology: Topology) -> Iterator[tuple[str, Part]]:
    """Every GPU a part, every host a part, the weakest found, runs and strides, the slowest GPUs apart from others."""
    gpus, nodes = topology.num_gpus, len(topology.nodes)
    rank = np.arange(gpus)
    rest = np.full(nodes - gpus, -1)

    def parts(of_gpu: NDArray[np.int64]) -> Part:
        return np.concatenate((of_gpu, rest)).astype(np.int64)

    yield f"each of {gpus} gpus", parts(rank)
    if len(topology.hosts) > 1 and all(node.host for node in topology.nodes[:gpus]):
        place = {host: i for i, host in enumerate(topology.hosts)}
        hosts = np.array([place.get(node.host, -1) for node in topology.nodes], dtype=np.int64)
        yield f"each of {len(place)} hosts", hosts
    yield from _weakest(topology)
    for size in [k for k in range(2, gpus // 2 + 1) if gpus % k == 0][:8]:
        yield f"each of {gpus // size} runs of {size} gpus", parts(rank // size)
        yield f"each of {gpus // size} sets of every {gpus // size}th gpu", parts(rank % (gpus // size))
    for end, words in ((topology.link_dst, "in"), (topology.link_src, "out")):
        GBps = np.bincount(end, topology.link_peak_GBps, nodes)[:gpus]
        if GBps.min() == GBps.max():
            continue
        slow = np.argsort(GBps, kind="stable")
        for k in {2**i for i in range(1, 20) if 2**i < gpus}:
            of_gpu = np.full(gpus, k)
            of_gpu[slow[:k]] = np.arange(k)
            yield f"each of the {k} gpus that are slowest {words}, and the rest", parts(of_gpu)


def _weakest(topology: Topology) -> Iterator[tuple[str, Part]]:
    """Partitions with little bandwidth between many parts: the two parts with most between them join, again and again.

    On a machine of GPUs with the same bandwidth both ways, the least of (bandwidth between k parts) / (k - 1) is what
    trees that span all GPUs can carry together (Tutte; Nash-Williams), so the best partition bounds allreduce tightly.
    """
    gpus, nodes = topology.num_gpus, len(topology.nodes)
    if nodes > _MOST_TO_JOIN:
        return
    between = np.zeros((nodes, nodes))
    np.add.at(between, (topology.link_src, topology.link_dst), topology.link_peak_GBps)
    between += between.T
    part = np.arange(nodes)
    found: list[tuple[float, int, Part]] = []
    while True:
        first, second = np.unravel_index(np.argmax(between), between.shape)
        if between[first, second] <= 0:
            break
        part[part == second] = first
        between[first] += between[second]
        between[:, first] += between[:, second]
        between[first, first] = between[second] = between[:, second] = 0
        names = np.unique(part[:gpus])
        if len(names) < 2:
            break
        parts = np.full(nodes, -1, dtype=np.int64)  # switches that have joined no GPU are between the parts
        parts[np.isin(part, names)] = np.searchsorted(names, part[np.isin(part, names)])
        here, there = parts[topology.link_dst], parts[topology.link_src]
        GBps = float(topology.link_peak_GBps[(here >= 0) & (here != there)].sum())
        found.append((GBps / (len(names) - 1), len(names), parts))
    for _, count, parts in sorted(found, key=lambda row: row[0])[:_WEAKEST]:
        yield f"each of {count} parts that hang together", parts
