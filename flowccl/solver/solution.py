"""What a solver answers, what it is asked to respect, and the check of every answer against its own program.

Signs of duals, the same for every solver and for minimize and maximize: `duals[i]` is how much the objective grows per
unit that the binding bound of row i grows, and `reduced_costs[j]` the same for the bound of column j, so that
reduced_costs = cost - A^T duals. When minimizing, a row at its lower bound has a dual >= 0 and one at its upper bound
a dual <= 0; when maximizing it is the other way round.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowccl.errors import FlowcclError, InputError
from flowccl.solver.program import FloatArray, LinearProgram

FEASIBILITY = 1e-6
"""How far a row or a bound may be missed, relative to the largest number in it (at least 1)."""
INTEGRALITY = 1e-5
"""How far from a whole number a solver may leave an integer variable; answers are then rounded exactly."""
OBJECTIVE = 1e-6
"""How far the stated objective may be from the recomputed one, relative to the largest term (at least 1)."""
DUALITY = 1e-6
"""How far a dual may have the wrong sign, relative to the largest number in its column (at least 1)."""


class SolverError(FlowcclError):
    """A solver broke down, or its answer does not fit its own program."""


class Status(StrEnum):
    """How a solve ended."""

    OPTIMAL = "optimal"
    """A point, proved to be within the asked gap of the best."""
    FEASIBLE = "feasible"
    """A point, stopped by the time limit or at the first solution."""
    INFEASIBLE = "infeasible"
    """Proved: there is no point."""
    UNBOUNDED = "unbounded"
    """Proved: there are points without limit."""
    TIME_LIMIT = "time_limit"
    """The time was over before there was a point."""
    INTERRUPTED = "interrupted"
    """Ctrl-C or `should_stop`; with the best point so far, if any."""
    MEMORY_LIMIT = "memory_limit"
    """The process grew past its limit; with the best point so far, if any."""
    ERROR = "error"
    """The solver gave up, mostly for numerical trouble; `message` has its words."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SolverOptions:
    """What a solve must respect; the same for every solver."""

    time_limit_s: float = math.inf
    gap: float = 1e-6
    """Stop once |objective - bound| <= gap x |objective|."""
    threads: int | None = None
    """None leaves it to the solver."""
    seed: int = 0
    first_solution: bool = False
    """Stop at the first point; for programs with integers."""
    memory_limit_MB: float = math.inf
    """Of the whole process."""
    start: FloatArray | None = None
    """A point to start from, for programs with integers: `program.point(...)`. One that does not fit is ignored."""
    method: Literal["choose", "simplex", "ipm"] = "choose"
    on_progress: Callable[[float, float, float], None] | None = None
    """Called with (best objective, bound, seconds) when one of the first two changed; infinite before there is one."""
    should_stop: Callable[[], bool] | None = None
    """Asked several times per second; True ends the solve with the best point so far."""

    def __post_init__(self) -> None:
        for name, low in (("time_limit_s", 0.0), ("gap", 0.0), ("memory_limit_MB", 0.0), ("seed", 0)):
            if not getattr(self, name) >= low:
                raise InputError(f"solver options: {name} must be >= {low:g}, got {getattr(self, name)}")
        if self.threads is not None and self.threads < 1:
            raise InputError(f"solver options: threads must be >= 1, got {self.threads}")
        if self.method not in ("choose", "simplex", "ipm"):
            raise InputError(f"solver options: method must be choose, simplex or ipm, got {self.method!r}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Solution:
    """How it ended and, where there is one, the point; `duals` and `reduced_costs` only for optimal linear programs."""

    status: Status
    objective: float = math.nan
    bound: float = math.nan
    """Proved: no point is better than this."""
    values: FloatArray | None = None
    duals: FloatArray | None = None
    reduced_costs: FloatArray | None = None
    seconds: float = 0.0
    iterations: int = 0
    nodes: int = 0
    message: str = ""

    @property
    def has_point(self) -> bool:
        """Whether there are values."""
        return self.values is not None

    @property
    def gap(self) -> float:
        """|objective - bound| / |objective|: 0 when optimal, inf while there is no point or no bound."""
        distance = abs(self.objective - self.bound)
        if not math.isfinite(distance):
            return math.inf
        return distance / abs(self.objective) if self.objective else (0.0 if distance == 0 else math.inf)

    def value(self, block: ArrayLike) -> FloatArray:
        """The values of a block, in its shape; 0 where it has no variable."""
        if self.values is None:
            raise SolverError(f"there is no point to read: the solve ended as {self.status}")
        return _read(self.values, block)

    def dual(self, rows: ArrayLike) -> FloatArray:
        """The duals of rows, as `program.rows_of(family)` gives them; 0 where there is no row."""
        if self.duals is None:
            raise SolverError(f"there are no duals: only optimal linear programs have them; this one is {self.status}")
        return _read(self.duals, rows)


def with_point(program: LinearProgram, solution: Solution, values: FloatArray) -> Solution:
    """The solution with the solver's values, moved onto whole numbers and bounds where they are within tolerance.

    In a linear program where that breaks a row (tiny numbers, large coefficients), they stay as they are.
    """
    tidied = replace(solution, values=_tidy(program, values))
    if program.has_integers or not check_solution(program, tidied):
        return tidied
    return replace(solution, values=values)


def check_solution(program: LinearProgram, solution: Solution) -> list[str]:
    """What is wrong with an answer: bounds, rows, whole numbers, objective, bound, duals; empty when all is right."""
    if solution.values is None:
        needs = solution.status in (Status.OPTIMAL, Status.FEASIBLE)
        return [f"{solution.status} without a point"] if needs else []
    if solution.values.shape != (program.num_columns,):
        return [f"{solution.values.shape} values for {program.num_columns} columns"]
    if not np.isfinite(solution.values).all():
        return [f"{program.column_name(int(np.argmin(np.isfinite(solution.values))))} is not a finite number"]
    problems = [
        *_check_columns(program, solution.values),
        *_check_rows(program, solution.values),
        *_check_objective(program, solution, solution.values),
    ]
    if solution.status is Status.OPTIMAL and solution.duals is not None:
        problems += _check_duals(program, solution.duals, solution.values)
    return problems


def checked(program: LinearProgram, solution: Solution) -> Solution:
    """The answer with its objective recomputed, or a SolverError that names the worst violation of each kind."""
    problems = check_solution(program, solution)
    if problems:
        raise SolverError(f"the solver's answer does not fit its own program: {'; '.join(problems)}")
    if solution.values is None:
        return solution
    return replace(solution, objective=program.objective(solution.values))


def solve_empty(program: LinearProgram) -> Solution:
    """The answer to a program without variables."""
    if np.any(program.row_lower > 0) or np.any(program.row_upper < 0):
        return Solution(status=Status.INFEASIBLE)
    none, duals = np.empty(0), np.zeros(program.num_rows)
    return Solution(
        status=Status.OPTIMAL,
        objective=program.offset,
        bound=program.offset,
        values=none,
        duals=duals,
        reduced_costs=none,
    )


def _tidy(program: LinearProgram, values: FloatArray) -> FloatArray:
    rounded = np.round(values)
    whole = program.integer & (np.abs(values - rounded) <= INTEGRALITY)
    values = np.where(whole, rounded, values) + 0.0  # no negative zeros
    slack = FEASIBILITY * np.maximum(1.0, np.abs(values))
    values = np.where((values < program.lower) & (values >= program.lower - slack), program.lower, values)
    return np.where((values > program.upper) & (values <= program.upper + slack), program.upper, values)


def _read(numbers: FloatArray, index: ArrayLike) -> FloatArray:
    places = np.asarray(index)
    there = places >= 0
    result = np.zeros(places.shape)
    result[there] = numbers[places[there]]
    return result


def _check_columns(program: LinearProgram, values: FloatArray) -> list[str]:
    miss = np.maximum(program.lower - values, values - program.upper)
    problems = _worst(miss / np.maximum(1.0, np.abs(values)), FEASIBILITY, program.column_name, "misses its bounds")
    broken = np.where(program.integer, np.abs(values - np.round(values)), 0.0)
    return problems + _worst(broken, INTEGRALITY, program.column_name, "is not a whole number")


def _check_rows(program: LinearProgram, values: FloatArray) -> list[str]:
    activity = program.activity(values)
    miss = np.maximum(program.row_lower - activity, activity - program.row_upper)
    return _worst(miss / _row_scale(program, values), FEASIBILITY, program.row_name, "is missed")


def _row_scale(program: LinearProgram, values: FloatArray) -> FloatArray:
    """The largest term of each row, at least 1: what the rounding of floating point is relative to."""
    scale = np.ones(program.num_rows)
    np.maximum.at(scale, program.entry_row, np.abs(program.entry_value * values[program.entry_column]))
    return scale


def _check_objective(program: LinearProgram, solution: Solution, values: FloatArray) -> list[str]:
    true = program.objective(values)
    scale = max(1.0, abs(true), float(np.abs(program.cost * values).max(initial=0.0)))
    problems = []
    if not abs(solution.objective - true) <= OBJECTIVE * scale:
        problems.append(f"the objective is {true!r}, not {solution.objective!r}")
    beyond = solution.bound - true if not program.maximize else true - solution.bound
    if not beyond <= OBJECTIVE * scale:
        problems.append(f"the objective {true!r} is better than the stated bound {solution.bound!r}")
    return problems


def _check_duals(program: LinearProgram, duals: FloatArray, values: FloatArray) -> list[str]:
    """Complementary slackness: what is away from a bound has no price for it. With it, the point is proved optimal."""
    sign = -1.0 if program.maximize else 1.0
    scale = np.maximum(1.0, np.abs(program.cost))
    np.maximum.at(scale, program.entry_column, np.abs(program.entry_value * duals[program.entry_row]))
    reduced = sign * program.reduced_costs(duals)
    activity = program.activity(values)
    column_slack, row_slack = FEASIBILITY * np.maximum(1.0, np.abs(values)), FEASIBILITY * _row_scale(program, values)
    columns = _mispriced(reduced, values, program.lower + column_slack, program.upper - column_slack) / scale
    rows = _mispriced(sign * duals, activity, program.row_lower + row_slack, program.row_upper - row_slack)
    rows /= max(1.0, float(np.abs(duals).max(initial=0.0)))
    what = "is not at the bound that its dual prices"
    return _worst(columns, DUALITY, program.column_name, what) + _worst(rows, DUALITY, program.row_name, what)


def _mispriced(dual_prices: FloatArray, numbers: FloatArray, lower: FloatArray, upper: FloatArray) -> FloatArray:
    """How much of a price (when minimizing, > 0 is of the lower bound and < 0 of the upper) is on a bound not met."""
    return np.maximum(np.where(numbers > lower, dual_prices, 0.0), np.where(numbers < upper, -dual_prices, 0.0))


def _worst(miss: NDArray[np.float64], tolerance: float, name_of: Callable[[int], str], what: str) -> list[str]:
    """The worst of what misses by more than the tolerance, both relative, and how many others do."""
    if not len(miss) or miss.max() <= tolerance:
        return []
    count = int(np.count_nonzero(miss > tolerance))
    others = f" (and {count - 1} more)" if count > 1 else ""
    return [f"{name_of(int(np.argmax(miss)))} {what} by {miss.max():.3g} of its size{others}"]
