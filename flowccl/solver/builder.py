"""Build a LinearProgram from blocks of variables and families of constraints, each given as whole arrays.

model = ProgramBuilder()
send = model.variables("send", (num_chunks, num_links, num_epochs), upper=1, integer=True)
have = model.variables("have", (num_chunks, num_nodes, num_epochs + 1), upper=1)

# A node sends only what it has.
model.rows("send what you have", send.shape, upper=0).add(send).add(have[:, link_src, :-1], times=-1)

# A link carries one chunk at a time.
model.rows("one at a time", (num_links, num_epochs), upper=1).add(send, sum_axis=0)

# Chunks that a node receives: an irregular sum, scattered from links to their destination nodes.
got = model.rows("get", (num_chunks, num_nodes, num_epochs), equals=0)
got.add_at(np.s_[:, link_dst], send).add(have[..., :-1]).add(have[..., 1:], times=-1)
"""

import math
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from scipy import sparse

from flowccl.errors import InputError
from flowccl.solver.program import MAX_INDEX, FloatArray, Label, LinearProgram


class VariableBlock:
    """An array of variables: `columns` has the column of each variable, or -1 where there is none.

    A variable that was never created stands for the constant 0. Indexing a block like an array gives a smaller block.
    Index arrays with negative entries raise an error, since numpy would silently read from the end.
    """

    __slots__ = ("columns", "name")

    def __init__(self, name: str, columns: NDArray[np.int32]) -> None:
        self.name = name
        self.columns = columns

    def __getitem__(self, index: Any) -> "VariableBlock":
        return VariableBlock(self.name, _index(f"block {self.name!r}", self.columns, index))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.columns, dtype=dtype, copy=copy)

    def __len__(self) -> int:
        return len(self.columns)

    def __repr__(self) -> str:
        return f"VariableBlock({self.name!r}, {self.shape})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array of variables."""
        return self.columns.shape

    @property
    def exists(self) -> NDArray[np.bool_]:
        """Which variables exist."""
        return np.asarray(self.columns >= 0)


Columns = VariableBlock | ArrayLike
"""A block, or an integer array of columns (-1: no variable), to which numpy converts a block."""


class RowFamily:
    """An array of constraints; `index` has the number of each constraint, or -1 where there is none."""

    __slots__ = ("_builder", "index", "name")

    def __init__(self, name: str, index: NDArray[np.int32], builder: "ProgramBuilder") -> None:
        self.name = name
        self.index = index
        self._builder = builder

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.index, dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        return f"RowFamily({self.name!r}, {self.shape})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array of constraints."""
        return self.index.shape

    def add(self, block: Columns, times: ArrayLike = 1.0, sum_axis: int | tuple[int, ...] = ()) -> "RowFamily":
        """Add `times` x the variables of a block to the rows.

        The axes `sum_axis` of the block are summed over; the remaining axes are broadcast to the shape of the rows.
        `times` is a number, or an array that is broadcast together with the block.
        """
        columns, factors = self._builder._columns_of(block), np.asarray(times, dtype=np.float64)
        axes = _as_integers(sum_axis)
        last = range(-len(axes), 0)
        try:
            columns, factors = np.broadcast_arrays(columns, factors)
            columns, factors = np.moveaxis(columns, axes, last), np.moveaxis(factors, axes, last)
        except ValueError as error:
            raise InputError(f"rows {self.name!r}: {error}") from None
        axis_sizes = columns.shape[columns.ndim - len(axes) :]
        return self._append(
            self.index.reshape(self.shape + (1,) * len(axes)), columns, factors, self.shape + axis_sizes
        )

    def add_at(self, index: Any, block: Columns, times: ArrayLike = 1.0) -> "RowFamily":
        """Add `times` x the variables of a block to the rows `self[index]`, which may repeat.

        `index` is any numpy index of the family's shape, such as `np.s_[:, link_dst]` or a tuple of index arrays. The
        block is broadcast to the shape of the indexed rows.
        """
        rows = _index(f"rows {self.name!r}", self.index, index)
        return self._append(rows, self._builder._columns_of(block), np.asarray(times, dtype=np.float64), rows.shape)

    def _append(
        self, rows: NDArray[np.int32], columns: NDArray[Any], factors: FloatArray, shape: tuple[int, ...]
    ) -> "RowFamily":
        try:
            columns, factors = np.broadcast_to(columns, shape), np.broadcast_to(factors, shape)
        except ValueError:
            raise InputError(
                f"rows {self.name!r}: a block of shape {columns.shape} (times: {factors.shape}) does not match {shape};"
                " sum extra axes with sum_axis, or scatter with add_at"
            ) from None
        rows = np.broadcast_to(rows, shape)
        kept = (rows >= 0) & (columns >= 0) & (factors != 0)
        self._builder._add_entries(rows[kept], columns[kept], factors[kept])
        return self


