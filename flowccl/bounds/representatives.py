"""Bounds of partitions in which the first and the last arrivals at parts carry the data of few GPUs.

Let one source of each part stand for the part, and one destination. Transfers without data of these sources, or too
late for these destinations, can be left out: what remains reduces and distributes the data of the representatives, so
there are as many arrivals as there would be if each part were one GPU. That holds for any choice of representatives, so
it holds on average for a random choice: an arrival counts with the probability that it is of use. One node sends it at
a time t, so at most with that of a representative among the sources that can have reached such a node by then; and in
the same way at the end. Data that comes back into its own part is of no use there.

The random choice is a number between 0 and 1, which says how far down the list of its GPUs the representative of each
part is: in hosts on rails, GPUs on the same rail stand for their hosts together.
"""

import numpy as np
from numpy.typing import NDArray

from flowccl.bounds.commodities import Commodities
from flowccl.bounds.partial_reductions import MOST_ENTRIES, MOST_LEVELS, Times, distinct_sets

I64 = NDArray[np.int64]


def arrival_tables(commodities: Commodities, links: I64, part: I64, *, inward: bool) -> tuple[Times, Times] | None:
    """Return, for each link into parts (or out of them) and each step, from when on it is of use to more than that.

    The second table says how long before the end. None where every part has one GPU, or for too large tables.
    """
    topology = commodities.topology
    src, dst = topology.link_src[links], topology.link_dst[links]
    groups = len(commodities.bytes)
    is_unicast = len(commodities.source) == groups == len(commodities.destination)
    if is_unicast or 4 * len(topology.nodes) * len(links) > MOST_ENTRIES:  # two lists with two steps at least
        return None
    reduces, copies = topology.stores | topology.reduces, topology.stores | topology.copies
    sources = _lists(commodities.source_group, commodities.source, commodities.ready_ps, part)
    ends = _lists(commodities.destination_group, commodities.destination, commodities.tail_ps, part)
    levels = min(max(len(ranks) for lists in (*sources, *ends) for ranks, _ in lists.values()), MOST_LEVELS)
    entries = (len(sources) + len(ends)) * levels * len(topology.nodes) * len(links)
    if levels == 1 or entries > MOST_ENTRIES:
        return None
    to_link = commodities.head_ps[:, src]
    from_link = (topology.link_latency_ps[links] + commodities.latency_ps[dst].T).astype(np.float64)
    own, none = (part[dst] if inward else part[src]), np.full(len(links), -1)
    head = _table(sources, levels, commodities.latency_ps[:, reduces], to_link[reduces], own if inward else none)
    tail = _table(ends, levels, commodities.latency_ps[copies].T, from_link[copies], none if inward else own)
    return head, tail


Lists = dict[int, tuple[NDArray[np.int32], I64]]
"""Of each part with any: its ranks, and their waiting times."""


def _lists(group_of: I64, rank: NDArray[np.int32], wait_ps: I64, part: I64) -> list[Lists]:
    """The distinct sets of ranks of all commodities, by part."""
    sets = distinct_sets(group_of, rank, wait_ps, part >= 0, np.arange(int(group_of.max()) + 1))
    return [_by_part(ranks, wait, part[ranks]) for ranks, wait in sets]


def _by_part(ranks: NDArray[np.int32], wait_ps: I64, part: I64) -> Lists:
    """The ranks of one set, by part."""
    order = np.argsort(part, kind="stable")
    ranks, wait_ps, part = ranks[order], wait_ps[order], part[order]
    first = np.flatnonzero(np.diff(part, prepend=-1))
    names, ends = part[first].tolist(), [*first[1:].tolist(), len(part)]
    return {name: (ranks[a:b], wait_ps[a:b]) for name, a, b in zip(names, first.tolist(), ends, strict=True)}


def _table(some: list[Lists], levels: int, to_hub: Times, hub_to_link: Times, other_than: I64) -> Times:
    """For each link and step i: when data of the representatives of more than i of all steps can be on it, at least.

    `other_than` is the part of each link whose own data is of no use there. The hubs are the nodes that reduce or copy.
    """
    least = np.full((hub_to_link.shape[1], levels), np.inf)
    step = (2 * np.arange(levels) + 1) / (2 * levels)
    for lists in some:
        met = dict[int, Times]()
        for part, (ranks, wait) in lists.items():
            chosen = (step * len(ranks)).astype(np.int64)
            met[part] = to_hub[ranks[chosen]] + wait[chosen][:, None]
        for own in np.unique(other_than).tolist():
            others = [table for part, table in met.items() if part != own]
            if others:
                links = np.flatnonzero(other_than == own)
                first = np.sort(np.minimum.reduce(others), axis=0)
                times = (first[:, :, None] + hub_to_link[None][:, :, links]).min(axis=1)
                least[links] = np.minimum(least[links], times.T)
    return least
