"""Search for the fewest epochs, between a proved lower bound and a known plan."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from flowccl.errors import InputError, NothingFoundError
from flowccl.papers.teccl.grid_bound import GridBound
from flowccl.papers.teccl.options import TecclOptions
from flowccl.search.context import SearchContext
from flowccl.solver import SolverOptions, Status


class HasEpochs(Protocol):
    """A plan that finishes after a number of epochs."""

    @property
    def epochs(self) -> int:
        """Number of epochs."""
        ...


P = TypeVar("P", bound=HasEpochs)


@dataclass
class EpochResult(Generic[P]):
    """The result of one attempt with a number of epochs."""

    status: Status
    plan: P | None
    seconds: float


@dataclass
class EpochSearch(Generic[P]):
    """Calls `attempt(epochs, seconds)` until the best plan meets the lower bound or the time limit ends.

    Fewer than `low` epochs are impossible; `reason` says why.
    """

    bound: GridBound
    options: TecclOptions
    context: SearchContext
    attempt: Callable[[int, float], EpochResult[P]]
    best: P | None = None
    low: int = 1
    reason: str = ""
    solver_s: float = 0.0
    solves: int = 0
    status: str = "feasible"
    tried: dict[int, str] = field(default_factory=dict)

    def run(self) -> P | None:
        """Return the best plan; None if none was found."""
        self.low, self.reason = self.bound.epochs, self.bound.witness
        most = self.options.epochs if isinstance(self.options.epochs, int) else None
        if most is not None:
            self._within(most)
        while not self._enough():
            epochs = self._next()
            if self._try(epochs) is None:
                break
        if self.best is not None and self.best.epochs <= self.low:
            self.status = "optimal"
        return self.best

    @property
    def gap(self) -> float:
        """Epochs of the plan over the lower bound, less 1."""
        return self.best.epochs / max(self.low, 1) - 1 if self.best is not None else float("inf")

    def facts(self, epoch_us: float) -> dict[str, object]:
        """Facts about the best plan on the grid, for the notes."""
        epochs = self.best.epochs if self.best is not None else 0
        return {
            "epoch_us": epoch_us,
            "epochs": epochs,
            "grid_finish_us": epochs * epoch_us,
            "epochs_bound": self.low,
            "epochs_bound_reason": self.reason,
            "grid_gap": self.gap,
            "grid_status": self.status,
            "solver_s": round(self.solver_s, 3),
            "solves": self.solves,
        }

    def _within(self, most: int) -> None:
        """Require a plan within a given number of epochs."""
        check_epochs(self.options, self.bound)
        if self.best is not None and self.best.epochs <= most:
            return
        self.best = None
        if self._try(most) is False:
            raise InputError(f"infeasible in {most} epochs; at least {self.low} are needed because {self.reason}")
        if self.best is None:
            raise NothingFoundError(
                f"no plan of {most} epochs found in {self.context.budget.elapsed_s:.1f} s;"
                f" at least {self.low} are needed because {self.reason}"
            )

    def _enough(self) -> bool:
        return (
            self.context.budget.left_s <= 0
            or self.context.budget.should_stop()
            or self.gap <= max(self.options.early_stop, 1e-9)
        )

    def _next(self) -> int:
        """Without a plan, more epochs each time; else the least number not refuted (auto) or the middle (search)."""
        if self.best is None:
            return self.low if not self.solves else self.low + max(self.low // 8, 1)
        if self.options.epochs == "search":
            return (self.low + self.best.epochs - 1) // 2
        return self.low if self.low not in self.tried else (self.low + self.best.epochs - 1) // 2

    def _try(self, epochs: int) -> bool | None:
        """True: a plan was found; False: it is proved that there is none; None: the time limit ended the attempt."""
        answer = self.attempt(epochs, max(self.context.budget.left_s, 0.1))
        self.solver_s += answer.seconds
        self.solves += 1
        self.tried[epochs] = str(answer.status)
        if answer.plan is not None:
            if self.best is None or answer.plan.epochs < self.best.epochs:
                self.best = answer.plan
            return True
        if answer.status is Status.INFEASIBLE:
            self.low = max(self.low, epochs + 1)
            self.reason = f"the program for {epochs} epochs has no solution"
            return False
        return None


def check_epochs(options: TecclOptions, bound: GridBound) -> None:
    """Raise InputError if the requested number of epochs is below the lower bound."""
    if isinstance(options.epochs, int) and options.epochs < bound.epochs:
        raise InputError(
            f"infeasible in {options.epochs} epochs; at least {bound.epochs} are needed because {bound.witness}"
        )


def solver_options(
    context: SearchContext, options: TecclOptions, seconds: float, *, first: bool = False
) -> SolverOptions:
    """Return the options of a solve."""
    return SolverOptions(
        time_limit_s=seconds,
        gap=max(options.early_stop, 1e-6),
        threads=options.threads,
        seed=context.seed,
        first_solution=first,
        should_stop=context.budget.should_stop,
    )


def algorithm_one(bound_us: float, epoch_us: float, feasible: Callable[[float, int], bool]) -> int:
    """Return a sufficient number of epochs (appendix E): from the first total time that a coarse grid can meet.

    `feasible(epoch_us, epochs)` solves the program on a coarse grid.
    """
    total = bound_us
    while True:
        for epochs in (4, 8, 12):
            if feasible(total / epochs, epochs):
                return int(-(-total // epoch_us))
        total *= 1.5
