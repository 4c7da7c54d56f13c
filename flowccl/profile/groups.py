"""Limits from pairs of links that were probed together (TACCL section 2.2's questions).

Two links conflict where together they take clearly longer than each alone; what they carried in that time is the
bandwidth that they share. Links that all conflict with each other at one bandwidth are one limit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from flowccl.profile.fit import LinkFit
from flowccl.profile.hosts import ranks_in_words
from flowccl.profile.measurements import Floats, Measured, middle
from flowccl.profile.probes import Ends
from flowccl.profile.work import SLOWER

_SAME = 1.12  # bandwidths within this factor of the next one are the same limit's
_ESCAPED = 0.08  # of the pairs in one limit may have escaped notice
_NEAR = 1.3  # bandwidths within this factor may be one limit's

Edges = dict[frozenset[Ends], float]
"""Two links that conflict, and the bandwidth in GB/s that they share."""


@dataclass(frozen=True)
class Shared:
    """A bandwidth that links share; `probes` is how many measurements showed it."""

    name: str
    links: tuple[Ends, ...]
    bandwidth_GBps: float
    probes: int


def limits_of_pairs(hosts: Sequence[str], pairs: Sequence[Measured], fits: dict[Ends, LinkFit]) -> list[Shared]:
    """The limits that pairs of links show."""
    edges = conflicts(pairs, fits)
    asked = {frozenset(one.probe.links) for one in pairs}
    limits = _merged(_from_cliques(edges), edges)
    if len(asked) < len(fits) * (len(fits) - 1) // 2:
        limits += _between_hosts(hosts, asked, edges, list(fits))
    return limits


def conflicts(pairs: Iterable[Measured], fits: dict[Ends, LinkFit]) -> Edges:
    """The pairs of links that slow each other down, every time that they were asked."""
    slow: dict[frozenset[Ends], list[bool]] = {}
    rates: dict[frozenset[Ends], list[float]] = {}
    for one in pairs:
        times = middle(one)
        if times is not None:
            pair = frozenset(one.probe.links)
            slow.setdefault(pair, []).append(slowdown(one, times, fits) > SLOWER)
            rates.setdefault(pair, []).append(_shared_GBps(one, times, fits))
    return {pair: max(rates[pair]) for pair, seen in slow.items() if all(seen)}  # what disturbs only slows


def slowdown(one: Measured, times: Sequence[float] | Floats, fits: dict[Ends, LinkFit]) -> float:
    """How much longer the links take together than the slowest of them alone."""
    carried = zip(one.probe.links, one.probe.link_bytes, strict=True)
    return float(max(times)) / max(fits[link].seconds(one.probe.latencies, size) for link, size in carried)


def _shared_GBps(one: Measured, times: Sequence[float] | Floats, fits: dict[Ends, LinkFit]) -> float:
    """What two links carry together while both are busy: all of the first to end, and of the other what is not left.

    What is left of the other when the first ends goes at that link's own bandwidth.
    """
    lag = [fits[link].latency_us * 1e-6 * one.probe.latencies for link in one.probe.links]
    busy = [max(float(t) - wait, 1e-9) for t, wait in zip(times, lag, strict=True)]
    first, last = (0, 1) if busy[0] <= busy[1] else (1, 0)
    size = one.probe.link_bytes
    left = fits[one.probe.links[last]].bandwidth_GBps * 1e9 * (busy[last] - busy[first])
    return (size[first] + max(size[last] - left, 0.0)) / busy[first] / 1e9


def _from_cliques(edges: Edges) -> list[Shared]:
    """Limits that explain all conflicts: at each bandwidth, from the narrowest, sets in which all conflict."""
    limits: list[Shared] = []
    for low, high in _levels(edges):
        near: dict[Ends, set[Ends]] = {}
        for pair, value in edges.items():
            if value <= high:
                a, b = pair
                near.setdefault(a, set()).add(b)
                near.setdefault(b, set()).add(a)
        left = {pair for pair, value in edges.items() if low <= value <= high}
        while left:
            clique = _clique(near, left)
            inside = [pair for pair in edges if pair <= clique and low <= edges[pair] <= high]
            left.difference_update(inside)
            value = float(np.median([edges[pair] for pair in inside]))
            limits.append(Shared(_name(clique), tuple(sorted(clique)), value, len(inside)))
    return limits


def _merged(limits: list[Shared], edges: Edges) -> list[Shared]:
    """Limits of about one bandwidth that overlap so much that hardly a pair of both lacks a conflict are one.

    A few pairs that escaped notice would otherwise tear one limit into many.
    """
    for first, second in combinations(limits, 2):
        union = set(first.links) | set(second.links)
        pairs = list(map(frozenset, combinations(union, 2)))
        inside = [edges[pair] for pair in pairs if pair in edges]
        rates = sorted((first.bandwidth_GBps, second.bandwidth_GBps))
        if len(inside) >= (1 - _ESCAPED) * len(pairs) and rates[1] <= _NEAR * rates[0]:
            one = Shared(_name(union), tuple(sorted(union)), float(np.median(inside)), first.probes + second.probes)
            return _merged([one, *(k for k in limits if k not in (first, second))], edges)
    return limits


def _levels(edges: Edges) -> list[tuple[float, float]]:
    """Bandwidths that belong together, as (lowest, highest): cut where the next is clearly higher."""
    values = np.sort(np.array(list(edges.values())))
    if not len(values):
        return []
    parts = np.split(values, np.flatnonzero(values[1:] > _SAME * values[:-1]) + 1)
    return [(float(part[0]), float(part[-1])) for part in parts]


def _clique(near: dict[Ends, set[Ends]], left: set[frozenset[Ends]]) -> set[Ends]:
    """A set in which all conflict with all, with as many unexplained pairs as one finds from each start."""
    best: set[Ends] = set()
    score = -1
    for pair in sorted(left, key=sorted)[:200]:
        clique = set(pair)
        a, b = pair
        common = near[a] & near[b]
        while common:
            chosen = max(sorted(common), key=lambda link: len(near[link] & common))
            clique.add(chosen)
            common = common & near[chosen]
        explained = sum(other <= clique for other in left)
        if explained > score:
            best, score = clique, explained
    return best


def _name(links: Iterable[Ends]) -> str:
    """What the links have in common, in words."""
    sources, ends = sorted({a for a, _ in links}), sorted({b for _, b in links})
    if len(sources) == 1:
        return f"out of gpu{sources[0]}"
    if len(ends) == 1:
        return f"into gpu{ends[0]}"
    if not set(sources) & set(ends):
        small = sources if len(sources) <= len(ends) else ends
        return f"{'out of' if small is sources else 'into'} {ranks_in_words(small)}"
    return f"among {ranks_in_words(sorted(set(sources) | set(ends)))}"


# -- where not all pairs were probed ----------------------------------------------------------------------------------


def _between_hosts(hosts: Sequence[str], asked: set[frozenset[Ends]], edges: Edges, links: list[Ends]) -> list[Shared]:
    """Ranks of a host that share a way out of it or into it: those that conflict whoever is at the other end."""
    result = []
    for side, word in ((0, "out of"), (1, "into")):
        seen: dict[frozenset[int], list[float | None]] = {}
        for pair in asked:
            a, b = pair
            across = all(hosts[link[0]] != hosts[link[1]] for link in pair)
            if across and a[side] != b[side] and hosts[a[side]] == hosts[b[side]]:
                seen.setdefault(frozenset((a[side], b[side])), []).append(edges.get(pair))
        shared: Edges = {}
        for ranks, values in seen.items():
            known = [value for value in values if value is not None]
            if len(known) == len(values) > 1:
                first, second = sorted(ranks)
                shared[frozenset(((first, first), (second, second)))] = float(np.median(known))
        for limit in _from_cliques(shared):
            ranks_here = sorted({rank for rank, _ in limit.links})
            covered = [k for k in links if k[side] in ranks_here and hosts[k[0]] != hosts[k[1]]]
            name = f"{word} {ranks_in_words(ranks_here)}"
            result.append(Shared(name, tuple(sorted(covered)), limit.bandwidth_GBps, limit.probes))
    return result
