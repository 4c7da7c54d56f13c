"""One method at one number of chunks, and a method on its way up the ladder of such numbers."""

from collections.abc import Iterator
from dataclasses import dataclass

from flowccl.methods.clock import Clock
from flowccl.methods.traits import traits_of
from flowccl.schedule.schedule import Schedule

_WHILE_S, _WHILE = 0.5, 10  # what was won in so many seconds or steps may be won again
_MOST_WON = 0.05  # of its finish
_TIRED, _USUAL = 2e-4, 5_000  # a step without success on so many deliveries counts as so much of the finish


@dataclass
class Search:
    """One method at one number of chunks."""

    name: str
    count: int
    steps: Iterator[Schedule | None]
    deliveries: int
    best_ps: float = float("inf")
    seconds: float = 0.0
    first_s: float = 0.0
    spent: float = 0.0  # seconds; steps, where they are counted
    pace: float = 0.0  # how much of its finish it won lately
    taken: int = 0
    idle: int = 0
    over: bool = False
    busy: bool = False  # it makes a step

    @property
    def standing(self) -> float:
        """Its best finish, earlier by what it wins in a while, later for every step that has brought nothing since."""
        tired = _TIRED * self.idle * max(self.deliveries / _USUAL, 1.0)
        return self.best_ps * (1 + tired - min(self.pace, _MOST_WON))

    def step(self, clock: Clock) -> Schedule | None:
        """The next step: what it found, or None."""
        began = clock.elapsed_s
        found = next(self.steps, "over")
        self.seconds = clock.elapsed_s - began
        self.first_s = self.first_s or self.seconds
        self.spent += self.seconds if clock.steps is None else 1
        self.taken += 1
        self.idle += 1
        if isinstance(found, str):
            self.over = True
            return None
        won = 0.0
        if found is not None and found.finish_ps < self.best_ps:
            won = 0.0 if self.taken == 1 else 1 - found.finish_ps / self.best_ps
            self.best_ps, self.idle = found.finish_ps, 0
        part = min(self.seconds / _WHILE_S, 1 / _WHILE) if clock.steps is None else 1 / _WHILE
        self.pace = self.pace * (1 - part) + won
        return found


@dataclass
class Climber:
    """A method on the ladder."""

    name: str
    best_ps: float = float("inf")
    idle: int = 0
    count: int = 1
    seconds: float = 0.0
    may_be_behind: float = 2.0  # so many times as late as the best of all

    def above(self, wanted: int) -> int:
        """The next number of chunks; the one that is wanted follows the first."""
        return wanted if self.count < wanted else next_rung(self.name, self.count)

    def seconds_above(self, wanted: int) -> float:
        """How long a step takes there, if it takes longer as there are more chunks."""
        return self.seconds * self.above(wanted) / self.count

    def climbed(self, search: Search, best_ps: float) -> None:
        """Take note of a rung; from who is far behind the best of all, more is expected."""
        helped = 1e-4 if search.best_ps <= 1.05 * best_ps else 1e-2
        self.idle = 0 if search.best_ps < self.best_ps * (1 - helped) else self.idle + 1
        self.may_be_behind = 2.0 if search.best_ps < self.best_ps * 0.95 else 1.2
        self.best_ps = min(self.best_ps, search.best_ps)
        self.count, self.seconds = search.count, search.seconds


def next_rung(name: str, count: int) -> int:
    """The number of chunks after this one, of 1, 2, 3, 4, 6, 8, 12, 16, 24, ...; some methods take few of them."""
    power = 1 << (count.bit_length() - 1)
    between = power * 3 // 2
    return between if power > 1 and count < between and not traits_of(name).few_rungs else 2 * power
