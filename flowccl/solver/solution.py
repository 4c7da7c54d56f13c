"""Solver options, solutions, and the check of every solution against its program.

Signs of duals are the same for every solver and for minimize and maximize: `duals[i]` is the increase of the objective
per unit increase of the binding bound of row i, and `reduced_costs[j]` is the same for column j, so that
reduced_costs = cost - A^T duals. When minimizing, a row at its lower bound has a dual >= 0 and a row at its upper bound
a dual <= 0; when maximizing, the signs are reversed.
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
"""Tolerance for rows and bounds, relative to the largest term (at least 1)."""
INTEGRALITY = 1e-5
"""Tolerance for the distance of integer variables from an integer before they are rounded."""
OBJECTIVE = 1e-6
"""Tolerance between the reported and the recomputed objective, relative to the largest term (at least 1)."""
DUALITY = 1e-6
"""Tolerance for duals of the wrong sign, relative to the largest term in the column (at least 1)."""


class SolverError(FlowcclError):
    """A solver failed, or its solution violates the program."""


class Status(StrEnum):
    """How a solve ended."""

    OPTIMAL = "optimal"
    """A point, proved to be within the requested gap of the optimum."""
    FEASIBLE = "feasible"
    """A point, found before the time limit or as the first solution."""
    INFEASIBLE = "infeasible"
    """Proved: no feasible point exists."""
    UNBOUNDED = "unbounded"
    """Proved: the objective is unbounded."""
    TIME_LIMIT = "time_limit"
    """The time limit was reached before a point was found."""
    INTERRUPTED = "interrupted"
    """Ctrl-C or `should_stop`; with the best point so far, if any."""
    MEMORY_LIMIT = "memory_limit"
    """The process exceeded its memory limit; with the best point so far, if any."""
    ERROR = "error"
    """The solver failed, usually for numerical reasons; see `message`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SolverOptions:
    """Limits and options of a solve, the same for every solver."""

    time_limit_s: float = math.inf
    gap: float = 1e-6
    """Stop once |objective - bound| <= gap x |objective|."""
    threads: int | None = None
    """None: the solver decides."""
    seed: int = 0
    first_solution: bool = False
    """Stop at the first feasible point, for programs with integers."""
    memory_limit_MB: float = math.inf
    """Limit for the whole process."""
    start: FloatArray | None = None
    """Start point for programs with integers: `program.point(...)`. An infeasible start is ignored."""
    method: Literal["choose", "simplex", "ipm"] = "choose"
    on_progress: Callable[[float, float, float], None] | None = None
    """Called with (best objective, bound, seconds) when one of the first two changes; both are infinite at first."""
    should_stop: Callable[[], bool] | None = None
    """Called several times per second; True ends the solve with the best point so far."""

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
    """Status of a solve and its point, if any; `duals` and `reduced_costs` only for optimal linear programs."""

    status: Status
    objective: float = math.nan
    bound: float = math.nan
    """Proved bound on the objective: no point is better."""
    values: FloatArray | None = None
    duals: FloatArray | None = None
    reduced_costs: FloatArray | None = None
    seconds: float = 0.0
    iterations: int = 0
    nodes: int = 0
    message: str = ""

    @property
    def has_point(self) -> bool:
        """Whether a point was found."""
        return self.values is not None

    @property
    def gap(self) -> float:
        """|objective - bound| / |objective|: 0 if optimal, inf without a point or a bound."""
        distance = abs(self.objective - self.bound)
        if not math.isfinite(distance):
            return math.inf
        return distance / abs(self.objective) if self.objective else (0.0 if distance == 0 else math.inf)

    def value(self, block: ArrayLike) -> FloatArray:
        """Values of a block, in its shape; 0 where it has no variable."""
        if self.values is None:
            raise SolverError(f"no point was found: the solve ended with status {self.status}")
        return _read(self.values, block)

    def dual(self, rows: ArrayLike) -> FloatArray:
        """Duals of the rows that `program.rows_of(family)` returns; 0 where there is no row."""
        if self.duals is None:
            raise SolverError(f"no duals: only optimal linear programs have duals; the status is {self.status}")
        return _read(self.duals, rows)


