"""Linear programs that grow between solves, for column generation and cutting planes."""

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from flowccl.errors import InputError
from flowccl.solver.highs import HighsRun
from flowccl.solver.program import Entries, LinearProgram
from flowccl.solver.solution import Solution, SolverOptions, checked, solve_empty


class Session:
    """A linear program in HiGHS; each simplex solve starts from the basis of the last one.

    For column generation: solve, price new columns with the duals, add them, solve again. `program` is always the
    current program, and every solution is checked against it.
    """

    def __init__(self, program: LinearProgram, options: SolverOptions | None = None) -> None:
        if program.has_integers:
            raise InputError("a Session is for linear programs; this one has integer variables")
        self.program = program
        self._run = HighsRun(program, options or SolverOptions())

    def add_columns(
        self, cost: ArrayLike, entries: Entries, lower: ArrayLike = 0.0, upper: ArrayLike = math.inf
    ) -> NDArray[np.int64]:
        """Add variables with their coefficients, a matrix (rows x new columns); return their columns."""
        first, program = self.program.num_columns, self.program.with_columns(cost, entries, lower, upper)
        start, new = program.column_start[first:], slice(first, None)
        taken = slice(int(start[0]), int(start[-1]))
        done = self._run.highs.addCols(
            program.num_columns - first,
            program.cost[new],
            program.lower[new],
            program.upper[new],
            taken.stop - taken.start,
            start[:-1] - start[0],
            program.entry_row[taken],
            program.entry_value[taken],
        )
        self._run.require(done, "add columns")
        self.program = program
        return np.arange(first, program.num_columns)

    def add_rows(
        self, entries: Entries, lower: ArrayLike = -math.inf, upper: ArrayLike = math.inf
    ) -> NDArray[np.int64]:
        """Add constraints with their coefficients, a matrix (new rows x columns); return their rows."""
        first, program = self.program.num_rows, self.program.with_rows(entries, lower, upper)
        matrix: Any = sparse.csc_array(entries).tocsr()
        done = self._run.highs.addRows(
            program.num_rows - first,
            program.row_lower[first:],
            program.row_upper[first:],
            matrix.nnz,
            matrix.indptr[:-1].astype(np.int32),
            matrix.indices.astype(np.int32),
            matrix.data.astype(np.float64),
        )
        self._run.require(done, "add rows")
        self.program = program
        return np.arange(first, program.num_rows)

    def change_cost(self, columns: ArrayLike, cost: ArrayLike) -> None:
        """Change the costs of some columns."""
        self.program = self.program.with_cost(columns, cost)
        where = np.unique(np.asarray(columns, dtype=np.int32))
        self._run.require(self._run.highs.changeColsCost(len(where), where, self.program.cost[where]), "change costs")

    def solve(self, time_limit_s: float | None = None) -> Solution:
        """Solve the current program; the time limit, by default that of the options, counts from this call."""
        if self.program.num_columns == 0:
            return solve_empty(self.program)
        if time_limit_s is not None:
            self._run.options = replace(self._run.options, time_limit_s=time_limit_s)
        self._run.execute(time.monotonic())
        return checked(self.program, self._run.read(self.program))
