"""The search for schedules with loops, beside that for schedules without: it tries what promises most."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import thread_time
from typing import Any

from flowccl.schedule.generation.looping import LOOPED, Looper, Policy
from flowccl.schedule.schedule import Schedule

_BETTER = 0.99  # times what was expected of a schedule with the same chunks: later ones of its method are tried again
_ALIKE = 0.001  # of what is expected: schedules with as many transfers and loops are about the same up to there
_CHANGES: tuple[dict[str, Any], ...] = (  # of the policy, tried one after the other in the best schedule
    {"most": 1.0, "leaves_capacity": True},
    {"least": 0.5},
    {"most": 0.25},
    {"least": 0.1},
    {"longest_first": True},
)
_TRANSFER_S = 1e-5  # of a trial, for each transfer, before the first one was measured


@dataclass(frozen=True, slots=True)
class _Trial:
    """A schedule in which loops may be tried, and how; `expected_ps` is about the completion time."""

    expected_ps: float
    schedule: Schedule
    loops: int
    policy: Policy

    def is_like(self, other: "_Trial") -> bool:
        """Whether both are about the same plan, found by two methods."""
        near = abs(self.expected_ps - other.expected_ps) <= _ALIKE * other.expected_ps
        return near and (len(self.schedule), self.loops) == (len(other.schedule), other.loops)


@dataclass
class LoopSearch:
    """Tries loops in the schedules that a search has found, where that may be earlier than the best one.

    `fits` says whether there is time for a trial of some seconds, and then for the program with a number of messages
    and of loops.
    """

    looper: Looper
    fits: Callable[[float, int, int], bool]
    seconds: float = 0.0  # of all trials
    seen: dict[int, Schedule] = field(default_factory=dict)
    expected: dict[tuple[str, int], float] = field(default_factory=dict)  # of a method and its number of chunks
    waiting: list[_Trial] = field(default_factory=list)
    tried: list[_Trial] = field(default_factory=list)
    best: _Trial | None = None
    transfer_s: float = 0.0

    def see(self, schedules: Sequence[Schedule]) -> None:
        """Note what is expected of schedules with loops."""
        new = [schedule for schedule in schedules if id(schedule) not in self.seen]
        self.seen |= {id(schedule): schedule for schedule in new}
        self.see_once(new)

    def see_once(self, schedules: Sequence[Schedule]) -> None:
        """The same for schedules that are not seen again, and kept only where they are promising."""
        for schedule in schedules:
            ps, loops = self.looper.expected(schedule, self._fits)
            key = schedule.method, schedule.demand.pieces
            if ps < _BETTER * self.expected.get(key, float("inf")):
                self.expected[key] = ps
                self.waiting.append(_Trial(ps, schedule, loops, LOOPED))
        self.waiting.sort(key=lambda trial: trial.expected_ps)

    def trials(self, best_ps: float, may_take: Callable[[float], bool]) -> Iterator[Schedule | None]:
        """Try what may be earlier than the best schedule, the most promising first, while there is time for one more.

        After each trial, yield a schedule that is earlier than all before, or None.
        """
        while self.waiting and self.waiting[0].expected_ps < best_ps and may_take(self._takes_s(self.waiting[0])):
            trial = self.waiting.pop(0)
            if not any(trial.is_like(other) for other in self.tried):
                found = self._run(trial, best_ps)
                best_ps = best_ps if found is None else found.finish_ps
                yield found

    def variants(self, best_ps: float, may_take: Callable[[float], bool]) -> Iterator[Schedule | None]:
        """Try other orders and rates in the best schedule with loops, or else in the most promising one.

        Then try what was best in the other schedules.
        """
        if self.best is not None and self.best.expected_ps >= best_ps:
            self.best = None  # what has been found since is earlier than all that it promises
        trial = self.best or min(self.tried, key=lambda trial: trial.expected_ps, default=None)
        if trial is None:
            return
        for change in _CHANGES:
            base = self.best or trial
            changed = replace(base, policy=replace(base.policy, **change))
            if not may_take(self._takes_s(base)):
                return
            if changed.policy != base.policy:
                found = self._run(changed, best_ps)
                best_ps = best_ps if found is None else found.finish_ps
                yield found
        base = self.best or trial
        others = [replace(other, policy=base.policy) for other in self.tried if other.policy != base.policy]
        for other in sorted(others, key=lambda trial: trial.expected_ps):
            if other.schedule is not base.schedule and other.expected_ps < best_ps and may_take(self._takes_s(other)):
                found = self._run(other, best_ps)
                best_ps = best_ps if found is None else found.finish_ps
                yield found

    def _run(self, trial: _Trial, best_ps: float) -> Schedule | None:
        began_s = thread_time()
        schedule = trial.schedule
        found = self.looper.run(schedule, trial.loops, trial.policy, int(best_ps))
        spent_s = thread_time() - began_s
        self.seconds += spent_s
        self.transfer_s = max(self.transfer_s, spent_s / (len(schedule) * trial.loops))
        self.tried.append(trial)
        if found is None or found.finish_ps >= best_ps:
            return None
        self.best = trial
        return found

    def _takes_s(self, trial: _Trial) -> float:
        return len(trial.schedule) * trial.loops * (self.transfer_s or _TRANSFER_S)

    def _fits(self, messages: int, loops: int) -> bool:
        return self.fits(messages * loops * (self.transfer_s or _TRANSFER_S), messages, loops)
