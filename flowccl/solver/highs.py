"""Solve programs with HiGHS, the default solver.

HiGHS runs in its own thread while the caller's thread waits, because
- Ctrl-C reaches Python only in the main thread, and only between two of its instructions;
- each thread has its own HiGHS task scheduler, so the `threads` of one solve cannot conflict with those of another;
- `on_progress` and `should_stop` are then called in the caller's thread, where they may raise.
The callback that HiGHS calls only stores two numbers and reads one flag.
"""

import logging
import math
import os
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np

from flowccl.errors import InputError
from flowccl.solver.program import FloatArray, LinearProgram
from flowccl.solver.solution import (
    Solution,
    SolverError,
    SolverOptions,
    Status,
    check_solution,
    solve_empty,
    with_point,
)

_log = logging.getLogger(__name__)

_POLL_S = 0.05

# Settings for a second attempt after an invalid solution. Most failures occur in presolve. With large coefficients, a
# variable within the default tolerance of an integer may allow what the integer does not: 1e-6 of an unused link times
# 1e6 bytes.
_AFTER_ERROR: dict[str, float | str] = {"presolve": "off"}
_AFTER_FRACTIONS: dict[str, float | str] = {"mip_feasibility_tolerance": 1e-9}


def solve(program: LinearProgram, options: SolverOptions) -> Solution:
    """Solve a program with HiGHS.

    Integer variables of the solution are exact integers. If rounding them violates a row, the continuous variables are
    solved again with the integers fixed; if that fails, the program is solved again with a tighter tolerance.
    """
    started = time.monotonic()
    if program.num_columns == 0:
        return solve_empty(program)
    solution = _attempt(program, options, started, {})
    if solution.status is Status.ERROR:
        solution = _attempt(program, options, started, _AFTER_ERROR)
    elif program.has_integers and solution.status is not Status.INTERRUPTED and check_solution(program, solution):
        solution = _attempt(program, options, started, _AFTER_FRACTIONS)
    return replace(solution, seconds=time.monotonic() - started)


def _attempt(
    program: LinearProgram, options: SolverOptions, started: float, settings: dict[str, float | str]
) -> Solution:
    run = HighsRun(program, options, settings)
    run.execute(started)
    if run.is_unbounded_or_infeasible():
        return _unbounded_or_infeasible(program, run, started)
    solution = run.read(program)
    if program.has_integers and solution.values is not None and check_solution(program, solution):
        return _with_exact_integers(program, solution, solution.values, options, started)
    return solution


def _unbounded_or_infeasible(program: LinearProgram, run: "HighsRun", started: float) -> Solution:
    """Distinguish the two cases, which HiGHS does not for integers: without costs no program is unbounded."""
    every = np.arange(program.num_columns, dtype=np.int32)
    run.require(run.highs.changeColsCost(len(every), every, np.zeros(len(every))), "change costs")
    run.execute(started)
    answer = run.read(program.with_cost(every, 0.0))
    status = Status.UNBOUNDED if answer.status is Status.OPTIMAL else answer.status
    return Solution(status=status, message=answer.message)


def _with_exact_integers(
    program: LinearProgram, solution: Solution, values: FloatArray, options: SolverOptions, started: float
) -> Solution:
    left = max(options.time_limit_s - (time.monotonic() - started), 1.0)  # at least a second, to keep the point
    plain = SolverOptions(time_limit_s=left, threads=options.threads, seed=options.seed)
    answer = solve(program.with_fixed_integers(values), plain)
    if answer.status is Status.INTERRUPTED:
        return Solution(status=Status.INTERRUPTED, bound=solution.bound)
    if answer.status is not Status.OPTIMAL:
        return solution
    return replace(solution, values=answer.values, objective=answer.objective)


