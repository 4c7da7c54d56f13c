"""One method at one number of chunks, and a method on its way up the ladder of such numbers."""

from collections.abc import Iterator
from dataclasses import dataclass

from flowccl.methods.clock import Clock
from flowccl.methods.traits import traits_of
from flowccl.schedule.schedule import Schedule

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
    taken: int = 0
    idle: int = 0
    over: bool = False

    @property
    def standing(self) -> float:
        """Its best finish, a little later for every step that has brought nothing since; more so for long ones."""
        return self.best_ps * (1 + _TIRED * self.idle * max(self.deliveries / _USUAL, 1.0))

    def step(self, clock: Clock) -> Schedule | None:
        """The next step: what it found, or None."""
        began = clock.elapsed_s
        found = next(self.steps, "over")
        self.seconds = clock.elapsed_s - began
        self.first_s = self.first_s or self.seconds
        self.taken += 1
        self.idle += 1
        if isinstance(found, str):
            self.over = True
            return None
        if found is not None and found.finish_ps < self.best_ps:
            self.best_ps, self.idle = found.finish_ps, 0
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

    def climbed(self, count: int, search: Search, best_ps: float) -> None:
        """Take note of a rung; from who is far behind the best of all, more is expected."""
        helped = 1e-4 if search.best_ps <= 1.05 * best_ps else 1e-2
        self.idle = 0 if search.best_ps < self.best_ps * (1 - helped) else self.idle + 1
        self.may_be_behind = 2.0 if search.best_ps < self.best_ps * 0.95 else 1.2
        self.best_ps = min(self.best_ps, search.best_ps)
        self.count, self.seconds = count, search.seconds


def has_rung(name: str, count: int) -> bool:
    """Whether a method takes this number of chunks."""
    return count & (count - 1) == 0 or not traits_of(name).few_rungs


def numbers_of_chunks(wanted: int = 1) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, 24, ...; without those between 1 and the one that is wanted."""
    yield 1
    if wanted > 1:
        yield wanted
    power = 2
    while True:
        for count in (power, power * 3 // 2):
            if count > wanted:
                yield count
        power *= 2
