"""An arm of the portfolio: one method at one chunk count, with its best schedule, its work and its reward."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from flowccl.demand.demand import Demand
from flowccl.methods.registry import REGISTRY
from flowccl.schedule.schedule import Schedule
from flowccl.search.traits import Traits

REFINE = "refine"  # the arm that subdivides a schedule that another arm found
_STEP_S, _DELIVERY_S = 0.003, 4e-6  # work of a step, and of each delivery and contribution in it, as measured
_FIRST = 5  # work of a first step, relative to later ones, as measured
_LARGE = 128  # GPUs from which on work grows, where it does


def traits_of(name: str) -> Traits:
    """The traits of a method; default traits for an arm that is no registered method."""
    return REGISTRY[name].traits if name in REGISTRY else Traits()


def solves_programs(name: str) -> bool:
    """Whether a method solves a program once, which tells what any number of chunks takes."""
    return name in REGISTRY and REGISTRY[name].by_rate


def step_work_s(name: str, demand: Demand, *, first: bool, times: float = 1.0) -> float:
    """Work of a step in seconds of a typical computer: counted, not measured, so that runs are repeatable.

    With `times` as many chunks as the demand has.
    """
    traits = traits_of(name)
    entries = times * (len(demand.destination_rank) + len(demand.source_rank) - len(demand))
    is_unicast = demand.is_unicast and not demand.reduces
    work = traits.first_step_work * (traits.unicast_work if is_unicast else 1.0)
    factor = 0.2 if name == REFINE else _FIRST * work if first else 1.0
    if traits.grows or (is_unicast and traits.unicast_grows):
        factor *= max(demand.num_gpus / _LARGE, 1.0)
    return (_STEP_S + _DELIVERY_S * entries) * factor


@dataclass(eq=False)
class Arm:
    """One method at one chunk count."""

    name: str
    count: int
    demand: Demand
    steps: Iterator[Schedule | None]
    memory_s: float
    best: Schedule | None = None
    best_ps: float = float("inf")
    fitted_ps: float = 0.0  # to which the law of pipelines is fitted: the best of a search, else the first
    work_s: float = 0.0
    seconds: float = 0.0  # measured, of the last step
    total_s: float = 0.0  # measured, of all steps
    first_s: float = 0.0  # measured, of the step that found the first schedule, on the processor
    taken: int = 0
    idle_s: float = 0.0  # work since the last improvement
    reward: float = 0.0  # relative improvement within the last `memory_s` of work
    over: bool = False
    traits: Traits = field(init=False)

    def __post_init__(self) -> None:
        self.traits = traits_of(self.name)

    @property
    def next_work_s(self) -> float:
        """Counted work of the next step."""
        return step_work_s(self.name, self.demand, first=not self.taken)

    @property
    def outlook_ps(self) -> float:
        """Completion time that the arm would reach if its recent rate of improvement continued for a while."""
        return self.best_ps * (1 - min(self.reward, 0.05))

    def step(self) -> Schedule | None:
        """Run one step; return the schedule where it improved the arm."""
        work_s = self.next_work_s
        try:
            found = next(self.steps)
        except StopIteration:
            self.over, found = True, None
        self.taken += 1
        self.work_s += work_s
        self.reward *= max(1 - work_s / self.memory_s, 0.0)
        self.idle_s += work_s
        if found is None or found.finish_ps >= self.best_ps:
            return None
        if self.best is not None:
            self.reward += 1 - found.finish_ps / self.best_ps
        self.fitted_ps = self.fitted_ps if self.traits.one_schedule and self.best else found.finish_ps
        self.best, self.best_ps, self.idle_s = found, found.finish_ps, 0.0
        return found