class ProgramBuilder:
    """Collects variables, constraints and costs, and builds the LinearProgram."""

    def __init__(self, *, maximize: bool = False, offset: float = 0.0) -> None:
        self.maximize = maximize
        self.offset = offset
        self.num_columns = 0
        self.num_rows = 0
        self._column_labels: list[Label] = []
        self._row_labels: list[Label] = []
        self._column_parts: list[tuple[FloatArray, FloatArray, FloatArray, NDArray[np.bool_]]] = []
        self._cost_parts: list[tuple[NDArray[np.int32], FloatArray]] = []
        self._row_parts: list[tuple[FloatArray, FloatArray]] = []
        self._entries: list[tuple[NDArray[np.int32], NDArray[np.int32], FloatArray]] = []

    def variables(
        self,
        name: str,
        shape: int | tuple[int, ...] = (),
        lower: ArrayLike = 0.0,
        upper: ArrayLike = math.inf,
        *,
        integer: ArrayLike = False,
        cost: ArrayLike = 0.0,
        where: ArrayLike = True,
    ) -> VariableBlock:
        """Create a block of variables. Bounds, costs and `integer` are broadcast; `where` masks which exist."""
        columns, mask, label = _numbered("variables", name, shape, where, self.num_columns)
        self._column_labels.append(label)
        kind = _broadcast(name, "integer", integer, columns.shape, np.bool_)[mask]
        costs = _broadcast(name, "cost", cost, columns.shape)[mask]
        lowers = _broadcast(name, "lower", lower, columns.shape)[mask]
        uppers = _broadcast(name, "upper", upper, columns.shape)[mask]
        self._column_parts.append((costs, lowers, uppers, kind))
        self.num_columns += len(kind)
        return VariableBlock(name, columns)

    def rows(
        self,
        name: str,
        shape: int | tuple[int, ...] = (),
        lower: ArrayLike = -math.inf,
        upper: ArrayLike = math.inf,
        *,
        equals: ArrayLike | None = None,
        where: ArrayLike = True,
    ) -> RowFamily:
        """Create a family of constraints lower <= sum <= upper, or sum == `equals`; `where` masks which exist."""
        index, mask, label = _numbered("rows", name, shape, where, self.num_rows)
        self._row_labels.append(label)
        if equals is not None:
            lower = upper = equals
        part = _broadcast(name, "lower", lower, index.shape)[mask], _broadcast(name, "upper", upper, index.shape)[mask]
        self._row_parts.append(part)
        self.num_rows += len(part[0])
        return RowFamily(name, index, self)

    def add_cost(self, block: Columns, times: ArrayLike = 1.0) -> None:
        """Add `times` x the variables of a block to the objective."""
        columns, factors = np.broadcast_arrays(self._columns_of(block), np.asarray(times, dtype=np.float64))
        self._cost_parts.append((columns[columns >= 0], factors[columns >= 0]))

    def build(self) -> LinearProgram:
        """Build the program. Rows without entries are dropped unless they are infeasible."""
        matrix = self._matrix()
        row_lower, row_upper = (_concatenated([part[i] for part in self._row_parts], np.float64) for i in range(2))
        empty = np.bincount(matrix.indices, minlength=self.num_rows) == 0
        kept = ~(empty & (row_lower <= 0) & (row_upper >= 0))
        place = np.cumsum(kept) - 1
        cost, lower, upper = (_concatenated([part[i] for part in self._column_parts], np.float64) for i in range(3))
        for columns, factors in self._cost_parts:
            np.add.at(cost, columns, factors)
        return LinearProgram(
            cost=cost,
            lower=lower,
            upper=upper,
            integer=_concatenated([part[3] for part in self._column_parts], np.bool_),
            column_start=matrix.indptr,
            entry_row=place[matrix.indices],
            entry_value=matrix.data,
            row_lower=row_lower[kept],
            row_upper=row_upper[kept],
            maximize=self.maximize,
            offset=self.offset,
            column_labels=tuple(self._column_labels),
            row_labels=tuple(self._row_labels),
            row_number=None if kept.all() else np.flatnonzero(kept),
        )

    def _columns_of(self, block: Columns) -> NDArray[np.int32]:
        """Columns of a block or of an array of columns; InputError if they do not belong to this builder."""
        columns = block.columns if isinstance(block, VariableBlock) else np.asarray(block)
        if columns.size and (columns.dtype.kind not in "iu" or columns.min() < -1 or columns.max() >= self.num_columns):
            raise InputError(f"{block!r}: not columns of this program, which has {self.num_columns} columns")
        return columns.astype(np.int32, copy=False)

    def _add_entries(self, rows: NDArray[np.int32], columns: NDArray[np.int32], factors: FloatArray) -> None:
        self._entries.append((rows, columns, factors))

    def _matrix(self) -> Any:
        rows, columns = (_concatenated([part[i] for part in self._entries], np.int32) for i in range(2))
        factors = _concatenated([part[2] for part in self._entries], np.float64)
        if len(factors) > MAX_INDEX:
            raise InputError(f"{len(factors)} entries exceed the 32-bit limit of solvers; use a smaller formulation")
        # The conversion from coordinates adds duplicate entries; entries that cancel out are dropped.
        matrix: Any = sparse.coo_array((factors, (rows, columns)), shape=(self.num_rows, self.num_columns)).tocsc()
        matrix.eliminate_zeros()
        return matrix


