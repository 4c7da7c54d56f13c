"""Stop rules: each looks at the search and says whether to stop, and why. Without a reason the search goes on."""

from dataclasses import dataclass
from typing import Protocol

from flowccl.search.context import SearchContext

STOPPED = "the search was stopped"
NOTHING_LEFT = "no method has anything more to try"
STEPS_USED = "all counted steps were used"


class StopRule(Protocol):
    """Whether to stop, asked after every round with the work done and the best completion time so far."""

    @property
    def reason(self) -> str:
        """Why the search ends, in a few words."""

    def __call__(self, work_s: float, best_ps: float) -> bool:
        """Whether to stop."""


@dataclass
class TimeLimit:
    """Stop when the time is over, or on request; with a schedule in hand."""

    context: SearchContext

    @property
    def reason(self) -> str:
        """The time, or the request."""
        return STOPPED if self.context.budget.should_stop() else "the time limit was reached"

    def __call__(self, work_s: float, best_ps: float) -> bool:
        """Whether the budget is used up."""
        return best_ps < float("inf") and (self.context.budget.left_s <= 0 or self.context.budget.should_stop())


@dataclass
class GapReached:
    """Stop when the best completion time is within the gap of the lower bound."""

    context: SearchContext
    reason: str = "the requested gap was reached"

    def __call__(self, work_s: float, best_ps: float) -> bool:
        """Whether the gap is reached, or the schedule is optimal."""
        return best_ps <= max(self.context.budget.good_ps, self.context.incumbents.bound_ps)
