"""The hierarchy of a machine: GPUs that are closer to each other than to the rest, found on several levels.

Two GPUs are close where a route without other GPUs joins them: by its rate, and by its latency. Links between switches
count with the share that a GPU has of them if all send at once. Every rate and every
latency that occurs gives a partition of the GPUs: which of them are joined by routes at least as good. A partition is a
level where its groups are inside clearly better joined than with each other. Hosts that the machine names are a level
too, unless GPUs of different hosts are joined just as well.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import components
from flowccl.topology.neighbours import Neighbours, neighbours
from flowccl.topology.topology import Topology
from flowccl.topology.trunks import with_merged_trunks

_LARGE_BYTES = 1e6  # of a chunk for which routes are compared
FASTER = 2.0  # a level is at least this much faster inside its groups: less is a slow link, not another network
Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Hierarchy:
    """Nested partitions of the GPUs, the outermost level first; no levels where all GPUs are joined alike."""

    levels: tuple[Groups, ...]

    def group_of(self, level: int) -> NDArray[np.int64]:
        """The group of every GPU on a level."""
        groups = self.levels[level]
        result = np.empty(sum(map(len, groups)), dtype=np.int64)
        for index, ranks in enumerate(groups):
            result[list(ranks)] = index
        return result


@lru_cache(maxsize=8)
def hierarchy(topology: Topology) -> Hierarchy:
    """The levels of a machine; groups, and GPUs within a group, are sorted by rank.

    Lanes side by side between switches are no slower than any transfer over them, so they count as one trunk.
    """
    return _hierarchy(with_merged_trunks(topology))


@lru_cache(maxsize=8)
def _hierarchy(topology: Topology) -> Hierarchy:
    near = _quickest(topology)
    gpus = topology.num_gpus
    between = np.flatnonzero((near.src < gpus) & (near.end < gpus))
    src, end = near.src[between], near.end[between]
    rate, latency = _rates_and_latencies(near)
    inside = ~topology.stores
    if np.any(inside[topology.link_src] & inside[topology.link_dst]):
        rate = np.minimum(rate, _trunk_rates(topology))
    rate, latency = rate[between], latency[between]
    labels = [_hosts(topology)]
    labels += [_connected(gpus, src, end, rate >= least) for least in _steps(rate)]
    labels += [_connected(gpus, src, end, latency <= most) for most in _steps(1.0 / np.maximum(latency, 1.0), latency)]
    levels: list[NDArray[np.int64]] = []
    for label in labels:
        whole = label.max() + 1
        new = 1 < whole < gpus and not any(np.array_equal(label, known) for known in levels)
        if new and all(_is_nested(label, known) for known in levels) and _is_faster(label, src, end, rate, latency):
            levels.append(label)
    levels.sort(key=lambda label: int(label.max()))
    kept = [label for at, label in enumerate(levels) if _is_inside(label, levels[:at], src, end, rate, latency)]
    return Hierarchy(tuple(_groups(label) for label in kept))


def _quickest(topology: Topology) -> Neighbours:
    """The quickest route of each pair for a large chunk: a network card that GPUs share may be near, but slow."""
    near = neighbours(topology).quickest_first(_LARGE_BYTES)
    first = near.pair_ptr[:-1]
    return Neighbours(topology, near.src, near.end, np.arange(len(first) + 1), near.routes.only(first))


def _rates_and_latencies(near: Neighbours) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The rate and the latency of the route of each pair."""
    shape = near.shape
    rate = np.full(len(near.routes), np.inf)
    np.minimum.at(rate, shape.segment_route, shape.segment_GBps)
    latency = shape.hop_offset_ps[shape.end_hop] + near.topology.link_latency_ps[near.routes.link[shape.end_hop]]
    return rate, latency.astype(np.float64)


