"""Reductions by any method: a reduction is a distribution run backwards on the reversed machine."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.problem import Problem
from flowccl.schedule.generation.list_scheduling import ListScheduler, can_list_schedule
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import concatenate, left_shift, reverse
from flowccl.search.context import Method, SearchContext
from flowccl.topology.topology import Topology
from flowccl.topology.variants import with_links

_PATIENCE = 8
_ALONE = 6  # steps of each half alone before any is planned beside the other
_MOST_BESIDE = 2000  # links of a machine on which halves are planned beside each other
_STEPS_BESIDE = 3
_MOST_TAKEN = 0.75  # of a link's bandwidth that the other half may take
_NOISY = 3  # orders with noise for each join
Halves = tuple[tuple[Demand, NDArray[np.int64]], tuple[Demand, NDArray[np.int64]]]


def with_reductions(method: Method, *, by_bandwidth: bool = False) -> Method:
    """The method, made to take reductions too: sums for one destination, and allreduce as two halves joined.

    In allreduce each block is summed at an owner: all ranks in turn, or more blocks where there is more bandwidth.
    """

    def run(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
        topology, demand = problem.topology, problem.demand
        if not demand.reduces:
            return method(problem, context)
        if demand.is_unicast:
            return _reduced(method, problem, context)
        halves = demand.halves
        if by_bandwidth:
            halves = demand.halves_at(owners_by_bandwidth(problem))
        elif demand.ready_ps is not None:
            halves = demand.halves_at(owners_on_time(demand))
        return _joined(method, topology, demand, halves, context)

    return run


def one_shot(method: Method) -> Method:
    """The method for an allreduce in which every destination reduces by itself, see `Demand.per_destination`."""

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


def owners_by_bandwidth(problem: Problem) -> NDArray[np.int32]:
    """An owner for every chunk among its destinations; the bytes that a rank owns are in proportion to its bandwidth."""
    demand = problem.demand
    bandwidth = np.maximum(problem.duplex_GBps, 1e-9)
    owned = np.zeros(len(bandwidth))
    owner = np.empty(len(demand), dtype=np.int32)
    for chunk in range(len(demand)):
        wants = demand.destinations(chunk)
        size = float(demand.chunk_bytes[chunk])
        owner[chunk] = wants[np.argmin((owned[wants] + size) / bandwidth[wants])]
        owned[owner[chunk]] += size
    return owner


def owners_on_time(demand: Demand) -> NDArray[np.int32]:
    """An owner for every chunk among its destinations: those whose own data is not late, in turn."""
    late = demand.source_rank[demand.available_ps > 0]
    owner = np.empty(len(demand), dtype=np.int32)
    for chunk in range(len(demand)):
        wants = demand.destinations(chunk)
        able = wants[~np.isin(wants, late)]
        able = able if len(able) else wants
        owner[chunk] = able[chunk // demand.pieces % len(able)]
    return owner


def _joined(
    method: Method, topology: Topology, demand: Demand, halves: Halves, context: SearchContext
) -> Iterator[Schedule | None]:
    """Both halves get better in turn, each alone or beside the other; whenever one does, they are joined again."""
    search = _Joining(method, topology, demand, halves, context)
    turn = 0
    while True:
        stride = 2 << min(search.idle_beside // 2, 5)  # less and less often where that does not help
        alone = turn < _ALONE or turn % stride or not search.beside
        both = search.each_alone() if alone else search.one_beside(turn // stride % 2)
        if search.over:
            return
        turn += 1
        yield both


class _Joining:
    """The best of each half so far, and the searches that look for better ones."""

    def __init__(
        self, method: Method, topology: Topology, demand: Demand, halves: Halves, context: SearchContext
    ) -> None:
        self.method, self.topology, self.demand, self.context = method, topology, demand, context
        self.demands, self.chunks = (halves[0][0], halves[1][0]), (halves[0][1], halves[1][1])
        self.searches = [self._search(half, topology, context) for half in (0, 1)]
        self.best: list[Schedule | None] = [None, None]
        self.alone_ps = [float("inf"), float("inf")]  # the best finish of each half alone
        self.joiner = _Joiner(demand, context)
        self.best_ps: int | None = None
        self.over = False
        self.idle_beside = 0
        self.beside = not topology.has_extra_constraints and len(topology.links) <= _MOST_BESIDE

    def _search(self, half: int, topology: Topology, context: SearchContext) -> Iterator[Schedule | None]:
        problem = Problem(topology, self.demands[half])
        return _reduced(self.method, problem, context) if half == 0 else self.method(problem, context)

    def each_alone(self) -> Schedule | None:
        """One step of both searches; the halves joined where one of them got better, here or by another method."""
        found = [next(search, "over") for search in self.searches]
        self.over = found == ["over", "over"]
        better = [self._take(half, part) for half, part in enumerate(found)]
        return self._join(self.best) if any(better) else None

    def _take(self, half: int, found: Schedule | str | None) -> bool:
        """Keep the best of a half that was found here, which others hear of, or elsewhere."""
        if isinstance(found, Schedule):
            self.context.incumbents.report(found)
        heard = self.context.incumbents.schedules.get(Problem(self.topology, self.demands[half]))
        parts = [part for part in (found, heard) if isinstance(part, Schedule)]
        best = min(parts, key=lambda part: part.finish_ps, default=None)
        if best is None or best.finish_ps >= self.alone_ps[half]:
            return False
        self.best[half], self.alone_ps[half] = self._of_all(half, best), best.finish_ps
        return True

    def one_beside(self, half: int) -> Schedule | None:
        """A new plan of one half, on a machine where links are slower that the other half uses; None if no better."""
        other = self.best[1 - half]
        if self.best_ps is None or other is None:
            return None
        machine = _what_is_left(self.topology, other, self.best_ps)
        own = replace(self.context.incumbents, schedules={}, reported=[], reported_hints=[])
        context = replace(self.context, seed=int(self.joiner.random.integers(1 << 30)), incumbents=own)
        part = None
        try:
            for _, found in zip(range(_STEPS_BESIDE), self._search(half, machine, context), strict=False):
                part = found or part
        except DemandError:  # a method for machines that look alike from every GPU: this one no longer does
            self.beside = False
        self.idle_beside += 1
        if part is None:
            return None
        pair = list(self.best)
        pair[half] = self._of_all(half, left_shift(replace(part, topology=self.topology)))
        before = self.best_ps
        both = self._join(pair)
        if both is not None and both.finish_ps < before:
            self.best, self.idle_beside = pair, 0
        return both

    def _of_all(self, half: int, part: Schedule) -> Schedule:
        """A schedule of a half with the chunks of the whole."""
        return replace(part, demand=self.demand, chunk=self.chunks[half][part.chunk].astype(np.int32))

    def _join(self, pair: list[Schedule | None]) -> Schedule | None:
        if pair[0] is None or pair[1] is None:
            return None
        both = self.joiner.join(pair[0], pair[1])
        self.best_ps = both.finish_ps if self.best_ps is None else min(self.best_ps, both.finish_ps)
        return both


def _what_is_left(topology: Topology, other: Schedule, finish_ps: int) -> Topology:
    """The machine with links slower by the share of the time that the other schedule uses them."""
    timing = other.timing
    held = np.bincount(timing.hop_link, timing.hop_to_ps - timing.hop_from_ps, len(topology.links))
    left = (1 - _MOST_TAKEN * np.minimum(held / max(finish_ps, 1), 1)).tolist()
    links = [
        replace(link, bandwidth_GBps=link.bandwidth_GBps * share)
        for link, share in zip(topology.links, left, strict=True)
    ]
    return replace(topology, links=tuple(links))


class _Joiner:
    """Joins two halves: every link works off the first half before the second, or who has the longest way to go.

    The other orders are left out when they did not help a few times, in this search or in others on the same context.
    """

    def __init__(self, demand: Demand, context: SearchContext) -> None:
        self.demand, self.context = demand, context
        self.random = np.random.default_rng(context.seed)
        self.joins = 0

    @property
    def idle(self) -> int:
        """How many times in a row the other orders did not help."""
        told = self.context.incumbents.hints.get("joins without help", 0)
        return told if isinstance(told, int) else 0

    def join(self, first: Schedule, second: Schedule) -> Schedule:
        """The best of all orders."""
        self.joins += 1
        joined = concatenate(first, second, self.demand)
        mixed = self._mixed(joined) if self.idle < _PATIENCE and can_list_schedule(joined) else None
        best = joined if mixed is None or mixed.finish_ps >= joined.finish_ps else mixed
        self.context.incumbents.report_hint("joins without help", 0 if best is mixed else self.idle + 1, best.finish_ps)
        return best

    def _mixed(self, joined: Schedule) -> Schedule | None:
        """The longest way first; after the first joins also with noise."""
        ways = ListScheduler(joined)
        best = ways.in_order_of(-ways.tail_ps)
        for _ in range(_NOISY if best is not None and self.joins > _ALONE else 0):
            noise = 10 ** self.random.uniform(-2, -0.3) * self.random.uniform(-1, 1, len(joined))
            found = ways.in_order_of(-ways.tail_ps * (1 + noise))
            if found is not None and best is not None and found.finish_ps < best.finish_ps:
                best = found
        return best


def _late_as_leaves(topology: Topology, demand: Demand) -> tuple[Topology, NDArray[np.int64] | None]:
    """The machine on which to add up when some data is late: nothing goes through GPUs that wait for their own.

    With the number that each link left has in the whole machine; None where it is the whole machine.
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
    except DemandError:  # only through a late GPU can some of the others be reached
        return topology, None
    return view, kept
