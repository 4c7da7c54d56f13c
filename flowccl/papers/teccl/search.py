"""Search for the fewest epochs, between a proved lower bound and a known plan."""

from collections.abc import Callable
from dataclasses import dataclass, field

from flowccl.errors import InputError, NothingFoundError
from flowccl.papers.teccl.grid_bound import GridBound
from flowccl.papers.teccl.options import TecclOptions
from flowccl.papers.teccl.pieces import FlowPlan
from flowccl.papers.teccl.plan import GridPlan
from flowccl.search.context import SearchContext
from flowccl.solver import Status

Plan = FlowPlan | GridPlan


@dataclass
class EpochSearch:
    """Calls `attempt(epochs, seconds)` until the best plan meets the lower bound or the time limit ends.

    Fewer than `low` epochs are impossible; `reason` says why.
    """

    bound: GridBound
    options: TecclOptions
    context: SearchContext
    attempt: Callable[[int, float], tuple[Status, Plan | None]]
    best: Plan | None = None
    solver_s: float = 0.0
    solves: int = 0
    status: str = "feasible"
    tried: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.low, self.reason = self.bound.epochs, self.bound.witness
        if isinstance(self.options.epochs, int) and self.options.epochs < self.low:
            raise InputError(f"infeasible in {self.options.epochs} epochs; {self.needed}")

    @property
    def needed(self) -> str:
        """The lower bound in words."""
        return f"at least {self.low} are needed because {self.reason}"

    def run(self) -> Plan | None:
        """Return the best plan; None if none was found."""
        if isinstance(self.options.epochs, int):
            self._within(self.options.epochs)
        while not self._enough():
            if self._try(self._next()) is None:
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

    def refute(self, epochs: int) -> None:
        """Take note that the program for this many epochs has no solution."""
        self.low, self.reason = max(self.low, epochs + 1), f"the program for {epochs} epochs has no solution"

    def _within(self, most: int) -> None:
        """Require a plan within a given number of epochs."""
        if self.best is not None and self.best.epochs <= most:
            return
        self.best = None
        if self._try(most) is False:
            raise InputError(f"infeasible in {most} epochs; {self.needed}")
        if self.best is None:
            elapsed_s = self.context.budget.elapsed_s
            raise NothingFoundError(f"no plan of {most} epochs found in {elapsed_s:.1f} s; {self.needed}")

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
        if self.options.epochs == "search" or self.low in self.tried:
            return (self.low + self.best.epochs - 1) // 2
        return self.low

    def _try(self, epochs: int) -> bool | None:
        """True: a plan was found; False: it is proved that there is none; None: the time limit ended the attempt."""
        began = self.context.budget.elapsed_s
        status, plan = self.attempt(epochs, max(self.context.budget.left_s, 0.1))
        self.solver_s += self.context.budget.elapsed_s - began
        self.solves += 1
        self.tried.add(epochs)
        if plan is not None:
            if self.best is None or plan.epochs < self.best.epochs:
                self.best = plan
            return True
        if status is Status.INFEASIBLE:
            self.refute(epochs)
            return False
        return None
