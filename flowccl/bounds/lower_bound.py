"""Proved floors: no schedule, with any chunking, finishes earlier. Each comes with its witness in words.

distance   the farthest destination, by latency alone
cut        what must cross a set of links: the earliest it can be there, the work, and the way still to go. This is the
           one-machine bound of job-shop scheduling (heads, work, tails), on every node, host, minimum cut and ball
adding     all contributions but one must be added up somewhere, where that takes time
work       every byte must go some way: all bytes times their least hops, over all links together
prices     each byte pays its cheapest way, and all links together can earn only so much; without copies
shares     the same cuts, where a link carries at any time only what can have been added up by then, and only to those
           who can still be reached
timed      data that flows without chunks, epoch by epoch: a linear program; sought only where a gap is left (`timed`)
partition  what must go from part to part, to add up and to spread, over all links between parts together
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.bounds.commodities import Commodities
from flowccl.bounds.cut_families import cut_families
from flowccl.bounds.cuts import Cut
from flowccl.bounds.dual_prices import best_dual_prices
from flowccl.bounds.partial_reductions import partial_reduction_bound_ps
from flowccl.bounds.partitions import partition_bounds
from flowccl.bounds.time_expanded import time_expanded_bound_ps
from flowccl.demand.demand import Demand
from flowccl.topology.topology import Topology
from flowccl.topology.variants import without
from flowccl.units import format_bytes, format_GBps, format_us, ps_to_us

_DETAILED = 20_000_000  # entries that the full treatment of cuts may look at, the most promising cuts first
_THRESHOLDS = 8  # distinct heads and tails that are tried for a cut
_SHARED = 12  # cuts for which heads and tails that grow are tried, the best first


@dataclass(frozen=True, slots=True)
class Bound:
    """A proved floor in picoseconds, and why."""

    ps: int
    kind: str
    witness: str

    @property
    def us(self) -> float:
        """The floor in microseconds."""
        return ps_to_us(self.ps)


def lower_bound(topology: Topology, demand: Demand) -> Bound:
    """The best of all floors."""
    return max(bounds(topology, demand), key=lambda bound: bound.ps)


def bounds(topology: Topology, demand: Demand) -> list[Bound]:
    """All floors of a demand that fits the machine.

    A pure reduction is a distribution run backwards, so its floors are those of the reversed demand on the reversed
    machine.
    """
    commodities = _commodities(topology, demand)
    return [
        *_ready(demand, topology),
        *_adding(demand, topology),
        _distance(commodities),
        _work(commodities),
        *_cuts(commodities),
        *_prices(commodities),
        *_partitions(commodities),
    ]


def sharpened(topology: Topology, demand: Demand, known: Bound, finish_ps: float, seconds: float) -> Bound:
    """The floor of the fluid in time where that is better than a known one; takes about so many seconds.

    `finish_ps` is of a schedule that is there: no floor lies above it.
    """
    value = time_expanded_bound_ps(_commodities(topology, demand), float(known.ps), float(finish_ps), seconds)
    if value <= known.ps:
        return known
    words = "even data that flows without chunks is not everywhere earlier: duals of a linear program over epochs"
    return Bound(_floor(value), "timed", words)


def _commodities(topology: Topology, demand: Demand) -> Commodities:
    """What must move, on the machine that may be used; of a pure reduction, backwards."""
    if demand.forbidden:
        topology = without(topology, demand.forbidden)[0]
    if demand.reduces and len(demand.destination_rank) == len(demand):
        other = demand.source_rank != demand.destination_rank[demand.source_chunk]
        return Commodities.of(demand.backward, topology.reversed, demand.available_ps[other])
    return Commodities.of(demand, topology)


def _ready(demand: Demand, topology: Topology) -> list[Bound]:
    """Nothing is over before the last data is there."""
    if demand.ready_ps is None:
        return []
    at = int(np.argmax(demand.ready_ps))
    name, when = topology.nodes[demand.source_rank[at]].name, int(demand.ready_ps[at])
    return [Bound(when, "ready", f"{name} has its data only from {format_us(ps_to_us(when))}")]


def _adding(demand: Demand, topology: Topology) -> list[Bound]:
    """All that must be added up, over all that add up; nothing where somebody does it in no time."""
    rates = topology.reduce_GBps[topology.reduces]
    if not demand.reduces or not np.all(np.isfinite(rates)):
        return []
    total = float((demand.chunk_bytes * (np.diff(demand.source_ptr) - 1)).sum())
    words = f"{format_bytes(total)} must be added up, by all together at {format_GBps(float(rates.sum()))}"
    return [Bound(_floor(total * 1000 / float(rates.sum())), "adding", words)]


def _distance(commodities: Commodities) -> Bound:
    away, source = commodities.farthest(commodities.latency_ps)
    away = away + commodities.rest_ps
    if len(commodities.source) == len(commodities.bytes):
        away = away + commodities.ready_ps[commodities.destination_group]
    at, nodes = int(np.argmax(away)), commodities.topology.nodes
    a, b = nodes[source[at]].name, nodes[commodities.destination[at]].name
    late = " and lateness" if commodities.ready_ps.any() or commodities.rest_ps.any() else ""
    words = f"{b} needs data of {a}, {format_us(ps_to_us(away[at]))} away by latency{late}"
    return Bound(_floor(away[at]), "distance", words)


def _work(commodities: Commodities) -> Bound:
    """Byte-hops over total bandwidth; a group with several destinations must at least reach the farthest."""
    hops, _ = commodities.farthest(commodities.hops)
    total = float((np.maximum.reduceat(hops, commodities.destination_ptr[:-1]) * commodities.bytes).sum())
    bandwidth = float(commodities.topology.link_peak_GBps.sum())
    words = f"{format_bytes(total)} (bytes x least hops) must move over all links, {format_GBps(bandwidth)} together"
    return Bound(_floor(total * 1000 / bandwidth), "work", words)


def _cuts(commodities: Commodities) -> list[Bound]:
    cuts = list(cut_families(commodities.topology, commodities))
    crossing = [commodities.crossing(cut.far) for cut in cuts]
    simple = [float(commodities.bytes[group].sum()) / cut.GBps for cut, group in zip(cuts, crossing, strict=True)]
    farthest = float(commodities.latency_ps[np.isfinite(commodities.latency_ps)].max(initial=0.0))
    farthest += float(commodities.ready_ps.max() + commodities.rest_ps.max())
    result: list[tuple[Bound, int]] = []
    best, looked = 0.0, 0
    for at in np.argsort(simple)[::-1].tolist():
        looked += len(crossing[at]) * len(cuts[at].links) + len(commodities.destination)
        hopeless = simple[at] * 1000 + 3 * farthest <= best  # head, link and tail are no farther than that
        if not len(crossing[at]) or hopeless or (result and looked > _DETAILED):
            break
        result.append((_cut(commodities, cuts[at], crossing[at]), at))
        best = max(best, result[-1][0].ps)
    found = [bound for bound, _ in result]
    if len(commodities.source) > len(commodities.bytes) or commodities.copies:
        result.sort(key=lambda pair: -pair[0].ps)
        found += [_shared_cut(commodities, cuts[at], crossing[at]) for _, at in result[:_SHARED]]
    return found


def _cut(commodities: Commodities, cut: Cut, group: NDArray[np.int64]) -> Bound:
    """The best floor of one cut over subsets of what crosses it: those with late heads, those with long tails."""
    heads, tails, worst = commodities.heads_and_tails(cut.far, cut.links, group)
    size = commodities.bytes[group].astype(np.float64)
    nearest, shortest = heads.min(axis=1), tails.min(axis=1)
    best = (-1.0, np.zeros(0, dtype=np.int64))
    for h in _thresholds(nearest):
        for q in _thresholds(shortest):
            chosen = np.flatnonzero((nearest >= h) & (shortest >= q))
            if not len(chosen):
                continue
            value = cut.earliest_ps(heads[chosen].min(axis=0) + tails[chosen].min(axis=0), float(size[chosen].sum()))
            if value > best[0]:
                best = (value, chosen)
    value, chosen = best
    volume = float(size[chosen].sum())
    last = commodities.topology.nodes[worst[chosen[0]]].name
    words = (
        f"{format_bytes(volume)} must cross {cut.name}, {format_GBps(cut.GBps)}"
        f" ({len(cut.links)} link{'s' if len(cut.links) > 1 else ''}):"
        f" {format_us(ps_to_us(nearest[chosen].min()))} to get there, {format_us(volume / cut.GBps / 1000)} to cross,"
        f" {format_us(ps_to_us(shortest[chosen].min()))} to reach {last}"
    )
    return Bound(_floor(value), "cut", words)


def _prices(commodities: Commodities) -> list[Bound]:
    """The floor of the best prices, where there are no copies."""
    found = best_dual_prices(commodities)
    if found is None:
        return []
    topology = commodities.topology
    value = np.where(np.isfinite(found.price), found.price, 0.0) * topology.link_peak_GBps
    dear = np.argsort(-value, kind="stable")
    most = int(np.searchsorted(np.cumsum(value[dear]), 0.99 * value.sum())) + 1
    first = topology.links[int(dear[0])]
    name = f"{topology.nodes[first.src].name} -> {topology.nodes[first.dst].name}"
    others = f" and {most - 1} more links" if most > 1 else ""
    words = f"every byte pays its way at prices on {name}{others}, which can earn no more by then"
    return [Bound(_floor(found.ps * (1 - 1e-9)), "prices", words)]


def _shared_cut(commodities: Commodities, cut: Cut, group: NDArray[np.int64]) -> Bound:
    """The floor of one cut over whose links sums grow and copies run out of time, see `shares`."""
    volume = float(commodities.bytes[group].sum())
    words = (
        f"{format_bytes(volume)} must cross {cut.name}, {format_GBps(cut.GBps)}"
        f" ({len(cut.links)} link{'s' if len(cut.links) > 1 else ''}), each byte with all that is added up before,"
        " and in time to be copied to all"
    )
    return Bound(_floor(partial_reduction_bound_ps(commodities, cut, group)), "shares", words)


def _partitions(commodities: Commodities) -> list[Bound]:
    """The best of the partitions, if there is any."""
    best = max(partition_bounds(commodities), key=lambda floor: floor[0], default=None)
    if best is None:
        return []
    value, crossing, volume = best
    words = (
        f"{format_bytes(volume)} must go {crossing.name}, to add up and to spread: {format_GBps(crossing.GBps)}"
        f" ({len(crossing.links)} link{'s' if len(crossing.links) > 1 else ''})"
    )
    return [Bound(_floor(value), "partition", words)]


def _thresholds(values: NDArray[np.float64]) -> list[float]:
    distinct = np.unique(values)
    if len(distinct) > _THRESHOLDS:
        distinct = distinct[np.linspace(0, len(distinct) - 1, _THRESHOLDS).astype(int)]
    return [float(v) for v in distinct]


def _floor(ps: float) -> int:
    """A floor in whole picoseconds: finishes are whole, so it may be rounded up, past the noise of floats."""
    return max(int(np.ceil(ps * (1 - 1e-12))), 0)