def _trunk_rates(topology: Topology) -> NDArray[np.float64]:
    """What each pair has of the links between switches on its routes if all GPUs send at once; inf if it uses none.

    Each GPU divides what it sends evenly among its pairs over such links, and each pair among its best routes, as over
    several spines; a GPU without such pairs, as its network card is lost, sends through the others of its host. So
    hosts on one leaf switch are better joined than with others where the links to the spines are oversubscribed.
    """
    near = neighbours(topology)
    pair = np.repeat(np.arange(len(near.src)), np.diff(near.pair_ptr))
    cost = near.route_cost_ps(_LARGE_BYTES)
    best = np.flatnonzero(cost <= np.minimum.reduceat(cost, near.pair_ptr[:-1])[pair] * (1 + 1e-9))
    routes, pair = near.routes.only(best), pair[best]
    stores = topology.stores
    hop = np.flatnonzero(~stores[topology.link_src[routes.link]] & ~stores[topology.link_dst[routes.link]])
    rates = np.full(len(near.src), np.inf)
    if not len(hop):
        return rates
    route = np.repeat(np.arange(len(routes)), np.diff(routes.ptr))[hop]
    crossing = np.unique(pair[route])
    pairs = np.bincount(near.src[crossing], minlength=len(topology.nodes))  # of each node over links between switches
    host = np.array([node.host for node in topology.nodes])
    alone = host == ""
    sent = np.ones(len(pairs))  # what each GPU sends, with what others of its host send through it
    for name in np.unique(host[~alone]).tolist():
        gpus = np.flatnonzero(host[: topology.num_gpus] == name)
        sent[gpus] = len(gpus) / max(int(np.count_nonzero(pairs[gpus])), 1)
    part = (sent / np.maximum(pairs, 1))[near.src] / np.bincount(pair)
    load = np.bincount(routes.link[hop], part[pair[route]], len(topology.links))
    np.minimum.at(rates, pair[route], topology.link_GBps[routes.link[hop]] / load[routes.link[hop]])
    return rates


def _hosts(topology: Topology) -> NDArray[np.int64]:
    """The host of every GPU, in order of appearance; GPUs without one belong together."""
    names = [node.host for node in topology.nodes[: topology.num_gpus]]
    place = {name: index for index, name in enumerate(dict.fromkeys(names))}
    return np.array([place[name] for name in names], dtype=np.int64)


def _steps(better: NDArray[np.float64], values: NDArray[np.float64] | None = None) -> list[float]:
    """The values at which what is next is worse by at least `FASTER`, the best value first."""
    values = better if values is None else values
    order = np.argsort(-better, kind="stable")
    falls = np.flatnonzero(better[order[:-1]] >= FASTER * better[order[1:]] * (1 - 1e-9))
    return [float(values[order[at]]) for at in falls]


def _connected(gpus: int, src: NDArray[np.int32], end: NDArray[np.int32], keep: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The connected component of every GPU over some pairs, numbered in order of rank."""
    label = components(gpus, src[keep], end[keep])
    first = {int(name): index for index, name in enumerate(dict.fromkeys(label.tolist()))}
    return np.array([first[int(name)] for name in label], dtype=np.int64)


def _widest(
    gpus: int, src: NDArray[np.int32], end: NDArray[np.int32], rate: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The rate of the widest path between the ends of each pair, over any of the pairs."""
    widest = rate.copy()
    for least in np.unique(rate)[::-1].tolist():
        label = _connected(gpus, src, end, rate >= least)
        widest = np.maximum(widest, np.where(label[src] == label[end], least, 0.0))
    return widest


def _is_nested(one: NDArray[np.int64], other: NDArray[np.int64]) -> bool:
    """Whether every group of one partition lies inside a group of the other, or the other way around."""
    pairs = len(np.unique(one * (other.max() + 1) + other))
    return bool(pairs == max(one.max(), other.max()) + 1)


def _is_faster(
    label: NDArray[np.int64],
    src: NDArray[np.int32],
    end: NDArray[np.int32],
    rate: NDArray[np.float64],
    latency: NDArray[np.float64],
) -> bool:
    """Whether pairs inside groups have a typical rate or latency that is better by `FASTER` than of those between.

    Inside groups, the rate of a pair is that of the widest path over other GPUs: a host whose GPUs are joined by direct
    links need not have one between every two.
    """
    inside = label[src] == label[end]
    if not inside.any():
        return False
    if inside.all():
        return True
    widest = _widest(len(label), src[inside], end[inside], rate[inside])
    faster = np.median(widest) >= FASTER * np.median(rate[~inside]) * (1 - 1e-9)
    nearer = FASTER * np.median(latency[inside]) <= np.median(latency[~inside]) * (1 + 1e-9)
    return bool(faster or nearer)


def _is_inside(
    label: NDArray[np.int64],
    outer: list[NDArray[np.int64]],
    src: NDArray[np.int32],
    end: NDArray[np.int32],
    rate: NDArray[np.float64],
    latency: NDArray[np.float64],
) -> bool:
    """Whether a level is faster than the groups of the next outer level, not only than the machine."""
    if not outer:
        return True
    same = outer[-1][src] == outer[-1][end]
    return _is_faster(label, src[same], end[same], rate[same], latency[same])


def _groups(label: NDArray[np.int64]) -> Groups:
    return tuple(tuple(np.flatnonzero(label == group).tolist()) for group in range(int(label.max()) + 1))
