"""Adapter for reductions: a reduction is a distribution that runs backwards on the reversed machine."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.adapters.reversal import opposite_links
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.portable import power_of_ten
from flowccl.problem import Problem
from flowccl.schedule.generation.list_scheduling import ListScheduler, can_list_schedule
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import as_distribution, concatenate, left_shift, reverse
from flowccl.search.context import Method, SearchContext
from flowccl.topology.neighbours import neighbours
from flowccl.topology.topology import Topology
from flowccl.topology.variants import with_links

_PATIENCE = 8
_ALONE = 6  # steps of each half alone before a half is planned together with the other
_MOST_LINKS_TO_REPLAN = 2000  # links of the largest machine on which a half is planned together with the other
_REPLAN_STEPS = 3
_MOST_USED = 0.75  # of a link's bandwidth that the other half may use
_NOISY = 3  # orders with noise for each concatenation
_BISECTIONS, _GRID = 60, 1 << 20
Halves = tuple[tuple[Demand, NDArray[np.int64]], tuple[Demand, NDArray[np.int64]]]


def with_reductions(method: Method, *, replans: bool = True) -> Method:
    """The method, extended to reductions: allreduce is the concatenation of a reduction and a distribution.

    In an allreduce, each block is reduced at its owner. The owners are all ranks in turn; on machines of direct links,
    see `owners_on_direct_links`. If it `replans`, one half may be planned again for the bandwidth that the other half
    leaves.
    """

    def run(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
        topology, demand = problem.topology, problem.demand
        if not demand.reduces:
            return method(problem, context)
        if demand.is_unicast:
            return _reduced(method, problem, context)
        halves = demand.halves
        if demand.ready_ps is not None:
            halves = demand.halves_at(owners_on_time(demand))
        elif (owners := owners_on_direct_links(problem)) is not None:
            halves = demand.halves_at(owners)
        return _concatenated_halves(method, topology, demand, halves, context, replans)

    return run


def one_shot(method: Method) -> Method:
    """The method for an allreduce in which every destination reduces for itself, see `Demand.per_destination`."""

    def run(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
        for schedule in _reduced(method, Problem(problem.topology, problem.demand.per_destination), context):
            yield None if schedule is None else replace(schedule, method="one-shot")

    return run


def _reduced(method: Method, problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    topology, demand = problem.topology, problem.demand
    machine, kept = _late_as_leaves(topology, demand)
    for schedule in method(Problem(machine.reversed, demand.backward), context):
        if schedule is None:
            yield None
            continue
        found = reverse(schedule, demand, reduce=True)
        yield replace(found, topology=topology, routes=found.routes if kept is None else found.routes.renamed(kept))


def owners_on_direct_links(problem: Problem) -> NDArray[np.int32] | None:
    """An owner for every chunk of an allreduce on a machine of direct links; None where all GPUs have equal bandwidth.

    A GPU with few links takes longest: it sends its contributions to all chunks that it does not own, and receives the
    results. So it owns more of them, but no more than it can still copy to the farthest GPU in time.
    """
    topology, demand = problem.topology, problem.demand
    ranks = problem.allreduce_ranks
    if not topology.stores.all() or ranks is None or len(ranks) < len(topology.nodes) or not problem.is_uneven:
        return None
    near, size = neighbours(topology, 1), float(demand.chunk_bytes.sum())
    rate, count = problem.duplex_GBps / 1000, len(ranks)  # bytes per ps
    link_rate = np.zeros(count)
    np.maximum.at(link_rate, topology.link_src, topology.link_GBps / 1000)
    hop_ps = np.full(count, np.inf)
    np.minimum.at(hop_ps, topology.link_src, topology.link_latency_ps.astype(np.float64))
    far_ps = near.distance_ps(float(demand.chunk_bytes.mean())).max(axis=1)
    low, high = 0.0, 2 * (size / float(rate.min()) + float(far_ps.max()))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        least = np.maximum(1 - (middle - hop_ps) * rate / size, 0.0)
        most = np.maximum((middle - far_ps) * link_rate / size, 1 / count)
        low, high = (low, middle) if least.sum() <= 1 and np.all(least <= most) else (middle, high)
    part = np.maximum(1 - (high - hop_ps) * rate / size, 0.0)
    part += (1 - part.sum()) / count
    wanted = np.rint(part * _GRID).astype(np.int64)  # integers, so that no last bit decides
    owned, owner = np.zeros(count, dtype=np.int64), np.empty(len(demand), dtype=np.int32)
    for chunk in range(len(demand)):
        owner[chunk] = int(np.argmax(wanted * (chunk + 1) - owned))
        owned[owner[chunk]] += _GRID
    return owner


def owners_on_time(demand: Demand) -> NDArray[np.int32]:
    """An owner for every chunk among its destinations: in turn, those whose own data is not late."""
    late = demand.source_rank[demand.available_ps > 0]
    owner = np.empty(len(demand), dtype=np.int32)
    for chunk in range(len(demand)):
        wants = demand.destinations(chunk)
        able = wants[~np.isin(wants, late)]
        able = able if len(able) else wants
        owner[chunk] = able[chunk // demand.pieces % len(able)]
    return owner


def _concatenated_halves(
    method: Method, topology: Topology, demand: Demand, halves: Halves, context: SearchContext, replans: bool
) -> Iterator[Schedule | None]:
    """Improve both halves, alone or one together with the other, and concatenate them after every improvement."""
    search = _HalvesSearch(method, topology, demand, halves, context)
    search.replans &= replans
    turn = 0
    while True:
        stride = 2 << min(search.idle_replans // 2, 5)  # less and less often without improvement
        alone = turn < _ALONE or turn % stride or not search.replans
        both = search.step_both() if alone else search.replan_half(turn // stride % 2)
        if search.over:
            return
        turn += 1
        yield both


class _HalvesSearch:
    """The best schedule of each half so far, and the searches for better ones."""

    def __init__(
        self, method: Method, topology: Topology, demand: Demand, halves: Halves, context: SearchContext
    ) -> None:
        self.method, self.topology, self.demand, self.context = method, topology, demand, context
        self.demands, self.chunks = (halves[0][0], halves[1][0]), (halves[0][1], halves[1][1])
        self.searches = [self._search(half, topology, context) for half in (0, 1)]
        self.best: list[Schedule | None] = [None, None]
        self.alone_ps = [float("inf"), float("inf")]  # best completion time of each half alone
        alike = demand.ready_ps is None and halves[0][0].backward == halves[1][0]
        self.opposite = opposite_links(topology) if alike else None  # then the reduction is the distribution backwards
        self.concatenator = _Concatenator(demand, context)
        self.best_ps: int | None = None
        self.over = False
        self.idle_replans = 0
        self.replans = not topology.has_extra_constraints and len(topology.links) <= _MOST_LINKS_TO_REPLAN

    def _search(self, half: int, topology: Topology, context: SearchContext) -> Iterator[Schedule | None]:
        problem = Problem(topology, self.demands[half])
        return _reduced(self.method, problem, context) if half == 0 else self.method(problem, context)

    def step_both(self) -> Schedule | None:
        """One step of both searches, or of the only one; concatenate the halves if one improved."""
        if self.opposite is None:
            found = [next(search, "over") for search in self.searches]
        else:
            spread = next(self.searches[1], "over")
            found = [self._backwards(spread) if isinstance(spread, Schedule) else spread, spread]
        self.over = found == ["over", "over"]
        better = [self._take(half, part) for half, part in enumerate(found)]
        return self._concatenate(self.best) if any(better) else None

    def _backwards(self, spread: Schedule) -> Schedule:
        """The reduction that runs like a distribution, backwards."""
        assert self.opposite is not None
        same = replace(spread, topology=self.topology.reversed, routes=spread.routes.renamed(self.opposite))
        return replace(reverse(same, self.demands[0], reduce=True), topology=self.topology)

    def _take(self, half: int, found: Schedule | str | None) -> bool:
        """Keep and report the schedule of a half if it is the best so far."""
        if not isinstance(found, Schedule):
            return False
        self.context.incumbents.report(found)
        if half == 0 and (other := as_distribution(found)) is not None:
            self.context.incumbents.report(other)
        if found.finish_ps >= self.alone_ps[half]:
            return False
        self.best[half], self.alone_ps[half] = self._of_whole(half, found), found.finish_ps
        return True

    def replan_half(self, half: int) -> Schedule | None:
        """Plan one half again, on a machine whose links are slower by the use of the other half."""
        other = self.best[1 - half]
        if self.best_ps is None or other is None:
            return None
        machine = _residual_machine(self.topology, other, self.best_ps)
        own = replace(self.context.incumbents, schedules={}, reported=[], reported_hints=[])
        context = replace(self.context, seed=int(self.concatenator.random.integers(1 << 30)), incumbents=own)
        part = None
        try:
            for _, found in zip(range(_REPLAN_STEPS), self._search(half, machine, context), strict=False):
                part = found or part
        except DemandError:  # the method needs a symmetric machine, which this one no longer is
            self.replans = False
        self.idle_replans += 1
        if part is None:
            return None
        pair = list(self.best)
        pair[half] = self._of_whole(half, left_shift(replace(part, topology=self.topology)))
        before = self.best_ps
        both = self._concatenate(pair)
        if both is not None and both.finish_ps < before:
            self.best, self.idle_replans = pair, 0
        return both

    def _of_whole(self, half: int, part: Schedule) -> Schedule:
        """The schedule of a half, with the chunk numbers of the whole demand."""
        return replace(part, demand=self.demand, chunk=self.chunks[half][part.chunk].astype(np.int32))

    def _concatenate(self, pair: list[Schedule | None]) -> Schedule | None:
        if pair[0] is None or pair[1] is None:
            return None
        both = self.concatenator.concatenate(pair[0], pair[1])
        self.best_ps = both.finish_ps if self.best_ps is None else min(self.best_ps, both.finish_ps)
        return both


def _residual_machine(topology: Topology, other: Schedule, finish_ps: int) -> Topology:
    """The machine with each link slower by the fraction of the time that the other schedule uses it."""
    timing = other.timing
    busy_ps = np.bincount(timing.hop_link, timing.hop_to_ps - timing.hop_from_ps, len(topology.links))
    left = (1 - _MOST_USED * np.minimum(busy_ps / max(finish_ps, 1), 1)).tolist()
    links = [
        replace(link, bandwidth_GBps=link.bandwidth_GBps * share)
        for link, share in zip(topology.links, left, strict=True)
    ]
    return replace(topology, links=tuple(links))


class _Concatenator:
    """Concatenates two halves: every link carries the first half before the second, or the longest tail first.

    The second order is no longer tried after several failures, in this search or in others with the same context.
    """

    def __init__(self, demand: Demand, context: SearchContext) -> None:
        self.demand, self.context = demand, context
        self.random = np.random.default_rng(context.seed)
        self.concatenations = 0

    @property
    def idle(self) -> int:
        """Number of concatenations in a row without improvement by list scheduling."""
        known = self.context.incumbents.hints.get("concatenations without improvement", 0)
        return known if isinstance(known, int) else 0

    def concatenate(self, first: Schedule, second: Schedule) -> Schedule:
        """The best schedule over all orders."""
        self.concatenations += 1
        concatenated = concatenate(first, second, self.demand)
        reordered = (
            self._list_scheduled(concatenated) if self.idle < _PATIENCE and can_list_schedule(concatenated) else None
        )
        best = concatenated if reordered is None or reordered.finish_ps >= concatenated.finish_ps else reordered
        self.context.incumbents.report_hint(
            "concatenations without improvement", 0 if best is reordered else self.idle + 1, best.finish_ps
        )
        return best

    def _list_scheduled(self, concatenated: Schedule) -> Schedule | None:
        """The schedule with the longest tail first; after the first concatenations also with noise."""
        scheduler = ListScheduler(concatenated)
        best = scheduler.in_order_of(-scheduler.tail_ps)
        for _ in range(_NOISY if best is not None and self.concatenations > _ALONE else 0):
            noise = power_of_ten(float(self.random.uniform(-2, -0.3))) * self.random.uniform(-1, 1, len(concatenated))
            found = scheduler.in_order_of(-scheduler.tail_ps * (1 + noise))
            if found is not None and best is not None and found.finish_ps < best.finish_ps:
                best = found
        return best


def _late_as_leaves(topology: Topology, demand: Demand) -> tuple[Topology, NDArray[np.int64] | None]:
    """The machine for a reduction with late data: no transfer passes a GPU that waits for its own data.

    Also returns the number of each remaining link in the whole machine; None if all links remain.
    """
    if demand.ready_ps is None:
        return topology, None
    late = np.setdiff1d(demand.source_rank[demand.ready_ps > 0], demand.destination_rank)
    into = np.isin(topology.link_dst, late)
    if not into.any():
        return topology, None
    view, kept = with_links(topology, ~into, "late gpus as leaves")
    try:
        demand.check_fits(view)
    except DemandError:  # some GPUs can be reached only through a late one
        return topology, None
    return view, kept