class HighsRun:
    """A HiGHS object with a program, and functions to run it."""

    def __init__(
        self, program: LinearProgram, options: SolverOptions, settings: dict[str, float | str] | None = None
    ) -> None:
        import highspy  # imported here to keep the import of flowccl fast

        self.options = options
        self.highspy: Any = highspy  # its type hints are incomplete
        self.highs: Any = self.highspy.Highs()
        self._started = 0.0
        self._stop: Status | None = None
        self._interrupted = False
        self._noted: tuple[float, float] | None = None
        self._shown: tuple[float, float] | None = None
        self._configure(settings or {})
        try:
            self._pass(program)
        except MemoryError as error:
            raise SolverError(f"{program}: out of memory; use a smaller formulation") from error
        kinds = self.highspy.cb.HighsCallbackType
        self._mip_kind = int(kinds.kCallbackMipInterrupt)
        self.highs.setCallback(self._callback, None)
        for kind in (kinds.kCallbackSimplexInterrupt, kinds.kCallbackIpmInterrupt, kinds.kCallbackMipInterrupt):
            self.highs.startCallback(kind)

    def require(self, status: Any, what: str) -> None:
        """Raise SolverError if HiGHS failed; warnings (such as a lower bound above an upper bound) are ignored."""
        if status == self.highspy.HighsStatus.kError:
            raise SolverError(f"HiGHS could not {what}")

    def execute(self, started: float) -> None:
        """Run HiGHS until it ends, reaches a limit (time counts from `started`) or is interrupted."""
        self._started, self._stop, self._interrupted = started, None, False
        left = self.options.time_limit_s - (time.monotonic() - started)
        # HiGHS accumulates the time of all runs of one object.
        self._set("time_limit", self.highs.getRunTime() + max(left, 0.0))
        errors: list[Exception] = []
        done = threading.Event()  # not Thread.join: after Ctrl-C in it, Python 3.11 assumes that the thread has ended
        threading.Thread(target=self._work, args=(errors, done), name="highs", daemon=True).start()
        while True:
            try:
                self._watch(done)
                break
            except KeyboardInterrupt:
                if self._interrupted:  # a second Ctrl-C does not wait for HiGHS
                    raise
                self._interrupted = True
                self._request_stop(Status.INTERRUPTED)
        for error in errors:
            if not isinstance(error, MemoryError):
                raise SolverError(f"HiGHS failed: {error}") from error
            self._stop = Status.MEMORY_LIMIT

    def is_unbounded_or_infeasible(self) -> bool:
        """Whether HiGHS did not decide between unbounded and infeasible."""
        return not self._interrupted and bool(
            self.highs.getModelStatus() == self.highspy.HighsModelStatus.kUnboundedOrInfeasible
        )

    def read(self, program: LinearProgram) -> Solution:
        """Read the solution; `program` must be the one that HiGHS holds."""
        info, optimal = self.highs.getInfo(), self.highs.getModelStatus() == self.highspy.HighsModelStatus.kOptimal
        status = self._status(info.primal_solution_status == self.highspy.kSolutionStatusFeasible)
        linear = not program.has_integers
        solution = Solution(
            status=status,
            bound=(math.inf if program.maximize else -math.inf) if linear else info.mip_dual_bound,
            seconds=time.monotonic() - self._started,
            iterations=max(info.simplex_iteration_count, 0) + max(info.ipm_iteration_count, 0),
            nodes=max(info.mip_node_count, 0),
            message=self.highs.modelStatusToString(self.highs.getModelStatus()),
        )
        _log.debug("highs: %s, %s after %.3f s", program, solution.message, solution.seconds)
        ended = status in (Status.INFEASIBLE, Status.UNBOUNDED)
        if ended or info.primal_solution_status != self.highspy.kSolutionStatusFeasible:
            return replace(solution, bound=math.nan) if ended else solution
        point = self.highs.getSolution()
        solution = replace(solution, objective=info.objective_function_value)
        if linear and optimal:
            duals = np.array(point.row_dual)
            reduced_costs = program.reduced_costs(duals)
            solution = replace(solution, bound=solution.objective, duals=duals, reduced_costs=reduced_costs)
        return with_point(program, solution, np.array(point.col_value))

    def _set(self, name: str, value: float | str) -> None:
        self.require(self.highs.setOptionValue(name, value), f"set {name} to {value}")

    def _configure(self, settings: dict[str, float | str]) -> None:
        options = self.options
        self._set("output_flag", False)
        self._set("mip_rel_gap", options.gap)
        self._set("random_seed", options.seed)
        self._set("solver", options.method)
        self._set("small_matrix_value", 1e-12)  # the default drops coefficients below 1e-9, such as seconds per byte
        if options.threads is not None:
            self._set("threads", options.threads)
        if options.first_solution:
            self._set("mip_max_improving_sols", 1)
        for name, value in settings.items():
            self._set(name, value)

    def _pass(self, program: LinearProgram) -> None:
        sense = self.highspy.ObjSense.kMaximize if program.maximize else self.highspy.ObjSense.kMinimize
        lower, upper = _whole_bounds(program)
        done = self.highs.passModel(
            program.num_columns,
            program.num_rows,
            program.num_entries,
            int(self.highspy.MatrixFormat.kColwise),
            int(sense),
            program.offset,
            program.cost,
            lower,
            upper,
            program.row_lower,
            program.row_upper,
            program.column_start,
            program.entry_row,
            program.entry_value,
            program.integer.astype(np.int32),  # HiGHS needs one number per column, for linear programs too
        )
        self.require(done, f"read {program}; coefficients must be below 1e15")
        if self.options.start is not None and program.has_integers:
            self._pass_start(self.options.start, program.num_columns)

    def _pass_start(self, start: FloatArray, num_columns: int) -> None:
        if start.shape != (num_columns,) or not np.isfinite(start).all():
            raise InputError(f"start: expected {num_columns} finite values, one per column; got shape {start.shape}")
        point = self.highspy.HighsSolution()
        point.col_value = start.tolist()
        self.require(self.highs.setSolution(point), "use the start point")

    def _work(self, errors: list[Exception], done: threading.Event) -> None:
        try:
            self.highs.run()
        except Exception as error:  # re-raised in the caller's thread
            errors.append(error)
        finally:
            self.highs.resetGlobalScheduler(True)  # frees the workers of this thread's scheduler
            done.set()

    def _callback(self, kind: int, _message: str, heard: Any, answer: Any, _data: object) -> None:
        if int(kind) == self._mip_kind:
            self._noted = (heard.mip_primal_bound, heard.mip_dual_bound)
        if self._stop is not None:
            answer.user_interrupt = True

    def _watch(self, done: threading.Event) -> None:
        """Wait for HiGHS; meanwhile report progress, and check `should_stop` and the memory limit."""
        try:
            while not done.wait(_POLL_S):
                self._show()
                if self.options.should_stop is not None and self.options.should_stop():
                    self._request_stop(Status.INTERRUPTED)
                if _too_big(self.options.memory_limit_MB):
                    self._request_stop(Status.MEMORY_LIMIT)
            self._show()
        except Exception:  # on_progress or should_stop raised: re-raise after HiGHS has stopped
            self._request_stop(Status.INTERRUPTED)
            done.wait()
            raise

    def _request_stop(self, status: Status) -> None:
        self._stop = self._stop or status
        # The callback stops everything but presolve, which checks only the time limit.
        self.highs.setOptionValue("time_limit", 0.0)

    def _show(self) -> None:
        noted = self._noted
        if self.options.on_progress is not None and noted is not None and noted != self._shown:
            self._shown = noted
            self.options.on_progress(*noted, time.monotonic() - self._started)

    def _status(self, has_point: bool) -> Status:
        statuses, found = self.highspy.HighsModelStatus, self.highs.getModelStatus()
        known = {
            statuses.kOptimal: Status.OPTIMAL,
            statuses.kInfeasible: Status.INFEASIBLE,
            statuses.kUnbounded: Status.UNBOUNDED,
            statuses.kMemoryLimit: Status.MEMORY_LIMIT,
        }
        if self._interrupted:  # even if HiGHS had just finished, so that the caller does not start the next solve
            return Status.INTERRUPTED
        if found in known:
            return known[found]
        if self._stop is not None:
            return self._stop
        if has_point:
            return Status.FEASIBLE
        return Status.TIME_LIMIT if found == statuses.kTimeLimit else Status.ERROR


def _whole_bounds(program: LinearProgram) -> tuple[FloatArray, FloatArray]:
    """Bounds with those of integer variables rounded inwards, since presolve may keep a fractional bound."""
    low, high = program.lower, program.upper
    low = np.where(program.integer, np.ceil(low - 1e-9 * np.maximum(1.0, np.abs(low))), low)
    return low, np.where(program.integer, np.floor(high + 1e-9 * np.maximum(1.0, np.abs(high))), high)


def _too_big(limit_MB: float) -> bool:
    if limit_MB == math.inf:
        return False
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") > limit_MB * 1e6
    except OSError:  # not Linux: use the peak memory, in bytes on macOS
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > limit_MB * 1e6