def with_point(program: LinearProgram, solution: Solution, values: FloatArray) -> Solution:
    """Return the solution with values snapped to integers and bounds where they are within tolerance.

    In a linear program, the values stay unchanged if snapping violates a row (tiny numbers, large coefficients).
    """
    tidied = replace(solution, values=_snap_to_bounds(program, values))
    if program.has_integers or not check_solution(program, tidied):
        return tidied
    return replace(solution, values=values)


def check_solution(program: LinearProgram, solution: Solution) -> list[str]:
    """Violations of bounds, rows, integrality, objective, bound and duals; empty if the solution is valid."""
    if solution.values is None:
        requires_point = solution.status in (Status.OPTIMAL, Status.FEASIBLE)
        return [f"{solution.status} without a point"] if requires_point else []
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
    """Return the solution with its objective recomputed; raise SolverError with the worst violation of each kind."""
    problems = check_solution(program, solution)
    if problems:
        raise SolverError(f"the solver returned an invalid solution: {'; '.join(problems)}")
    if solution.values is None:
        return solution
    return replace(solution, objective=program.objective(solution.values))


def solve_empty(program: LinearProgram) -> Solution:
    """Solution of a program without variables."""
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


def _snap_to_bounds(program: LinearProgram, values: FloatArray) -> FloatArray:
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
    problems = _worst(miss / np.maximum(1.0, np.abs(values)), FEASIBILITY, program.column_name, "violates its bounds")
    fractional = np.where(program.integer, np.abs(values - np.round(values)), 0.0)
    return problems + _worst(fractional, INTEGRALITY, program.column_name, "differs from an integer")


def _check_rows(program: LinearProgram, values: FloatArray) -> list[str]:
    activity = program.activity(values)
    miss = np.maximum(program.row_lower - activity, activity - program.row_upper)
    return _worst(miss / _row_scale(program, values), FEASIBILITY, program.row_name, "is violated")


def _row_scale(program: LinearProgram, values: FloatArray) -> FloatArray:
    """Largest term of each row, at least 1; floating-point rounding errors are relative to it."""
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
        problems.append(f"the objective {true!r} is better than the reported bound {solution.bound!r}")
    return problems


def _check_duals(program: LinearProgram, duals: FloatArray, values: FloatArray) -> list[str]:
    """Check complementary slackness: only active bounds have nonzero duals. This proves that the point is optimal."""
    sign = -1.0 if program.maximize else 1.0
    scale = np.maximum(1.0, np.abs(program.cost))
    np.maximum.at(scale, program.entry_column, np.abs(program.entry_value * duals[program.entry_row]))
    reduced = sign * program.reduced_costs(duals)
    activity = program.activity(values)
    column_slack, row_slack = FEASIBILITY * np.maximum(1.0, np.abs(values)), FEASIBILITY * _row_scale(program, values)
    columns = _mispriced(reduced, values, program.lower + column_slack, program.upper - column_slack) / scale
    rows = _mispriced(sign * duals, activity, program.row_lower + row_slack, program.row_upper - row_slack)
    rows /= max(1.0, float(np.abs(duals).max(initial=0.0)))
    what = "violates complementary slackness"
    return _worst(columns, DUALITY, program.column_name, what) + _worst(rows, DUALITY, program.row_name, what)


def _mispriced(dual_prices: FloatArray, numbers: FloatArray, lower: FloatArray, upper: FloatArray) -> FloatArray:
    """Dual prices on inactive bounds; when minimizing, prices > 0 belong to the lower bound and < 0 to the upper."""
    return np.maximum(np.where(numbers > lower, dual_prices, 0.0), np.where(numbers < upper, -dual_prices, 0.0))


def _worst(miss: NDArray[np.float64], tolerance: float, name_of: Callable[[int], str], what: str) -> list[str]:
    """Describe the largest relative violation beyond the tolerance, and count the others."""
    if not len(miss) or miss.max() <= tolerance:
        return []
    count = int(np.count_nonzero(miss > tolerance))
    others = f" (and {count - 1} more)" if count > 1 else ""
    return [f"{name_of(int(np.argmax(miss)))} {what} by {miss.max():.3g}{others}"]
