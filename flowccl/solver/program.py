"""Linear programs as arrays, the input of a solver.

    minimize (or maximize)   cost . x + offset
    subject to               row_lower <= A x <= row_upper,   lower <= x <= upper,   x[integer] integer

Arrays are read-only and checked when the program is created; names are stored per family and used in messages only. Use
the ProgramBuilder of `builder.py` to create a program.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from flowccl.errors import InputError

FloatArray = NDArray[np.float64]
Entries = NDArray[Any] | sparse.sparray
"""A matrix of coefficients: a numpy array, or any scipy sparse array."""

MAX_INDEX = 2**31 - 1
"""Solvers use 32-bit indices for columns, rows and entries."""


@dataclass(frozen=True, slots=True, eq=False)
class Label:
    """Names for consecutive numbers: a family of `shape` whose first number is `first`.

    For a masked family, `places` has the flat index in the shape of each number.
    """

    name: str
    shape: tuple[int, ...]
    first: int
    places: NDArray[np.int64] | None = None

    def __call__(self, number: int) -> str:
        """The name of one number: "send[3, 5, 2]"."""
        place = number - self.first if self.places is None else int(self.places[number - self.first])
        if not self.shape:
            return self.name
        return f"{self.name}[{', '.join(str(int(i)) for i in np.unravel_index(place, self.shape))}]"

    def __contains__(self, number: int) -> bool:
        count = math.prod(self.shape) if self.places is None else len(self.places)
        return self.first <= number < self.first + count


@dataclass(frozen=True, eq=False)
class LinearProgram:
    """A linear or mixed-integer program with its matrix in column order (CSC).

    Column j has the coefficients `entry_value[k]` in the rows `entry_row[k]`, for k from `column_start[j]` to
    `column_start[j + 1]` (exclusive). Equal bounds make an equation; bounds may be infinite; a lower bound above its
    upper bound is allowed and makes the program infeasible.
    """

    cost: FloatArray
    lower: FloatArray
    upper: FloatArray
    integer: NDArray[np.bool_]
    column_start: NDArray[np.int32]
    entry_row: NDArray[np.int32]
    entry_value: FloatArray
    row_lower: FloatArray
    row_upper: FloatArray
    maximize: bool = False
    offset: float = 0.0
    column_labels: tuple[Label, ...] = ()
    row_labels: tuple[Label, ...] = ()
    row_number: NDArray[np.int64] | None = None
    """Number of each row in `row_labels`; None if no row was dropped."""

    def __post_init__(self) -> None:
        for name, kind in _ARRAYS.items():
            array: NDArray[Any] = np.ascontiguousarray(getattr(self, name), dtype=kind).view()
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        _check(self)

    def __repr__(self) -> str:
        goal, whole = "maximize" if self.maximize else "minimize", int(self.integer.sum())
        size = f"{self.num_columns} columns ({whole} integer), {self.num_rows} rows, {self.num_entries} entries"
        return f"LinearProgram({goal}, {size})"

    @property
    def num_columns(self) -> int:
        """Number of variables."""
        return len(self.cost)

    @property
    def num_rows(self) -> int:
        """Number of constraints."""
        return len(self.row_lower)

    @property
    def num_entries(self) -> int:
        """Number of nonzero coefficients."""
        return len(self.entry_value)

    @cached_property
    def has_integers(self) -> bool:
        """Whether any variable is an integer."""
        return bool(self.integer.any())

    @cached_property
    def matrix(self) -> Any:
        """A, as a scipy csc_array that shares the arrays."""
        parts = (self.entry_value, self.entry_row, self.column_start)
        return sparse.csc_array(parts, shape=(self.num_rows, self.num_columns))

    @cached_property
    def entry_column(self) -> NDArray[np.int32]:
        """The column of each entry."""
        return np.repeat(np.arange(self.num_columns, dtype=np.int32), np.diff(self.column_start))

    def objective(self, values: FloatArray) -> float:
        """Objective value: cost . x + offset."""
        return float(self.cost @ values) + self.offset

    def activity(self, values: FloatArray) -> FloatArray:
        """Row activities A x."""
        return np.asarray(self.matrix @ values, dtype=np.float64)

    def reduced_costs(self, duals: FloatArray) -> FloatArray:
        """Reduced costs: cost - A^T duals."""
        return np.asarray(self.cost - self.matrix.T @ duals, dtype=np.float64)

    def column_name(self, column: int) -> str:
        """The name of a variable, for messages."""
        return _name(self.column_labels, column, f"column {column}")

    def row_name(self, row: int) -> str:
        """The name of a constraint, for messages: "send what you have[3, 5, 2]"."""
        number = row if self.row_number is None else int(self.row_number[row])
        return _name(self.row_labels, number, f"row {row}")

    def rows_of(self, family: ArrayLike) -> NDArray[np.int64]:
        """Rows of a RowFamily in this program, in its shape; -1 for masked rows and for dropped empty rows."""
        numbers = np.asarray(family, dtype=np.int64)
        if self.row_number is None:
            return numbers
        rows = np.full(max(int(numbers.max(initial=-1)), int(self.row_number.max(initial=-1))) + 2, -1, dtype=np.int64)
        known = self.row_number >= 0
        rows[self.row_number[known]] = np.flatnonzero(known)
        return rows[numbers]  # the last entry is -1, so -1 maps to -1

    def point(self, *parts: tuple[ArrayLike, ArrayLike]) -> FloatArray:
        """A point from pairs (block, values); the other columns get 0, or the bound closest to 0.

        A nonzero value where the block has no variable is an InputError.
        """
        values: FloatArray = np.minimum(np.maximum(0.0, self.lower), self.upper)
        for block, wanted in parts:
            columns = np.asarray(block)
            numbers = np.broadcast_to(np.asarray(wanted, dtype=np.float64), columns.shape)
            lost = np.argwhere((columns < 0) & (numbers != 0))
            if len(lost):
                raise InputError(f"no variable at {lost[0].tolist()} of the block, but the value there is not 0")
            values[columns[columns >= 0]] = numbers[columns >= 0]
        return values

    def with_columns(
        self, cost: ArrayLike, entries: Entries, lower: ArrayLike = 0.0, upper: ArrayLike = math.inf
    ) -> "LinearProgram":
        """Return the program with new continuous variables; their coefficients are a matrix (rows x new columns)."""
        new: Any = sparse.csc_array(entries)
        if new.shape[0] != self.num_rows:
            raise InputError(f"new columns have {new.shape[0]} rows, the program has {self.num_rows}")
        count = new.shape[1]
        return replace(
            self,
            cost=np.concatenate([self.cost, _filled(cost, count)]),
            lower=np.concatenate([self.lower, _filled(lower, count)]),
            upper=np.concatenate([self.upper, _filled(upper, count)]),
            integer=np.concatenate([self.integer, np.zeros(count, dtype=np.bool_)]),
            column_start=np.concatenate([self.column_start, self.num_entries + new.indptr[1:]]),
            entry_row=np.concatenate([self.entry_row, new.indices]),
            entry_value=np.concatenate([self.entry_value, new.data]),
        )

    def with_rows(self, entries: Entries, lower: ArrayLike = -math.inf, upper: ArrayLike = math.inf) -> "LinearProgram":
        """Return the program with new constraints; their coefficients are a matrix (new rows x columns)."""
        new: Any = sparse.csc_array(entries).tocsr()
        if new.shape[1] != self.num_columns:
            raise InputError(f"new rows have {new.shape[1]} columns, the program has {self.num_columns}")
        count = new.shape[0]
        both: Any = sparse.vstack([self.matrix, new], format="csc")
        numbers = np.arange(self.num_rows) if self.row_number is None else self.row_number
        return replace(
            self,
            column_start=both.indptr,
            entry_row=both.indices,
            entry_value=both.data,
            row_lower=np.concatenate([self.row_lower, _filled(lower, count)]),
            row_upper=np.concatenate([self.row_upper, _filled(upper, count)]),
            row_number=np.concatenate([numbers, np.full(count, -1)]),
        )

    def with_cost(self, columns: ArrayLike, cost: ArrayLike) -> "LinearProgram":
        """Return the program with changed costs of some columns."""
        changed = self.cost.copy()
        changed[np.asarray(columns)] = cost
        return replace(self, cost=changed)

    def with_fixed_integers(self, values: FloatArray) -> "LinearProgram":
        """Return the linear program with every integer variable fixed to its value in a point."""
        lower, upper = np.where(self.integer, values, self.lower), np.where(self.integer, values, self.upper)
        return replace(self, lower=lower, upper=upper, integer=np.zeros(self.num_columns, dtype=np.bool_))


_ARRAYS = {
    "cost": np.float64,
    "lower": np.float64,
    "upper": np.float64,
    "integer": np.bool_,
    "column_start": np.int32,
    "entry_row": np.int32,
    "entry_value": np.float64,
    "row_lower": np.float64,
    "row_upper": np.float64,
}


def _filled(value: ArrayLike, count: int) -> FloatArray:
    return np.broadcast_to(np.asarray(value, dtype=np.float64), (count,))


def _name(labels: Sequence[Label], number: int, otherwise: str) -> str:
    at = bisect_right(labels, number, key=lambda label: label.first) - 1
    return labels[at](number) if at >= 0 and number in labels[at] else otherwise


def _check(program: LinearProgram) -> None:
    columns, rows, entries = program.num_columns, program.num_rows, program.num_entries
    lengths = {"lower": columns, "upper": columns, "integer": columns, "column_start": columns + 1}
    lengths |= {"row_upper": rows, "entry_row": entries}
    for name, length in lengths.items():
        if getattr(program, name).shape != (length,):
            raise InputError(f"program: {name} must have {length} entries, got shape {getattr(program, name).shape}")
    start = program.column_start
    if start[0] != 0 or start[-1] != entries or np.any(np.diff(start) < 0):
        raise InputError(f"program: column_start must increase from 0 to {entries}")
    if entries and not 0 <= program.entry_row.min() <= program.entry_row.max() < rows:
        raise InputError(f"program: entry_row must be from 0 to {rows - 1}")
    _check_numbers(program)


def _check_numbers(program: LinearProgram) -> None:
    lower, upper = program.lower, program.upper
    for what, wrong, name_of in (
        ("cost must be finite", ~np.isfinite(program.cost), program.column_name),
        ("lower must be a number below inf", np.isnan(lower) | (lower == np.inf), program.column_name),
        ("upper must be a number above -inf", np.isnan(upper) | (upper == -np.inf), program.column_name),
        ("lower must be a number below inf", ~(program.row_lower < np.inf), program.row_name),
        ("upper must be a number above -inf", ~(program.row_upper > -np.inf), program.row_name),
    ):
        if wrong.any():
            raise InputError(f"program: {name_of(int(np.argmax(wrong)))}: {what}")
    if not np.isfinite(program.entry_value).all():
        entry = int(np.argmin(np.isfinite(program.entry_value)))
        row, column = int(program.entry_row[entry]), int(program.entry_column[entry])
        raise InputError(
            f"program: {program.row_name(row)}: coefficient of {program.column_name(column)} is not finite"
        )
    if not math.isfinite(program.offset):
        raise InputError(f"program: offset must be finite, got {program.offset}")
