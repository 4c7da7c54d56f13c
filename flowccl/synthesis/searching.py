"""The search of a synthesis: its budget, methods, lower bound and portfolio."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from math import inf

from flowccl import by_name
from flowccl.adapters.runtime import on_the_runtime
from flowccl.auto.chunk_counts import ChunkCounts
from flowccl.auto.params import AutoParams
from flowccl.auto.search import PortfolioSearch
from flowccl.bounds.lower_bound import Bound
from flowccl.compilation import compile_missing, load, processors, units_of
from flowccl.lowered import LoweringTime, program_s
from flowccl.memory import MemoryWatch, most_deliveries
from flowccl.methods.method_info import MethodInfo
from flowccl.methods.registry import info_of, load_method, on_the_machine
from flowccl.problem import Problem
from flowccl.result import Progress
from flowccl.runtimes.machine import largest_group, least_costs
from flowccl.schedule.generation.carrying import EXPLORED, Carrier
from flowccl.schedule.generation.looping import has_parts
from flowccl.schedule.schedule import Schedule
from flowccl.search.bound_search import BoundSearch
from flowccl.search.budget import Budget
from flowccl.search.context import Method, SearchContext
from flowccl.search.incumbents import Incumbents
from flowccl.synthesis.loop_search import LoopSearch
from flowccl.synthesis.prepare import Task
from flowccl.verifier.verify import verify

log = logging.getLogger(__name__)

Methods = dict[str, Method]
_LOOPS_PART = 0.15  # of the time limit, for threadblocks that repeat their operations, after all other methods
_LOOPS_SHARE = 1 / 3  # of the time so far, for the same between the rounds of the search


class TaskSearch:
    """The search of a task. Its time limit starts at `began_s`; what is compiled, once per installation, is added."""

    def __init__(
        self, task: Task, on_phase: Callable[[str], None], should_stop: Callable[[], bool], began_s: float
    ) -> None:
        options, target, first = task.options, task.target, task.problem.demand
        self.task, self.should_stop = task, should_stop
        self.watch, self.lowering = MemoryWatch(), LoweringTime()
        programs = target.limits is not None and target.limits.one_sided
        repeats = programs and has_parts(first)
        self.for_loops_s = _LOOPS_PART * options.time_limit_s if repeats else 0.0
        self.repeated: list[Schedule] = []  # schedules whose threadblocks repeat their operations
        lowering_s: Callable[[], float] = float if target.is_ideal else self.lowering  # 0.0 without a runtime
        budget = Budget(
            options.time_limit_s,
            options.steps,
            should_stop=lambda: should_stop() or self.watch(),
            kept_s=lambda: lowering_s() + self.portfolio.verifying_s + self.for_loops_s,
        )
        self.context = SearchContext(budget, seed=options.seed, options=task.method_options)
        names = task.method_names
        compile_s = compile_missing(units_of(names, programs=programs), on_phase)
        if compile_s:
            self.context.notes["compile_s"] = round(compile_s, 1)
        on_phase("searching")
        budget.start(began_s + compile_s)
        adapted, self.carrier = self._adapter()
        self.loops = None if not repeats or self.carrier is None else LoopSearch(self.carrier.looper, self._fits)
        methods = adapted({name: load_method(name) for name in names})
        self.bounds = BoundSearch(_bounded(task), self.context, options.gap, largest_group(task.topology, target))
        params = AutoParams()
        fitting = params.max_deliveries if options.steps is not None else most_deliveries(task.problem.topology, first)
        self.has_fewer_chunks = fitting < params.max_deliveries
        most = min(params.max_deliveries, fitting)
        self.portfolio = PortfolioSearch(
            task.searched.topology,
            ChunkCounts(task.searched_of, task.least_chunk_bytes, most, for_runtime=not target.is_ideal),
            methods,
            self.context,
            min(options.workers, processors()),  # arms on the same processor only delay each other
            cache(partial(_useful_chunks, task=task, context=self.context)),
            params,
            self.carrier,
            self._with_loops,
            load=lambda name: load(units_of([name])),
        )
        self.best: Schedule | None = None
        self.trace: list[Progress] = []
        self.interrupted = False

    def run(self, on_progress: Callable[[Progress], None] | None) -> None:
        """Search until the portfolio stops, or Ctrl-C stops it."""
        try:
            for best in self.portfolio.run():  # each verified
                self._improved(best, on_progress)
            self._repeat(on_progress)
        except KeyboardInterrupt:
            log.warning("interrupted")
            self.interrupted = True
        self.interrupted = self.interrupted or self.should_stop()

    def found(self) -> list[Schedule]:
        """The schedules to choose from."""
        return [*self.portfolio.found(), *self.repeated]

    def _with_loops(self, best_ps: float) -> Iterator[Schedule]:
        """After a round of the search: schedules whose threadblocks repeat their operations, better than all before."""
        noted = [] if self.carrier is None else self.carrier.take_noted()
        if self.loops is None or self.carrier is None:
            return
        budget, loops = self.context.budget, self.loops
        loops.see(self.portfolio.found())
        loops.see_once(noted)
        share_s = inf if budget.steps is not None else _LOOPS_SHARE * budget.elapsed_s
        yield from self._verified(loops.trials(best_ps, lambda seconds: loops.seconds + seconds <= share_s))

    def _repeat(self, on_progress: Callable[[Progress], None] | None) -> None:
        """After the search: more schedules whose threadblocks repeat their operations, and variants of the best one.

        That lasts as long as was kept for it, and longer where the search left more time.
        """
        budget, end_s, self.for_loops_s = self.context.budget, self.context.budget.elapsed_s + self.for_loops_s, 0.0
        if self.loops is None or self.best is None or self.best.finish_ps <= budget.good_ps or budget.should_stop():
            return

        def may_take(seconds: float) -> bool:
            return budget.elapsed_s + seconds < end_s or not budget.over()

        for found in self._verified(self.loops.trials(self.best.finish_ps, may_take)):
            self._improved(found, on_progress)
        for found in self._verified(self.loops.variants(self.best.finish_ps, may_take)):
            self._improved(found, on_progress)

    def _verified(self, trials: Iterator[Schedule | None]) -> Iterator[Schedule]:
        """The valid schedules of some trials with loops, until one is good enough."""
        for found in trials:
            if found is not None and not verify(found):
                self.repeated.append(found)
                yield found
                if found.finish_ps <= self.context.budget.good_ps:
                    return
            if self.context.budget.should_stop():
                return

    def _fits(self, seconds: float, messages: int, loops: int) -> bool:
        """Whether there is time for some seconds of the search, and then for a program with loops."""
        return self.context.budget.after_s >= seconds + program_s(messages, loops)

    def bound(self) -> Bound:
        """The best lower bound, of the search for bounds or one that a method proved."""
        bound = self.bounds.result(None if self.interrupted else self.best)
        if self.task.target.is_ideal and not self.task.topology.has_overheads:
            ps, witness = self.context.incumbents.proved
            return Bound(ps, "rates", witness) if ps > bound.ps else bound
        return bound

    def _improved(self, best: Schedule, on_progress: Callable[[Progress], None] | None) -> None:
        self.best = best
        found_s = self.context.budget.elapsed_s
        self.bounds.begin()
        self.lowering.see(best)
        bound_us = self.bounds.bound.us if self.bounds.bound else None
        self.trace.append(Progress(best.finish_us, bound_us, best.method, found_s))
        log.debug("%s: finish %g us after %.2f s", best.method, best.finish_us, found_s)
        if on_progress:
            on_progress(self.trace[-1])

    def _adapter(self) -> tuple[Callable[[Methods], Methods], Carrier | None]:
        """How methods are adapted to the runtime or to lanes, and what carries out their schedules on the runtime."""
        task = self.task
        if task.target.is_ideal:
            lanes = task.lanes
            return lambda methods: methods if lanes is None else on_the_machine(methods, lanes.original), None
        assert task.sms is not None
        carrier = Carrier(task.target, task.problem.topology, task.sms, has_time=self._has_time)
        return partial(_on_the_runtime, carrier, _inner(self.context, self._is_good)), carrier

    def _has_time(self, seconds: float) -> bool:
        """Whether there is time for one more variant of a schedule; none once a schedule is good enough."""
        return not self._is_good() and self.context.budget.has_time(seconds)

    def _is_good(self) -> bool:
        """Whether the gap is reached, which steps in progress need not wait for; no where steps are counted."""
        budget = self.context.budget
        return budget.steps is None and self.portfolio.reached_ps <= budget.good_ps


def _on_the_runtime(carrier: Carrier, inner: SearchContext, methods: Methods) -> Methods:
    """The methods for schedules that a runtime carries out."""
    return {name: _for_runtime(info_of(name), carrier, inner) for name in methods}


def _for_runtime(info: MethodInfo, carrier: Carrier, inner: SearchContext) -> Method:
    """A method for schedules that a runtime carries out."""
    if info.by_orbits:
        return lambda problem, context: by_name.load(info.by_orbits)(problem, context, carrier)
    return on_the_runtime(
        load_method(info.name, every=True),
        carrier,
        inner,
        operations=info.operations,
        by_rate=info.by_rate,
        variants=info.variants,
    )


def _inner(context: SearchContext, is_good: Callable[[], bool]) -> SearchContext:
    """The context of methods that plan on another machine than the one whose times count, until `is_good` says so."""
    context.incumbents.inner = Incumbents()
    should_stop = context.budget.should_stop
    budget = replace(context.budget, good_ps=0.0, should_stop=lambda: should_stop() or is_good())
    return SearchContext(budget, context.incumbents.inner, context.seed, context.options, context.notes)


def _bounded(task: Task) -> Problem:
    """The problem of which a lower bound holds for every schedule that the runtime can carry out."""
    if task.target.is_ideal:
        return task.problem
    return Problem(least_costs(task.topology, task.target), task.problem.demand)


def _useful_chunks(name: str, *, task: Task, context: SearchContext) -> int:
    """The number of chunks with which a method is good; the least if not known.

    On runtimes, reductions have at least two chunks: a GPU sends one while it reduces the other.
    """
    info, demand, is_ideal = info_of(name), task.problem.demand, task.target.is_ideal
    least = 2 if demand.reduces and not is_ideal else 1
    useful = least if info.useful_chunks is None else max(least, info.useful_chunks(task.planned, context))
    if not is_ideal:  # many variants are tried only of schedules that are small enough
        useful = min(useful, max(least, EXPLORED // max(len(demand.destination_rank), 1)))
    return useful
