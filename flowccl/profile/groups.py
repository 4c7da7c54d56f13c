"""Find shared limits from pairs of links that were probed together (TACCL section 2.2).

Two links conflict if they take clearly longer together than each alone; the rate they achieved together is the
bandwidth that they share. Links that pairwise conflict at one bandwidth form one limit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from flowccl.profile.fit import LinkFit
from flowccl.profile.hosts import format_ranks
from flowccl.profile.load_cost import SLOWER
from flowccl.profile.measurements import Floats, MeasuredProbe, median_times
from flowccl.profile.probes import Ends

_SAME = 1.12  # neighbouring bandwidths within this factor belong to the same limit
_ESCAPED = 0.08  # share of the pairs in one limit whose conflict may be missed
_NEAR = 1.3  # limits with bandwidths within this factor may be merged

Edges = dict[frozenset[Ends], float]
"""Pairs of conflicting links, and the bandwidth in GB/s that each pair shares."""


@dataclass(frozen=True)
class SharedLimit:
    """A bandwidth that links share; `probes` is the number of measurements that showed it."""

    name: str
    links: tuple[Ends, ...]
    bandwidth_GBps: float
    probes: int


def limits_of_pairs(
    hosts: Sequence[str], pairs: Sequence[MeasuredProbe], fits: dict[Ends, LinkFit]
) -> list[SharedLimit]:
    """Limits found from pairs of links."""
    edges = conflicts(pairs, fits)
    asked = {frozenset(one.probe.links) for one in pairs}
    limits = _merged(_from_cliques(edges), edges)
    if len(asked) < len(fits) * (len(fits) - 1) // 2:
        limits += _between_hosts(hosts, asked, edges, list(fits))
    return limits


def conflicts(pairs: Iterable[MeasuredProbe], fits: dict[Ends, LinkFit]) -> Edges:
    """Pairs of links that slow each other down in every measurement of the pair."""
    slow: dict[frozenset[Ends], list[bool]] = {}
    rates: dict[frozenset[Ends], list[float]] = {}
    for one in pairs:
        times = median_times(one)
        if times is not None:
            pair = frozenset(one.probe.links)
            slow.setdefault(pair, []).append(slowdown(one, times, fits) > SLOWER)
            rates.setdefault(pair, []).append(_shared_GBps(one, times, fits))
    return {pair: max(rates[pair]) for pair, seen in slow.items() if all(seen)}  # disturbances only reduce rates


def slowdown(one: MeasuredProbe, times: Sequence[float] | Floats, fits: dict[Ends, LinkFit]) -> float:
    """Ratio of the time of the links together to the time of the slowest of them alone."""
    carried = zip(one.probe.links, one.probe.link_bytes, strict=True)
    return float(max(times)) / max(fits[link].seconds(one.probe.latencies, size) for link, size in carried)


def _shared_GBps(one: MeasuredProbe, times: Sequence[float] | Floats, fits: dict[Ends, LinkFit]) -> float:
    """Combined rate of two links while both are busy.

    When the first link ends, the second link sends the rest of its bytes at its own bandwidth; these bytes are
    subtracted.
    """
    lag = [fits[link].latency_us * 1e-6 * one.probe.latencies for link in one.probe.links]
    busy = [max(float(t) - wait, 1e-9) for t, wait in zip(times, lag, strict=True)]
    first, last = (0, 1) if busy[0] <= busy[1] else (1, 0)
    size = one.probe.link_bytes
    left = fits[one.probe.links[last]].bandwidth_GBps * 1e9 * (busy[last] - busy[first])
    return (size[first] + max(size[last] - left, 0.0)) / busy[first] / 1e9


def _from_cliques(edges: Edges) -> list[SharedLimit]:
    """Limits that explain all conflicts: cliques of conflicting links per bandwidth level, narrowest level first."""
    limits: list[SharedLimit] = []
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
            limits.append(SharedLimit(_name(clique), tuple(sorted(clique)), value, len(inside)))
    return limits


def _merged(limits: list[SharedLimit], edges: Edges) -> list[SharedLimit]:
    """Merge limits of similar bandwidth if nearly all pairs of links in their union conflict.

    Otherwise a few missed conflicts would split one limit into many.
    """
    for first, second in combinations(limits, 2):
        union = set(first.links) | set(second.links)
        pairs = list(map(frozenset, combinations(union, 2)))
        inside = [edges[pair] for pair in pairs if pair in edges]
        rates = sorted((first.bandwidth_GBps, second.bandwidth_GBps))
        if len(inside) >= (1 - _ESCAPED) * len(pairs) and rates[1] <= _NEAR * rates[0]:
            one = SharedLimit(
                _name(union), tuple(sorted(union)), float(np.median(inside)), first.probes + second.probes
            )
            return _merged([one, *(k for k in limits if k not in (first, second))], edges)
    return limits


def _levels(edges: Edges) -> list[tuple[float, float]]:
    """Bandwidth levels as (lowest, highest); a new level begins where the next bandwidth is clearly higher."""
    values = np.sort(np.array(list(edges.values())))
    if not len(values):
        return []
    parts = np.split(values, np.flatnonzero(values[1:] > _SAME * values[:-1]) + 1)
    return [(float(part[0]), float(part[-1])) for part in parts]


def _clique(near: dict[Ends, set[Ends]], left: set[frozenset[Ends]]) -> set[Ends]:
    """A clique of conflicting links that greedily covers many unexplained pairs; the best over all start pairs."""
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
    """Name of a limit, from the common endpoints of its links."""
    sources, ends = sorted({a for a, _ in links}), sorted({b for _, b in links})
    if len(sources) == 1:
        return f"out of gpu{sources[0]}"
    if len(ends) == 1:
        return f"into gpu{ends[0]}"
    if not set(sources) & set(ends):
        small = sources if len(sources) <= len(ends) else ends
        return f"{'out of' if small is sources else 'into'} {format_ranks(small)}"
    return f"among {format_ranks(sorted(set(sources) | set(ends)))}"


# -- where not all pairs were probed ----------------------------------------------------------------------------------


def _between_hosts(
    hosts: Sequence[str], asked: set[frozenset[Ends]], edges: Edges, links: list[Ends]
) -> list[SharedLimit]:
    """Limits of ranks that share a path out of or into their host: they conflict for every remote endpoint."""
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
            name = f"{word} {format_ranks(ranks_here)}"
            result.append(SharedLimit(name, tuple(sorted(covered)), limit.bandwidth_GBps, limit.probes))
    return result
