"""Proved lower bounds: no schedule, with any chunking, finishes earlier. Each bound comes with a witness sentence.

release time        no schedule finishes before the last data is available
reduction rate      all contributions but one must be reduced somewhere, at the nodes' reduction rates
distance            the latency to the farthest destination
work                bytes times fewest hops, over the bandwidth of all links together
cut                 the bytes that must cross a set of links, with the latency before and after them: the one-machine
                    bound of job-shop scheduling (heads, work, tails), on every node, host, minimum cut and ball
partial reductions  the same cuts, where a link first carries only partial reductions, and in the end reaches only
                    some destinations
dual prices         every byte pays at least its cheapest path, and the links earn at most their bandwidth; no copies
partition           the bytes that must cross between the parts of a partition, to reduce and to distribute
two hops            data that a GPU passes on takes two hops; without it, an allreduce needs many more bytes
time-expanded LP    a linear program over epochs; only `tightened` solves it, where a gap is left
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from flowccl.bounds.commodities import Commodities
from flowccl.bounds.cut_families import cut_families
from flowccl.bounds.cuts import Cut, thresholds
from flowccl.bounds.dual_prices import best_dual_prices
from flowccl.bounds.partial_reductions import partial_reduction_bound_ps
from flowccl.bounds.partitions import partition_bounds
from flowccl.bounds.rounding import on_grid, whole_ps
from flowccl.bounds.time_expanded import time_expanded_bound_ps
from flowccl.bounds.two_hops import two_hops_bound_ps
from flowccl.demand.demand import Demand
from flowccl.topology.topology import Topology
from flowccl.topology.trunks import with_merged_trunks
from flowccl.topology.variants import without
from flowccl.units import format_bytes, format_GBps, format_us, ps_to_us

_MAX_ENTRIES = 20_000_000  # (commodity, link) entries of all cuts that are evaluated, the most promising cuts first
_THRESHOLDS = 8  # distinct heads and tails that are tried per cut
_PARTIAL = 12  # cuts whose partial-reduction bound is computed, the best cuts first, one of those that look alike


@dataclass(frozen=True, slots=True)
class Bound:
    """A proved lower bound in picoseconds, the family it comes from, and its witness in words."""

    ps: int
    kind: str
    witness: str

    @property
    def us(self) -> float:
        """The bound in microseconds."""
        return ps_to_us(self.ps)


def lower_bound(
    topology: Topology, demand: Demand, should_stop: Callable[[], bool] = lambda: False, group: int = 0
) -> Bound:
    """Return the best of all bounds; of equal ones, the first. See `bounds`."""
    return max(bounds(topology, demand, should_stop, group), key=lambda bound: bound.ps)


def bounds(
    topology: Topology, demand: Demand, should_stop: Callable[[], bool] = lambda: False, group: int = 0
) -> list[Bound]:
    """Return the bounds of all families for a demand that fits the machine.

    A pure reduction is a distribution run backwards, so its bounds are those of the reversed demand on the reversed
    machine. When `should_stop` says so, no more cuts and partitions are tried, and dual prices are taken as they are.
    Where `group` is given, switches reduce only for groups of at most that many GPUs, and store the result to all of
    them.
    """
    commodities = _commodities(topology, demand)
    group = 0 if demand.reduces and demand.is_unicast else group
    quick = [
        *_release_time(demand, topology),
        *_reduction_rate(demand, topology),
        _distance(commodities),
        _work(commodities),
    ]
    partitions = _partitions(commodities, demand, group, should_stop)  # few, so before the many cuts
    cuts, prices = _cuts(commodities, demand, should_stop), _dual_prices(commodities, should_stop)
    return [*quick, *cuts, *prices, *partitions, *_two_hops(commodities)]


def tightened(topology: Topology, demand: Demand, known: Bound, finish_ps: float, seconds: float) -> Bound:
    """Return the time-expanded LP bound if it is better than the known bound; takes about `seconds`.

    `finish_ps` is the finish of a known schedule: no bound lies above it. The bound is always valid, but its value
    depends on the time limit and on the LP solver's floating-point results.
    """
    value = time_expanded_bound_ps(_commodities(topology, demand), float(known.ps), float(finish_ps), seconds)
    if value <= known.ps:
        return known
    return Bound(whole_ps(value), "time-expanded LP", "lower bound from the dual of the time-expanded LP")


def _commodities(topology: Topology, demand: Demand) -> Commodities:
    """The commodities on the usable part of the machine; a pure reduction is reversed.

    Alike links side by side between switches are one trunk: every schedule on them is one on the trunk.
    """
    if demand.forbidden:
        topology = without(topology, demand.forbidden)[0]
    topology = with_merged_trunks(topology)
    if demand.reduces and demand.is_unicast:
        other = demand.source_rank != demand.destination_rank[demand.source_chunk]
        return Commodities.of(demand.backward, topology.reversed, demand.available_ps[other])
    return Commodities.of(demand, topology)


def _release_time(demand: Demand, topology: Topology) -> list[Bound]:
    """No schedule finishes before the last data is available."""
    if demand.ready_ps is None:
        return []
    at = int(np.argmax(demand.ready_ps))
    name, when = topology.nodes[demand.source_rank[at]].name, int(demand.ready_ps[at])
    return [Bound(when, "release time", f"{name} has its data only from {format_us(ps_to_us(when))}")]


def _reduction_rate(demand: Demand, topology: Topology) -> list[Bound]:
    """All bytes to reduce over the total reduction rate; no bound if a node reduces without taking time."""
    rates = topology.reduce_GBps[topology.reduces]
    if not demand.reduces or not np.all(np.isfinite(rates)):
        return []
    total = float((demand.chunk_bytes * (np.diff(demand.source_ptr) - 1)).sum())
    words = f"{format_bytes(total)} must be reduced, at {format_GBps(float(rates.sum()))} by all nodes together"
    return [Bound(whole_ps(total * 1000 / float(rates.sum())), "reduction rate", words)]


def _distance(commodities: Commodities) -> Bound:
    away, source = commodities.farthest(commodities.latency_ps)
    away = away + commodities.tail_ps
    if len(commodities.source) == len(commodities.bytes):
        away = away + commodities.ready_ps[commodities.destination_group]
    at, nodes = int(np.argmax(away)), commodities.topology.nodes
    a, b = nodes[source[at]].name, nodes[commodities.destination[at]].name
    late = " and release time" if commodities.ready_ps.any() or commodities.tail_ps.any() else ""
    words = f"{b} needs data of {a}, {format_us(ps_to_us(away[at]))} away by latency{late}"
    return Bound(whole_ps(away[at]), "distance", words)


def _work(commodities: Commodities) -> Bound:
    """Byte-hops over total bandwidth; a commodity with several destinations must at least reach the farthest one."""
    hops, _ = commodities.farthest(commodities.hops)
    total = float((np.maximum.reduceat(hops, commodities.destination_ptr[:-1]) * commodities.bytes).sum())
    bandwidth = float(commodities.topology.link_peak_GBps.sum())
    words = f"{format_bytes(total)} (bytes x fewest hops) must cross all links, {format_GBps(bandwidth)} together"
    return Bound(whole_ps(total * 1000 / bandwidth), "work", words)


def _cuts(commodities: Commodities, demand: Demand, should_stop: Callable[[], bool]) -> list[Bound]:
    """Bounds of the cuts, those with most bytes per bandwidth first, until no further cut can be better."""
    cuts = list(takewhile(lambda cut: not should_stop(), cut_families(commodities.topology, commodities)))
    crossing = cache(lambda at: commodities.crossing(cuts[at].far))
    simple = np.array(
        [whole_ps(1000.0 * commodities.crossing_bytes(cut.far) / cut.GBps) for cut in cuts], dtype=np.int64
    )
    farthest = int(commodities.latency_ps[np.isfinite(commodities.latency_ps)].max(initial=0.0))
    farthest += int(commodities.ready_ps.max() + commodities.tail_ps.max())
    result: list[tuple[Bound, int]] = []
    best, entries = 0, 0
    for at in np.argsort(-simple, kind="stable").tolist():
        entries += len(crossing(at)) * len(cuts[at].links) + len(commodities.destination)
        hopeless = simple[at] + 3 * farthest <= best  # head, link and tail are at most this far
        if not len(crossing(at)) or hopeless or (result and (entries > _MAX_ENTRIES or should_stop())):
            break
        result.append((_cut(commodities, cuts[at], crossing(at)), at))
        best = max(best, result[-1][0].ps)
    found = [bound for bound, _ in result]
    if len(commodities.source) > len(commodities.bytes) or commodities.copies:
        result.sort(key=lambda pair: -pair[0].ps)
        GBps = on_grid(np.array([cuts[at].GBps for _, at in result])).tolist()
        distinct: dict[tuple[int, int, int], int] = {}
        for (bound, at), rate in zip(result, GBps, strict=True):
            distinct.setdefault((bound.ps, rate, len(cuts[at].links)), at)
        alike = [at for _, at in result if at not in distinct.values()]
        chosen = [] if should_stop() else [*distinct.values(), *alike][:_PARTIAL]
        found += [_partial_reduction_cut(commodities, demand, cuts[at], crossing(at)) for at in chosen]
    return found


def _cut(commodities: Commodities, cut: Cut, group: NDArray[np.int64]) -> Bound:
    """The best bound of one cut over subsets of the commodities that cross it: those with late heads or long tails."""
    heads, tails, worst = commodities.heads_and_tails(cut, group)
    size = commodities.bytes[group].astype(np.float64)
    nearest, shortest = heads.min(axis=1), tails.min(axis=1)
    best = (-1, np.zeros(0, dtype=np.int64))
    for h in thresholds(nearest, _THRESHOLDS):
        for q in thresholds(shortest, _THRESHOLDS):
            chosen = np.flatnonzero((nearest >= h) & (shortest >= q))
            if not len(chosen):
                continue
            away = heads[chosen].min(axis=0) + tails[chosen].min(axis=0)
            ps = whole_ps(cut.earliest_ps(away, float(size[chosen].sum())))
            if ps > best[0]:
                best = (ps, chosen)
    ps, chosen = best
    volume = float(size[chosen].sum())
    last = commodities.topology.nodes[worst[chosen[0]]].name
    words = (
        f"{format_bytes(volume)} must cross {cut.name}, {format_GBps(cut.GBps)}"
        f" ({len(cut.links)} link{'s' if len(cut.links) > 1 else ''}):"
        f" {format_us(ps_to_us(nearest[chosen].min()))} to get there, {format_us(volume / cut.GBps / 1000)} to cross,"
        f" {format_us(ps_to_us(shortest[chosen].min()))} to reach {last}"
    )
    return Bound(ps, "cut", words)


def _dual_prices(commodities: Commodities, should_stop: Callable[[], bool]) -> list[Bound]:
    """The bound of the best dual prices, for demands without copies."""
    found = best_dual_prices(commodities, should_stop)
    if found is None:
        return []
    topology = commodities.topology
    weight = on_grid(np.where(np.isfinite(found.price), found.price, 0.0) * topology.link_peak_GBps)
    dear = np.argsort(-weight, kind="stable")
    most = int(np.searchsorted(np.cumsum(weight[dear]), weight.sum() * 99 // 100)) + 1
    first = topology.links[int(dear[0])]
    name = f"{topology.nodes[first.src].name} -> {topology.nodes[first.dst].name}"
    others = f" and {most - 1} more links" if most > 1 else ""
    words = f"lower bound from dual prices on {name}{others}: every byte pays at least its cheapest path"
    return [Bound(whole_ps(found.ps * (1 - 1e-9)), "dual prices", words)]


def _partial_reduction_cut(commodities: Commodities, demand: Demand, cut: Cut, group: NDArray[np.int64]) -> Bound:
    """The partial-reduction bound of one cut, see `partial_reductions`."""
    volume = float(commodities.bytes[group].sum())
    first = ["the first bytes are partial reductions"] if demand.reduces else []
    last = ["the last ones reach only some destinations"] if not demand.is_unicast else []
    words = (
        f"{format_bytes(volume)} must cross {cut.name}, {format_GBps(cut.GBps)}"
        f" ({len(cut.links)} link{'s' if len(cut.links) > 1 else ''}): {', '.join([*first, *last])}"
    )
    return Bound(whole_ps(partial_reduction_bound_ps(commodities, cut, group)), "partial reductions", words)


def _partitions(commodities: Commodities, demand: Demand, group: int, should_stop: Callable[[], bool]) -> list[Bound]:
    """The best of the partition bounds, if there is any."""
    found = partition_bounds(commodities, group, should_stop)
    rows = [(whole_ps(value), crossing, volume) for value, crossing, volume in found]
    if not rows:
        return []
    ps, crossing, volume = max(rows, key=lambda row: row[0])
    purpose = "to reduce and to distribute" if demand.reduces and not demand.is_unicast else ""
    purpose = purpose or ("to reduce" if demand.reduces else "to distribute")
    words = (
        f"{format_bytes(volume)} must cross {crossing.name}, {purpose}: {format_GBps(crossing.GBps)}"
        f" ({len(crossing.links)} link{'s' if len(crossing.links) > 1 else ''})"
    )
    return [Bound(ps, "partition", words)]


def _two_hops(commodities: Commodities) -> list[Bound]:
    """The bound of an allreduce whose data is passed on."""
    found = two_hops_bound_ps(commodities)
    if found is None:
        return []
    ps, latency_ps, size = found
    words = (
        f"what a GPU receives and passes on arrives after {format_us(ps_to_us(latency_ps))} by latency, and most of"
        f" {format_bytes(size)} must still cross into every GPU then: all else is contributions of single GPUs"
    )
    return [Bound(whole_ps(ps), "two hops", words)]
