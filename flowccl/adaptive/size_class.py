"""Adaptive selection: choose among several algorithms of a size class by the times that they take on the job.

The times of a class are shared by all ranks once in `agree_every` calls; decisions depend only on shared times, so that
all ranks decide alike without talking before each call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import exp
from statistics import median
from typing import Any

from flowccl.adaptive.drift import DriftTest
from flowccl.errors import InputError
from flowccl.wording import percent

FORMAT = "flowccl-adaptive-state"
Share = Callable[[list[float]], list[float]]
"""Gives all ranks the same numbers, for example the largest of all ranks: one collective of a few bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveParams:
    """Parameters of adaptive selection.

    agree_every  calls between two exchanges of times
    exploration  largest part of the time that may be lost to algorithms other than the best one
    tries        calls of an algorithm before it is compared
    keep         times of an algorithm that are kept; their median counts
    """

    agree_every: int = 8
    exploration: float = 0.03
    tries: int = 4
    keep: int = 16

    def __post_init__(self) -> None:
        if min(self.agree_every, self.tries, self.keep) < 1 or not 0 <= self.exploration <= 1:
            raise InputError("AdaptiveParams: counts must be at least 1, exploration between 0 and 1")


@dataclass(frozen=True, slots=True)
class Alarm:
    """A drift: the algorithm, the call since which it is late, its usual time and its time now."""

    algorithm: str
    since_call: int
    usual_us: float
    now_us: float

    def __str__(self) -> str:
        later = percent(self.now_us / self.usual_us - 1)
        return f"{self.algorithm} is slow since call {self.since_call:,}: {later} later than before"


@dataclass
class _Algorithm:
    """The times of one algorithm: predicted, and measured."""

    name: str
    predicted_us: float
    times_us: list[float] = field(default_factory=list)

    def expected_us(self, tries: int, scale: float = 1.0) -> float:
        """The median of the measured times; the prediction, scaled to this job, while there are too few."""
        return median(self.times_us) if len(self.times_us) >= tries else self.predicted_us * scale


class SizeClass:
    """The algorithms of one collective and range of sizes, and which of them is used."""

    def __init__(self, algorithms: dict[str, float], share: Share, params: AdaptiveParams | None = None) -> None:
        if not algorithms:
            raise InputError("a size class needs at least one algorithm")
        self.params, self.share = params or AdaptiveParams(), share
        self.algorithms = [_Algorithm(name, us) for name, us in algorithms.items()]
        self.test = DriftTest()
        self.calls = 0
        self.spent_us = 0.0
        self.lost_us = 0.0
        self.alarms: list[Alarm] = []
        self._own: list[float] = []
        self._current = self._best()

    @property
    def usual_us(self) -> float | None:
        """The usual time of the best algorithm, once it is known."""
        return exp(self.test.usual) if self.test.usual else None

    @property
    def current(self) -> str:
        """The algorithm of the next call."""
        return self.algorithms[self._current].name

    def add(self, time_us: float) -> Alarm | None:
        """Count the time of a call of the current algorithm; return an alarm if drift was found."""
        self.calls += 1
        self._own.append(time_us)
        if len(self._own) < self.params.agree_every:
            return None
        shared, self._own = self.share(self._own), []
        return self._decide(shared)

    def _decide(self, shared: Sequence[float]) -> Alarm | None:
        """Take over the shared times, and choose the algorithm until the next exchange."""
        used, best = self.algorithms[self._current], self._best()
        used.times_us = [*used.times_us, *shared][-self.params.keep :]
        self.spent_us += sum(shared)
        alarm = None
        if self._current == best:
            alarm = self._drift(used, shared)
        else:
            usual = self.algorithms[best].expected_us(self.params.tries)
            self.lost_us += max(sum(shared) - usual * len(shared), 0.0)
        if alarm is not None:
            self._forget(used, shared)
        self._current = self._next()
        return alarm

    def _drift(self, used: _Algorithm, shared: Sequence[float]) -> Alarm | None:
        late = [self.test.add(time) for time in shared]
        if not any(late):
            return None
        first = self.calls - self.test.calls + self.test.first_late_call
        alarm = Alarm(used.name, max(first, 1), exp(self.test.usual), median(shared))
        self.alarms.append(alarm)
        return alarm

    def _forget(self, used: _Algorithm, shared: Sequence[float]) -> None:
        """All algorithms are tried again: their times are from before the change."""
        for one in self.algorithms:
            one.times_us = list(shared) if one is used else []
        self.test = DriftTest()
        self.lost_us = self.spent_us = 0.0

    def _scale(self) -> float:
        """Measured times as a multiple of predicted ones."""
        known = [one for one in self.algorithms if len(one.times_us) >= self.params.tries and one.predicted_us > 0]
        return median(median(one.times_us) / one.predicted_us for one in known) if known else 1.0

    def _best(self) -> int:
        tries, scale = self.params.tries, self._scale()
        return min(range(len(self.algorithms)), key=lambda n: (self.algorithms[n].expected_us(tries, scale), n))

    def _next(self) -> int:
        """The best algorithm, or one without enough times where its expected loss is within the allowed part."""
        tries, best = self.params.tries, self._best()
        usual = self.algorithms[best].expected_us(tries)
        if len(self.algorithms[best].times_us) < tries:
            return best
        for n, one in sorted(enumerate(self.algorithms), key=lambda row: (row[1].predicted_us, row[0])):
            if n == best or len(one.times_us) >= tries:
                continue
            loss = self.params.agree_every * max(one.predicted_us * self._scale() - usual, usual)
            if self.lost_us + loss <= self.params.exploration * (self.spent_us + loss):
                return n
        if self._current != best:
            self.test = DriftTest()
        return best

    def to_json(self) -> dict[str, Any]:
        """The state as a JSON value, to go on later."""
        rows = [[one.name, one.predicted_us, one.times_us] for one in self.algorithms]
        return {"format": FORMAT, "algorithms": rows, "calls": self.calls, "current": self.current}

    @classmethod
    def from_json(cls, value: Any, share: Share, params: AdaptiveParams | None = None) -> "SizeClass":
        """Return the state in a JSON value that `to_json` made."""
        try:
            if value["format"] != FORMAT:
                raise InputError(f"format must be {FORMAT!r}, got {value['format']!r}")
            rows = [(str(name), float(us), [float(time) for time in times]) for name, us, times in value["algorithms"]]
            made = cls({name: us for name, us, _ in rows}, share, params)
            for one, (_, _, times) in zip(made.algorithms, rows, strict=True):
                one.times_us = times
            made.calls = int(value["calls"])
            made._current = [one.name for one in made.algorithms].index(str(value["current"]))
            return made
        except (KeyError, TypeError, ValueError, IndexError):
            raise InputError("the state of the adaptive selection cannot be read; remove it to start anew") from None
