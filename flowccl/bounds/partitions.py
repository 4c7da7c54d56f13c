"""Lower bounds from partitions: GPUs in several parts, and the bytes that must cross between parts.

A reduction of contributions in s parts that d parts want needs at least s + d - 2 arrivals at parts, one more if no
part both contributes and wants: s - 1 arrivals until one part has the result, then one for every other part that wants
it. With every GPU a part, an allreduce needs 2n - 2 arrivals (theorem 18 of the thesis); one destination gives theorem
16, one source theorems 8 and 10. This holds if no node between the parts reduces; if none there copies, the same number
of departures is needed.

Where switches reduce only for a group of n GPUs, and store the result to all of them, such an operation has n + 1
arrivals: one at the GPU that loads, one at each that the result is stored to. It joins the contributions of at most n
parts, and at most n parts have the result by it. With k of them, s - 1 - k (n - 1) other arrivals join the rest. If the
last arrival before a part has the result is of no such operation, there are 2 k arrivals more than without; else n
parts have the result at once, and s + d - 1 - n + 2 k arrivals are needed, at least s + d + 1 - n.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import distinct
from flowccl.bounds.commodities import Commodities
from flowccl.bounds.cuts import Cut
from flowccl.bounds.representatives import arrival_tables
from flowccl.bounds.rounding import on_grid, whole_ps
from flowccl.topology.topology import Topology

_MOST_ENTRIES = 4_000_000  # sources and destinations of all groups, times partitions

_LARGEST_TABLE = 10_000_000  # entries (group, part) that are counted in a table; more are sorted
_LARGEST_MERGED = 300  # nodes of the largest machine whose weakest partitions are computed
_WEAKEST = 4  # partitions that are kept of those
_REFINED = 8  # partitions whose first and last arrivals are looked at, the best bounds first

Part = NDArray[np.int64]  # of each node: its part, or -1 between the parts


@dataclass(frozen=True, eq=False)
class Crossing(Cut):
    """The links into all parts of a partition (or out of them), from other parts and from nodes in no part."""

    part: Part
    inward: bool
    operates: bool  # switches between the parts reduce or copy

    @cached_property
    def links(self) -> NDArray[np.int64]:
        """The links into (or out of) the parts."""
        here, there = self.part[self.topology.link_dst], self.part[self.topology.link_src]
        if not self.inward:
            here, there = there, here
        return np.flatnonzero((here >= 0) & (here != there))

    def away_ps(self, commodities: Commodities) -> NDArray[np.float64]:
        """The least latency of each crossing: from a storing node to the link, the link, on to a storing node."""
        src, dst = self.topology.link_src[self.links], self.topology.link_dst[self.links]
        stores = np.flatnonzero(self.topology.stores)
        before = commodities.head_ps[np.ix_(stores, src)]
        after = commodities.latency_ps[np.ix_(dst, stores)].T
        own = self.part[dst] if self.inward else self.part[src]
        inside = self.part[stores][:, None] == own[None, :]
        near, far = (~inside, inside) if self.inward else (inside, ~inside)
        head = np.where(near, before, np.inf).min(axis=0)
        tail = np.where(far, after, np.inf).min(axis=0)
        return np.asarray(head + self.delay_ps + tail)


def partition_bounds(
    commodities: Commodities, group: int = 0, should_stop: Callable[[], bool] = lambda: False
) -> list[tuple[float, Crossing, float]]:
    """Return, for each partition and direction, (bound in ps, the links, bytes that must cross them).

    Switches that reduce do so for anyone, or where `group` is given, only for groups of at most that many GPUs. The
    best bounds are refined where the first and the last arrivals carry the data of few GPUs. When `should_stop` says
    so, the bounds so far are returned, at least one.
    """
    found = list[tuple[float, Crossing, float]]()
    for row in _simple(commodities, group):
        found.append(row)
        if should_stop():
            break
    found.sort(key=lambda row: -whole_ps(row[0]))
    for one in [row for row in found if not row[1].operates][:_REFINED]:
        if not should_stop():
            found += _refined(commodities, *one)
    return found


def _refined(
    commodities: Commodities, ps: float, crossing: Crossing, volume: float
) -> Iterator[tuple[float, Crossing, float]]:
    tables = arrival_tables(commodities, crossing.links, crossing.part, inward=crossing.inward)
    if tables is not None:
        yield crossing.earliest_partial_ps(*tables, volume), crossing, volume


def _simple(commodities: Commodities, group: int) -> Iterator[tuple[float, Crossing, float]]:
    """The bounds in which every arrival counts, from the first possible one on."""
    topology = commodities.topology
    entries = len(commodities.source) + len(commodities.destination)
    for count, (name, part) in enumerate(_partitions(topology)):
        if count * entries > _MOST_ENTRIES:
            return
        between, volumes = part < 0, dict[bool, float]()
        for inward, excluded in ((True, topology.reduces), (False, topology.copies)):
            operates = bool(np.any(between & excluded))
            if operates and not (inward and group):
                continue
            if operates not in volumes:
                volumes[operates] = _volume(commodities, part, group if operates else 0)
            volume = volumes[operates]
            if volume <= 0:
                continue
            words = f"{'into' if inward else 'out of'} {name}, all together"
            crossing = Crossing(topology, words, np.zeros(0, dtype=np.bool_), part, inward, operates)
            if len(crossing.links):
                away = crossing.away_ps(commodities)
                yield crossing.earliest_ps(away, volume), crossing, volume


def _volume(commodities: Commodities, part: Part, group: int) -> float:
    """Bytes that must arrive at parts: the bytes of each group of commodities times the arrivals that it needs."""
    parts, groups = int(part.max()) + 1, len(commodities.bytes)
    starts = commodities.source_group * parts + part[commodities.source]
    ends = commodities.destination_group * parts + part[commodities.destination]
    if groups * parts > _LARGEST_TABLE:
        starts, ends = distinct(starts), distinct(ends)
        s, d = (np.bincount(keys // parts, minlength=groups) for keys in (starts, ends))
        both = np.bincount(np.intersect1d(starts, ends, assume_unique=True) // parts, minlength=groups)
    else:
        has_start, has_end = (_table(keys, groups, parts) for keys in (starts, ends))
        s, d, both = (table.sum(axis=1) for table in (has_start, has_end, has_start & has_end))
    arrivals = s + d - 2 + (both == 0)
    if group:
        arrivals = np.clip(s + d + 1 - group, 0, arrivals)
    return float((commodities.bytes * arrivals).sum())


def _table(keys: NDArray[np.int64], groups: int, parts: int) -> NDArray[np.bool_]:
    """Whether each group has an entry in each part."""
    table = np.zeros(groups * parts, dtype=np.bool_)
    table[keys] = True
    return table.reshape(groups, parts)


def _partitions(topology: Topology) -> Iterator[tuple[str, Part]]:
    """Every GPU a part, every host a part, the weakest found, runs and strides, the slowest GPUs and the rest."""
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
        GBps = on_grid(np.bincount(end, topology.link_peak_GBps, nodes)[:gpus])
        if GBps.min() == GBps.max():
            continue
        slow = np.argsort(GBps, kind="stable")
        for k in [2**i for i in range(1, 20) if 2**i < gpus]:
            of_gpu = np.full(gpus, k)
            of_gpu[slow[:k]] = np.arange(k)
            yield f"each of the {k} gpus that are slowest {words}, and the rest", parts(of_gpu)


def _weakest(topology: Topology) -> Iterator[tuple[str, Part]]:
    """Partitions with little bandwidth between many parts: repeatedly merge the two parts with most bandwidth between.

    On a machine of GPUs with the same bandwidth in both directions, the least (bandwidth between k parts) / (k - 1) is
    what spanning trees can carry together (Tutte; Nash-Williams), so the best partition bounds allreduce tightly.
    """
    gpus, nodes = topology.num_gpus, len(topology.nodes)
    if nodes > _LARGEST_MERGED:
        return
    bandwidth = on_grid(topology.link_peak_GBps)
    between = np.zeros((nodes, nodes), dtype=np.int64)
    np.add.at(between, (topology.link_src, topology.link_dst), bandwidth)
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
        parts = np.full(nodes, -1, dtype=np.int64)  # switches that were merged with no GPU are in no part
        parts[np.isin(part, names)] = np.searchsorted(names, part[np.isin(part, names)])
        here, there = parts[topology.link_dst], parts[topology.link_src]
        total = int(bandwidth[(here >= 0) & (here != there)].sum())
        found.append((total / (len(names) - 1), len(names), parts))
    for _, count, parts in sorted(found, key=lambda row: row[0])[:_WEAKEST]:
        yield f"each of {count} well-connected parts", parts
