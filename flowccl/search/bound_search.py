"""The search for a lower bound, beside the search for a schedule."""

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

from flowccl.bounds.lower_bound import Bound, lower_bound, tightened
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext

_TIGHTEN_AFTER, _TIGHTEN_FOR = 0.1, 0.2  # fractions of the time limit: when a tighter bound is sought, for how long
_SAFETY = 1.5  # times what comes after the search must be left when the bound ends
_WORTH_TIGHTENING = 0.02  # gap above which that is done


class BoundSearch:
    """Computes the lower bound in a thread of its own, and a tighter one later where the gap is still large.

    Where steps are counted, the search waits for the bound, so that the result does not depend on the computer. `group`
    is that of `lower_bound`.
    """

    def __init__(self, problem: Problem, context: SearchContext, gap: float, group: int = 0) -> None:
        self.problem, self.context, self.gap, self.group = problem, context, gap, group
        self.bound: Bound | None = None
        self.tried_tighter = False
        self.ended = Event()
        self.pool = ThreadPoolExecutor(1)
        self.job: Future[None] | None = None

    def begin(self) -> None:
        """Start with the first schedule; later calls do nothing."""
        if self.job is None:
            self.job = self.pool.submit(self._run)
        if self.context.budget.steps is not None:
            self.job.result()

    def result(self, best: Schedule | None) -> Bound:
        """The best bound; where there is a schedule and the tighter bound was not tried yet, that is done now."""
        self.ended.set()
        self.pool.shutdown()
        if self.job is not None:
            self.job.result()
        bound = self.bound or self._simple()
        return bound if best is None or self.tried_tighter else self._tighter(bound, best.finish_ps)

    def _run(self) -> None:
        bound, budget = self._simple(), self.context.budget
        wait_s = max(_TIGHTEN_AFTER * budget.time_limit_s - budget.elapsed_s, 0.0)
        if budget.steps is None and not self.ended.wait(wait_s):
            self._tighter(bound, self.context.incumbents.best_ps)

    def _simple(self) -> Bound:
        return self._keep(lower_bound(self.problem.topology, self.problem.demand, self._is_late, self.group))

    def _is_late(self) -> bool:
        """Whether the search has ended, and what comes after it needs the time that is left."""
        budget = self.context.budget
        return self.ended.is_set() and (budget.should_stop() or budget.after_s <= _SAFETY * budget.kept_s())

    def _tighter(self, bound: Bound, finish_ps: float) -> Bound:
        if finish_ps == float("inf"):  # the first round is not over yet
            return bound
        self.tried_tighter = True
        if finish_ps <= bound.ps * (1 + _WORTH_TIGHTENING):
            return bound
        budget = self.context.budget
        limit_s = min(_TIGHTEN_FOR * budget.time_limit_s, budget.after_s - _SAFETY * budget.kept_s())
        if limit_s <= 0:
            return bound
        return self._keep(tightened(self.problem.topology, self.problem.demand, bound, int(finish_ps), limit_s))

    def _keep(self, bound: Bound) -> Bound:
        """Tell the search which completion time is good enough."""
        self.bound = bound
        self.context.incumbents.bound_ps, self.context.budget.good_ps = bound.ps, bound.ps * (1 + self.gap)
        return bound
