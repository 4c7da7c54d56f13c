"""Bounds from partial reductions: heads and tails of a cut that grow in steps, instead of one head and one tail.

Let the sources on the near side of a cut have weights with total 1. A node sends what crosses a link at time t, so the
data contains at most the contributions of the sources that can have reached this node by then. In the same way, data
that crosses near the end arrives at one node, which can still reach only some of the destinations. Each byte must bring
every source to every destination, so the weights of all its crossings have a total of at least 1: a link that carries
half of the weight counts as half a link. With all weight on one source and one destination this is the usual head and
tail.
"""

from math import ceil

import numpy as np
from numpy.typing import NDArray

from flowccl.bounds.commodities import Commodities
from flowccl.bounds.cuts import Cut

MOST_LEVELS = 16  # steps of a head or tail
MOST_ENTRIES = 4_000_000  # of the largest table
_SETS = 3  # distance thresholds that are tried at each end

Times = NDArray[np.float64]


def partial_reduction_bound_ps(commodities: Commodities, cut: Cut, group: NDArray[np.int64]) -> float:
    """Return the bound for these groups, all of which cross the cut; 0 if the tables would be too large."""
    topology = commodities.topology
    near, far = ~cut.far, cut.far
    src, dst = topology.link_src[cut.links], topology.link_dst[cut.links]
    reduces, copies = topology.stores | topology.reduces, topology.stores | topology.copies
    sources = distinct_sets(commodities.source_group, commodities.source, commodities.ready_ps, near, group)
    ends = distinct_sets(commodities.destination_group, commodities.destination, commodities.tail_ps, far, group)
    rows = sum(len(ranks) for ranks, _ in [*sources, *ends])
    if rows * len(topology.nodes) * len(cut.links) > MOST_ENTRIES:
        return 0.0
    to_link = commodities.head_ps[:, src]
    from_link = (topology.link_latency_ps[cut.links] + commodities.latency_ps[dst].T).astype(np.float64)
    heads = _variants(sources, commodities.latency_ps[:, reduces], to_link, to_link[reduces])
    tails = _variants(ends, commodities.latency_ps[copies].T, from_link, from_link[copies])
    size = float(commodities.bytes[group].sum())
    return max(cut.earliest_partial_ps(head, tail, size) for head in heads for tail in tails)


def distinct_sets(
    group_of: NDArray[np.int64],
    rank: NDArray[np.int32],
    wait_ps: NDArray[np.int64],
    side: NDArray[np.bool_],
    group: NDArray[np.int64],
) -> list[tuple[NDArray[np.int32], NDArray[np.int64]]]:
    """Return the distinct sets of ranks on one side that these groups have, with their waiting times."""
    chosen = np.zeros(int(group_of.max()) + 1, dtype=np.bool_)
    chosen[group] = True
    rows = np.flatnonzero(chosen[group_of] & side[rank])
    starts = np.flatnonzero(np.diff(group_of[rows], prepend=-1))[1:]
    found = {}
    for part in np.split(rows, starts):
        found[rank[part].tobytes() + wait_ps[part].tobytes()] = (rank[part], wait_ps[part])
    return list(found.values())


def _variants(
    sets: list[tuple[NDArray[np.int32], NDArray[np.int64]]], to_hub: Times, direct: Times, hub_to_link: Times
) -> list[Times]:
    """Return tables of times per link and step: when more than that fraction of a set's weight can be at the link.

    `to_hub` is the latency from every node to the nodes that reduce (or from those that copy), `direct` that between
    every node and each link, `hub_to_link` the same for the hubs. There is one table for equal weights on all ranks,
    and others for equal weights on the ranks that are farthest from the links.
    """
    levels = min(max(len(ranks) for ranks, _ in sets), MOST_LEVELS)
    nearest = direct.min(axis=1)
    away = [wait + nearest[ranks] for ranks, wait in sets]
    ordered = [np.sort(far) for far in away]
    result = []
    for quantile in np.linspace(0, 1, _SETS if levels > 1 else 1).tolist():
        least = np.full((hub_to_link.shape[1], levels), np.inf)
        for (ranks, wait), far, values in zip(sets, away, ordered, strict=True):
            chosen = np.flatnonzero(far >= values[ceil(quantile * (len(values) - 1))])
            met = np.sort(to_hub[ranks[chosen]] + wait[chosen][:, None], axis=0)
            count = np.arange(levels) * len(chosen) // levels  # the rank that completes more than that fraction
            times = (met[count][:, :, None] + hub_to_link[None]).min(axis=1)
            least = np.minimum(least, times.T)
        result.append(least)
    return result
