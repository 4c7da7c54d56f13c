"""Detection of drift: a change-point test on the times of calls."""

from dataclasses import dataclass, field
from math import log
from statistics import median

_WARM_UP = 16  # calls of which the median is the usual time: fewer are too uncertain
_SMALLEST_SPREAD = 0.02  # of log times; timers and queues vary by at least this
_MAD_TO_SIGMA = 1.4826  # of a normal distribution


@dataclass
class DriftTest:
    """A one-sided CUSUM (Page 1954) on the logarithm of times, against a usual time learnt from the first calls.

    `slack` and `threshold` are in standard deviations: changes below `slack` are ignored, and an alarm is raised when
    the excess over `slack` adds up to `threshold`. One call counts at most `most`, so that an outlier is no alarm.
    """

    slack: float = 1.0
    threshold: float = 12.0
    most: float = 3.0
    first: list[float] = field(default_factory=list)
    usual: float = 0.0
    spread: float = 0.0
    excess: float = 0.0
    since: int = 0
    calls: int = 0

    def add(self, time_us: float) -> bool:
        """Count one call; return whether times have changed."""
        self.calls += 1
        value = log(max(time_us, 1e-9))
        if len(self.first) < _WARM_UP:
            self.first.append(value)
            if len(self.first) == _WARM_UP:
                self.usual = median(self.first)
                deviation = median(abs(one - self.usual) for one in self.first)
                self.spread = max(_MAD_TO_SIGMA * deviation, _SMALLEST_SPREAD)
            return False
        step = min((value - self.usual) / self.spread - self.slack, self.most)
        if self.excess + step <= 0:
            self.excess, self.since = 0.0, self.calls
            return False
        self.excess += step
        return self.excess > self.threshold

    @property
    def first_late_call(self) -> int:
        """The call from which times are later, counted from 1."""
        return self.since + 1