def _concatenated(parts: list[NDArray[Any]], kind: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype=kind), *parts])


def _as_integers(numbers: int | tuple[int, ...]) -> tuple[int, ...]:
    """One or several integers, of Python or numpy, as a tuple."""
    return tuple(operator.index(number) for number in (numbers if isinstance(numbers, Iterable) else (numbers,)))


def _broadcast(
    name: str, what: str, value: ArrayLike, shape: tuple[int, ...], kind: type[np.generic] = np.float64
) -> NDArray[Any]:
    array = np.asarray(value, dtype=kind)
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise InputError(f"{name}: {what} of shape {array.shape} does not match {shape}") from None


def _numbered(
    kind: str, name: str, shape: int | tuple[int, ...], where: ArrayLike, first: int
) -> tuple[NDArray[np.int32], NDArray[np.bool_], Label]:
    """Consecutive numbers from `first` in the given shape (-1 outside the mask), the mask, and the label."""
    shape = _as_integers(shape)
    mask = _broadcast(name, "where", where, shape, np.bool_)
    count = int(np.count_nonzero(mask))
    if first + count > MAX_INDEX:
        raise InputError(f"{kind} {name!r}: more than {MAX_INDEX} of them; use a smaller formulation")
    numbers = np.full(shape, -1, dtype=np.int32)
    numbers[mask] = np.arange(first, first + count, dtype=np.int32)
    numbers.setflags(write=False)
    return numbers, mask, Label(name, shape, first, None if mask.all() else np.flatnonzero(mask))


def _index(what: str, array: NDArray[np.int32], index: Any) -> NDArray[np.int32]:
    """Return array[index]; InputError for negative or out-of-range entries of index arrays."""
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, np.ndarray | list) and np.asarray(part).dtype.kind == "i" and np.any(np.asarray(part) < 0):
            raise InputError(f"{what}: an index array has negative entries; mask them out first")
    try:
        return np.asarray(array[index])
    except IndexError as error:
        raise InputError(f"{what}: {error}") from None
