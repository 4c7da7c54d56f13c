"""The budget of a search: seconds, counted steps, a completion time that is good enough, and a request to stop."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

_GRACE, _LEAST_GRACE_S = 0.1, 3.0  # by which all of a synthesis may exceed the time limit: a tenth, at least 3 s
_WRITING_S = 0.5  # of that: metrics, printing, and the end of the process


@dataclass
class Budget:
    """How long a search may run.

    `steps` bounds the number of counted steps; results then do not depend on the speed of the computer. `good_ps` is
    the completion time at which to stop: the lower bound times (1 + gap). `should_stop` is polled often. `kept_s` are
    seconds of the time limit that what comes after the search will take; at most half of it is kept.
    """

    time_limit_s: float
    steps: int | None = None
    good_ps: float = 0.0
    should_stop: Callable[[], bool] = lambda: False
    started: float = field(default_factory=time.monotonic)
    kept_s: Callable[[], float] = lambda: 0.0
    began: float = field(default_factory=time.monotonic)

    def start(self, began_s: float) -> None:
        """Start the search of a synthesis that began then: it loses what loading takes beyond half of the grace."""
        self.began = began_s
        self.started = min(time.monotonic(), began_s + self.grace_s / 2)

    @property
    def grace_s(self) -> float:
        """Seconds by which a synthesis may exceed the time limit."""
        return max(_GRACE * self.time_limit_s, _LEAST_GRACE_S)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def left_s(self) -> float:
        """Seconds left for the search: of the time limit, and of all that a synthesis may take."""
        kept_s, most_s = self.kept_s(), self.time_limit_s / 2
        whole_s = self.after_s - min(kept_s, most_s + self.grace_s - _WRITING_S)
        return min(self.time_limit_s - min(kept_s, most_s) - self.elapsed_s, whole_s)

    @property
    def after_s(self) -> float:
        """Seconds left for what comes after the search; infinite where steps are counted."""
        return self.part_s(1.0) + self.grace_s - _WRITING_S - (time.monotonic() - self.began)

    def part_s(self, part: float) -> float:
        """A part of the time limit in seconds; infinite where steps are counted."""
        return float("inf") if self.steps is not None else part * self.time_limit_s

    def has_time(self, seconds: float) -> bool:
        """Whether this many seconds are left; always where steps are counted."""
        return self.steps is not None or seconds <= self.left_s

    def over(self, finish_ps: float = float("inf")) -> bool:
        """Whether to stop, given the completion time of the best schedule so far."""
        return finish_ps <= self.good_ps or self.left_s <= 0 or self.should_stop()
