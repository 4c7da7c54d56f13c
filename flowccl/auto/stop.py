"""Stop rules: each looks at the search and says whether to stop."""

from dataclasses import dataclass, field
from typing import Protocol

from flowccl.search.context import SearchContext


class StopRule(Protocol):
    """Whether to stop, asked after every round with the work done and the best completion time so far."""

    def __call__(self, work_s: float, best_ps: float) -> bool:
        """Whether to stop."""


@dataclass
class TimeLimit:
    """Stop when the time is over, or on request; with a schedule in hand."""

    context: SearchContext

    def __call__(self, work_s: float, best_ps: float) -> bool:
        """Whether the budget is used up."""
        return best_ps < float("inf") and (self.context.budget.left_s <= 0 or self.context.budget.should_stop())


@dataclass
class GapReached:
    """Stop when the best completion time is within the gap of the lower bound."""

    context: SearchContext

    def __call__(self, work_s: float, best_ps: float) -> bool:
        """Whether the gap is reached, or the schedule is optimal."""
        return best_ps <= max(self.context.budget.good_ps, self.context.incumbents.bound_ps)


@dataclass
class NoImprovement:
    """Stop when the second half of all work improved the schedule by less than `least` (a fraction); 0: never."""

    least: float
    min_work_s: float
    history: list[tuple[float, float]] = field(default_factory=list)

    def __call__(self, work_s: float, best_ps: float) -> bool:
        """Whether the last half of the work was in vain."""
        self.history.append((work_s, best_ps))
        if not self.least or work_s < self.min_work_s:
            return False
        then_ps = [ps for done_s, ps in self.history if done_s <= work_s / 2]
        return bool(then_ps) and best_ps > then_ps[-1] * (1 - self.least)
