"""One method at one number of chunks, and a method on its way up the ladder of such numbers."""

from collections.abc import Iterator
from dataclasses import dataclass

from flowccl.demand.demand import Demand
from flowccl.methods.registry import REGISTRY
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.search.traits import Traits

_WHILE_S, _WHILE = 0.5, 10  # what was won in so many seconds of work or steps may be won again
_MOST_WON = 0.05  # of its finish
_TIRED, _USUAL = 2e-4, 5_000  # a step without success on so many deliveries counts as so much of the finish
_STEP_S, _EACH_S = 0.003, 4e-6  # the work of a step, and for each delivery and contribution, as measured
_FIRST = 5  # times as much for a first step
_SLOW = 30  # a search that takes so many times as long as its work says is slow


_REFINE = Traits(first_step_work=0.2)


def traits_of(name: str) -> Traits:
    """Traits of a method by its name."""
    if name in REGISTRY:
        return REGISTRY[name].traits
    return _REFINE if name == "refine" else Traits()


def work_s(name: str, demand: Demand, first: bool) -> float:
    """Seconds that a step takes on a usual computer: counted, so that they are the same on any and every time."""
    each = len(demand.destination_rank) + len(demand.source_rank) - len(demand)
    traits = traits_of(name)
    return max((_STEP_S + _EACH_S * each) * (_FIRST * traits.first_step_work if first else 1), traits.step_s)


@dataclass
class Search:
    """One method at one number of chunks."""

    name: str
    count: int
    demand: Demand
    steps: Iterator[Schedule | None]
    best: Schedule | None = None
    best_ps: float = float("inf")
    slow: float = 1.0
    seconds: float = 0.0  # that its last step took
    first_s: float = 0.0  # and its first
    worked_s: float = 0.0
    pace: float = 0.0  # how much of its finish it won lately
    taken: int = 0
    idle: int = 0
    over: bool = False

    @property
    def cost_s(self) -> float:
        """Of work, its next step."""
        return work_s(self.name, self.demand, first=self.taken == 0) * self.slow

    @property
    def standing(self) -> float:
        """Its best finish, earlier by what it wins in a while, later for every step that has brought nothing since."""
        tired = _TIRED * self.idle * max(len(self.demand.destination_rank) / _USUAL, 1.0)
        return self.best_ps * (1 + tired - min(self.pace, _MOST_WON))

    def step(self, context: SearchContext) -> Schedule | None:
        """The next step: what it found, or None."""
        began, cost_s = context.budget.elapsed_s, self.cost_s
        found = next(self.steps, "over")
        self.seconds = context.budget.elapsed_s - began
        slow = max(self.seconds / cost_s / _SLOW, 1.0) if context.budget.steps is None else 1.0
        self.worked_s += slow * cost_s
        self.taken += 1
        self.idle += 1
        if self.taken == 1:
            self.first_s, self.slow = self.seconds, slow
        if isinstance(found, str):
            self.over = True
            return None
        won = 0.0
        if found is not None and found.finish_ps < self.best_ps:
            won = 0.0 if self.taken == 1 else 1 - found.finish_ps / self.best_ps
            self.best, self.best_ps, self.idle = found, found.finish_ps, 0
        self.pace = self.pace * (1 - min(cost_s / _WHILE_S, 1 / _WHILE)) + won
        return found


@dataclass
class Climber:
    """A method on the ladder, and its last rung."""

    name: str
    rung: Search
    best_ps: float = float("inf")
    idle: int = 0
    helped: int = 0  # rungs in a row
    hurries: bool = False  # takes powers of two only
    behind: int = 0
    may_be_behind: float = 2.0  # so many times as late as the best of all

    @property
    def count(self) -> int:
        """How many chunks its last rung has."""
        return self.rung.count

    def above(self, wanted: int) -> int:
        """The next number of chunks; the one that is wanted follows the first. Who hurries leaves some out."""
        return wanted if self.count < wanted else next_rung(self.name, self.count, self.hurries)

    def climbed(self, rung: Search, best_ps: float) -> None:
        """Take note of a rung; from who is far behind the best of all, more is expected."""
        expected = 1e-4 if rung.best_ps <= 1.05 * best_ps else 1e-2
        self.idle = 0 if rung.best_ps < self.best_ps * (1 - expected) else self.idle + 1
        self.helped = self.helped + 1 if self.idle == 0 else 0
        self.may_be_behind = 2.0 if rung.best_ps < self.best_ps * 0.95 else 1.2
        self.best_ps = min(self.best_ps, rung.best_ps)
        self.rung = rung


def next_rung(name: str, count: int, few: bool = False) -> int:
    """The number of chunks after this one, of 1, 2, 3, 4, 6, 8, 12, 16, ...; of a few, or for some methods, powers."""
    power = 1 << (count.bit_length() - 1)
    between = power * 3 // 2
    few = few or traits_of(name).powers_of_two
    return between if power > 1 and count < between and not few else 2 * power
