"""An arm is one method at one chunk count. `MethodProgress` follows a method from one chunk count to the next."""

from collections.abc import Iterator
from dataclasses import dataclass

from flowccl.demand.demand import Demand
from flowccl.methods.registry import REGISTRY
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.search.traits import Traits

_GAIN_WINDOW_S, _GAIN_WINDOW_STEPS = 0.5, 10  # gains of this much work, or of this many steps, count as recent
_MAX_GAIN = 0.05  # largest recent gain that improves the score, as a fraction of the completion time
# Penalty per step without improvement, relative to the completion time; it grows beyond this many deliveries.
_IDLE_PENALTY, _IDLE_DELIVERIES = 2e-4, 5_000
_STEP_S, _DELIVERY_S = 0.003, 4e-6  # measured work of a step, and per delivery and contribution
_FIRST_STEP_FACTOR = 5  # work of a first step, relative to a later step
_SLOW_FACTOR = 30  # an arm is slow when its first step takes this many times its counted work


_REFINE = Traits(first_step_work=0.2)


def traits_of(name: str) -> Traits:
    """Return the traits of a method by name."""
    if name in REGISTRY:
        return REGISTRY[name].traits
    return _REFINE if name == "refine" else Traits()


def step_work_s(name: str, demand: Demand, first: bool) -> float:
    """Return the work of a step in seconds on a typical computer.

    The work is counted and not measured, so that it is the same on every computer and in every run.
    """
    each = len(demand.destination_rank) + len(demand.source_rank) - len(demand)
    traits = traits_of(name)
    return max(
        (_STEP_S + _DELIVERY_S * each) * (_FIRST_STEP_FACTOR * traits.first_step_work if first else 1), traits.step_s
    )


@dataclass
class Arm:
    """One method at one chunk count."""

    name: str
    count: int
    demand: Demand
    steps: Iterator[Schedule | None]
    best: Schedule | None = None
    best_ps: float = float("inf")
    slowdown: float = 1.0
    last_step_s: float = 0.0  # duration of the last step
    first_step_s: float = 0.0  # duration of the first step
    work_done_s: float = 0.0
    recent_gain: float = 0.0  # recent improvement, as a fraction of the completion time
    steps_taken: int = 0
    unimproved: int = 0  # steps since the last improvement
    exhausted: bool = False

    @property
    def cost_s(self) -> float:
        """Work of the next step in seconds."""
        return step_work_s(self.name, self.demand, first=self.steps_taken == 0) * self.slowdown

    @property
    def score(self) -> float:
        """Best completion time, less the recent gain, plus a penalty for steps without improvement; lower is better."""
        penalty = _IDLE_PENALTY * self.unimproved * max(len(self.demand.destination_rank) / _IDLE_DELIVERIES, 1.0)
        return self.best_ps * (1 + penalty - min(self.recent_gain, _MAX_GAIN))

    def step(self, context: SearchContext) -> Schedule | None:
        """Make the next step and return the schedule that it found, or None."""
        began, cost_s = context.budget.elapsed_s, self.cost_s
        found = next(self.steps, "over")
        self.last_step_s = context.budget.elapsed_s - began
        slowdown = max(self.last_step_s / cost_s / _SLOW_FACTOR, 1.0) if context.budget.steps is None else 1.0
        self.work_done_s += slowdown * cost_s
        self.steps_taken += 1
        self.unimproved += 1
        if self.steps_taken == 1:
            self.first_step_s, self.slowdown = self.last_step_s, slowdown
        if isinstance(found, str):
            self.exhausted = True
            return None
        gain = 0.0
        if found is not None and found.finish_ps < self.best_ps:
            gain = 0.0 if self.steps_taken == 1 else 1 - found.finish_ps / self.best_ps
            self.best, self.best_ps, self.unimproved = found, found.finish_ps, 0
        self.recent_gain = self.recent_gain * (1 - min(cost_s / _GAIN_WINDOW_S, 1 / _GAIN_WINDOW_STEPS)) + gain
        return found


@dataclass
class MethodProgress:
    """The progress of a method through the chunk counts: its last arm and how much the last counts helped."""

    name: str
    arm: Arm
    best_ps: float = float("inf")
    unimproved: int = 0  # chunk counts since the last improvement
    gains_in_a_row: int = 0  # chunk counts in a row that improved the best completion time
    fast_tracked: bool = False  # then only powers of two are tried
    counts_behind: int = 0  # chunk counts in a row behind the best
    allowed_ratio: float = 2.0  # largest allowed ratio to the best completion time

    @property
    def count(self) -> int:
        """Chunk count of the last arm."""
        return self.arm.count

    def next_count(self, target_count: int) -> int:
        """Return the next chunk count; `target_count` follows the first one."""
        return target_count if self.count < target_count else next_chunk_count(self.name, self.count, self.fast_tracked)

    def record(self, arm: Arm, best_ps: float) -> None:
        """Record the result of an arm. Methods far behind the best must improve by a larger fraction."""
        expected = 1e-4 if arm.best_ps <= 1.05 * best_ps else 1e-2
        self.unimproved = 0 if arm.best_ps < self.best_ps * (1 - expected) else self.unimproved + 1
        self.gains_in_a_row = self.gains_in_a_row + 1 if self.unimproved == 0 else 0
        self.allowed_ratio = 2.0 if arm.best_ps < self.best_ps * 0.95 else 1.2
        self.best_ps = min(self.best_ps, arm.best_ps)
        self.arm = arm


def next_chunk_count(name: str, count: int, powers_only: bool = False) -> int:
    """Return the next of 1, 2, 3, 4, 6, 8, 12, 16, ...; with `powers_only`, the next power of two."""
    power = 1 << (count.bit_length() - 1)
    between = power * 3 // 2
    powers_only = powers_only or traits_of(name).powers_of_two
    return between if power > 1 and count < between and not powers_only else 2 * power
