"""Solve programs with Gurobi, if it is installed.

Gurobi has no rows with two different bounds, so each row becomes one constraint per finite bound, or one equation; the
dual of the row is the sum of their duals. Signs of duals are those of `solution.py`. gurobipy handles Ctrl-C itself.
"""

import logging
import math
import time
from dataclasses import replace
from typing import Any

import numpy as np

from flowccl.errors import InputError
from flowccl.solver.program import FloatArray, LinearProgram
from flowccl.solver.solution import Solution, SolverError, SolverOptions, Status, solve_empty, with_point

_log = logging.getLogger(__name__)

_METHODS = {"choose": -1, "simplex": 1, "ipm": 2}


def solve(program: LinearProgram, options: SolverOptions) -> Solution:
    """Solve a program with Gurobi."""
    try:
        import gurobipy
    except ImportError:
        raise InputError("gurobi is not installed: pip install gurobipy (and a licence)") from None
    if program.num_columns == 0:
        return solve_empty(program)
    started = time.monotonic()
    try:
        with gurobipy.Env(params=_params(options)) as env, gurobipy.Model(env=env) as model:
            columns, parts = _fill(gurobipy, model, program)
            if options.start is not None and program.has_integers:
                columns.Start = options.start
            watch = _ProgressCallback(gurobipy.GRB, options, started)
            model.optimize(watch)
            if watch.error is not None:
                raise watch.error
            if model.Status == gurobipy.GRB.INF_OR_UNBD:
                model.Params.DualReductions = 0  # Gurobi then distinguishes the two
                model.optimize(watch)
            return _read(gurobipy.GRB, model, program, columns, parts, time.monotonic() - started)
    except gurobipy.GurobiError as error:
        raise SolverError(f"Gurobi: {error}") from error


def _params(options: SolverOptions) -> dict[str, float | int]:
    params: dict[str, float | int] = {
        "OutputFlag": 0,
        "MIPGap": options.gap,
        "IntegralityFocus": 1,  # solutions are rounded to integers and must remain feasible
        "Seed": options.seed,
        "Method": _METHODS[options.method],
    }
    if math.isfinite(options.time_limit_s):
        params["TimeLimit"] = options.time_limit_s
    if math.isfinite(options.memory_limit_MB):
        params["SoftMemLimit"] = options.memory_limit_MB / 1000
    if options.threads is not None:
        params["Threads"] = options.threads
    if options.first_solution:
        params["SolutionLimit"] = 1
    return params


def _fill(gurobipy: Any, model: Any, program: LinearProgram) -> tuple[Any, list[tuple[Any, Any]]]:
    """Add the program to the model; return its variables and pairs (rows, constraints)."""
    columns = model.addMVar(
        program.num_columns,
        lb=program.lower,
        ub=program.upper,
        obj=program.cost,
        vtype=np.where(program.integer, gurobipy.GRB.INTEGER, gurobipy.GRB.CONTINUOUS),
    )
    model.ModelSense = gurobipy.GRB.MAXIMIZE if program.maximize else gurobipy.GRB.MINIMIZE
    model.ObjCon = program.offset
    lower, upper, matrix = program.row_lower, program.row_upper, program.matrix.tocsr()
    equal = lower == upper
    parts = []
    for sense, bound, rows in (
        ("=", lower, np.flatnonzero(equal)),
        (">", lower, np.flatnonzero(~equal & np.isfinite(lower))),
        ("<", upper, np.flatnonzero(~equal & np.isfinite(upper))),
    ):
        if len(rows):
            parts.append((rows, model.addMConstr(matrix[rows], columns, sense, bound[rows])))
    model.update()
    return columns, parts


class _ProgressCallback:
    """Callback that reports progress and checks `should_stop`; it keeps their exceptions for `solve` to raise."""

    def __init__(self, grb: Any, options: SolverOptions, started: float) -> None:
        self.grb = grb
        self.options = options
        self.started = started
        self.shown: tuple[float, float] | None = None
        self.error: Exception | None = None

    def __call__(self, model: Any, where: int) -> None:
        try:
            callback = self.grb.Callback
            if where == callback.MIP and self.options.on_progress is not None:
                best, bound = model.cbGet(callback.MIP_OBJBST), model.cbGet(callback.MIP_OBJBND)
                noted = (_as_infinite(best), _as_infinite(bound))
                if noted != self.shown:
                    self.shown = noted
                    self.options.on_progress(
                        _as_infinite(noted[0]), _as_infinite(noted[1]), time.monotonic() - self.started
                    )
            if self.options.should_stop is not None and self.options.should_stop():
                model.terminate()
        except Exception as error:  # solve() raises it after Gurobi has stopped
            self.error = error
            model.terminate()


def _as_infinite(number: float) -> float:
    return math.copysign(math.inf, number) if abs(number) >= 1e100 else number


def _read(
    grb: Any, model: Any, program: LinearProgram, columns: Any, parts: list[tuple[Any, Any]], seconds: float
) -> Solution:
    has_point = model.SolCount > 0
    status = {
        grb.OPTIMAL: Status.OPTIMAL,
        grb.INFEASIBLE: Status.INFEASIBLE,
        grb.UNBOUNDED: Status.UNBOUNDED,
        grb.INTERRUPTED: Status.INTERRUPTED,
        grb.MEM_LIMIT: Status.MEMORY_LIMIT,
        grb.TIME_LIMIT: Status.FEASIBLE if has_point else Status.TIME_LIMIT,
    }.get(model.Status, Status.FEASIBLE if has_point else Status.ERROR)
    _log.debug("gurobi: %s, status %s after %.3f s", program, model.Status, seconds)
    solution = Solution(
        status=status,
        bound=_as_infinite(model.ObjBound) if program.has_integers else math.inf if program.maximize else -math.inf,
        seconds=seconds,
        iterations=int(model.IterCount),
        nodes=int(model.NodeCount),
        message=f"status {model.Status}",
    )
    if status in (Status.INFEASIBLE, Status.UNBOUNDED):
        return replace(solution, bound=math.nan)
    if not has_point:
        return solution
    solution = replace(solution, objective=model.ObjVal)
    if status is Status.OPTIMAL and not program.has_integers:
        duals = _duals(program, parts)
        reduced_costs = program.reduced_costs(duals)
        solution = replace(solution, bound=model.ObjVal, duals=duals, reduced_costs=reduced_costs)
    return with_point(program, solution, np.asarray(columns.X))


def _duals(program: LinearProgram, parts: list[tuple[Any, Any]]) -> FloatArray:
    duals = np.zeros(program.num_rows)
    for rows, constraints in parts:
        duals[rows] += np.asarray(constraints.Pi)
    return duals
