"""Trunks: links between switches that are faster than every transfer that crosses them, so they carry several at once.

A transfer over a cut-through route runs at the rate of its slowest link, and the rates on a link add up to at most its
bandwidth. Methods plan one transfer at a time on every link. `split_trunks` gives them an equivalent machine in which a
trunk is several lanes side by side, each as fast as the fastest transfer that can cross it.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.topology.topology import Link, Topology

_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Lanes:
    """A machine whose trunks are split into lanes, and the link of the original machine that each link belongs to."""

    topology: Topology
    original: Topology
    link: NDArray[np.int64]


def peak_rates_GBps(topology: Topology) -> NDArray[np.float64]:
    """For each link, the highest rate of any transfer that can cross it: that of the widest route through it."""
    into = _widest(topology, topology.link_src, topology.link_dst)
    out = _widest(topology, topology.link_dst, topology.link_src)
    return np.minimum(topology.link_peak_GBps, np.minimum(into[topology.link_src], out[topology.link_dst]))


def lane_counts(topology: Topology) -> NDArray[np.int64]:
    """For each link, how many transfers at the highest possible rate it carries at once; 1 if bandwidths change."""
    peak = peak_rates_GBps(topology)
    usable = (peak > 0) & (topology.link_overhead_ps == 0) & (not topology.changes)
    count = np.where(usable, np.floor(topology.link_GBps / np.where(peak > 0, peak, 1.0) * (1 + _ROUNDING)), 1)
    return np.maximum(count, 1).astype(np.int64)


def split_trunks(topology: Topology) -> Lanes | None:
    """The machine with every trunk split into lanes; None where it has no trunk that carries two transfers at once."""
    count = lane_counts(topology)
    if not np.any(count > 1):
        return None
    link = np.repeat(np.arange(len(topology.links)), count)
    first = pointers(count)
    lanes = [replace(topology.links[k], bandwidth_GBps=topology.links[k].bandwidth_GBps / int(count[k])) for k in link]
    limits = [
        replace(limit, links=tuple(lane for k in limit.links for lane in range(first[k], first[k + 1])))
        for limit in topology.limits
    ]
    split = replace(topology, links=tuple(lanes), limits=tuple(limits))
    return Lanes(split, topology, link)


@lru_cache(maxsize=8)
def merge_lanes(topology: Topology) -> Lanes | None:
    """The machine as `original`, with alike links side by side between switches merged to trunks; None without any."""
    if topology.changes or topology.limits:
        return None
    inner = topology.cuts_through[topology.link_src] & topology.cuts_through[topology.link_dst]
    inner &= topology.link_overhead_ps == 0
    place: dict[tuple[Link, int], int] = {}
    keys = [(link, -1 if inner[at] else at) for at, link in enumerate(topology.links)]
    link = np.array([place.setdefault(key, len(place)) for key in keys], dtype=np.int64)
    count = np.bincount(link)
    if not np.any(count > 1):
        return None
    first = np.unique(link, return_index=True)[1]
    trunks = [topology.links[at] for at in first.tolist()]
    trunks = [replace(k, bandwidth_GBps=k.bandwidth_GBps * int(n)) for k, n in zip(trunks, count, strict=True)]
    merged = replace(topology, links=tuple(trunks))
    return Lanes(topology, merged, link) if np.all((count == 1) | (lane_counts(merged) == count)) else None


def with_merged_trunks(topology: Topology) -> Topology:
    """The machine with alike links side by side between switches merged to trunks; itself where it has none."""
    lanes = merge_lanes(topology)
    return topology if lanes is None else lanes.original


def _widest(topology: Topology, start: NDArray[np.int32], end: NDArray[np.int32]) -> NDArray[np.float64]:
    """For each node, the rate of the widest path to it from a storing node over cut-through switches; inf if it stores.

    A store-and-forward switch starts a segment of its own, at any rate.
    """
    rate = np.where(topology.cuts_through, 0.0, np.inf)
    for _ in range(len(topology.nodes)):
        better = rate.copy()
        np.maximum.at(better, end, np.minimum(topology.link_peak_GBps, rate[start]))
        if np.array_equal(better, rate):
            break
        rate = better
    return rate
