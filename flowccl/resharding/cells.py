"""Cells: the parts of a tensor on which neither its sources nor its targets change.

Along one dimension, the source intervals and the target intervals of a tensor overlap in segments; a cell is a product
of segments, one for each dimension. Tensors that lie alike on both sides have the same cells, with other sizes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import DemandError
from flowccl.resharding.layout import TensorLayout
from flowccl.resharding.shards import DimensionShards, MeshSide, mesh_side

I64 = NDArray[np.int64]
TensorPair = tuple[TensorLayout, TensorLayout]
ClassKey = tuple[tuple[int, ...], tuple[int, ...]]  # sources, targets
Box = tuple[tuple[int, int], ...]
"""A part of an array: (begin, end) along each dimension."""

_MOST_ENTRIES = 2_000_000  # (tensor, source interval, target interval) entries that are compared at once
_MOST_RANGES = 2_000_000  # byte ranges of one tensor


class Segments(NamedTuple):
    """Overlaps along one dimension: sizes [tensor, segment], and where each starts in the memory of both sides."""

    source_part: I64
    target_part: I64
    size: I64
    source_local: I64
    target_local: I64


@dataclass(frozen=True, eq=False)
class CellBlock:
    """Tensors with the same cells. `keys[c]` are the sources and the targets of cell c."""

    names: tuple[str, ...]
    keys: tuple[ClassKey, ...]

    @property
    def num_cells(self) -> int:
        """Number of cells of each tensor."""
        return len(self.keys)

    def cell_bytes(self) -> I64:
        """Bytes of each cell, [tensor, cell]."""
        raise NotImplementedError

    def total_bytes(self) -> I64:
        """Bytes of each cell, of all tensors together."""
        return np.asarray(self.cell_bytes().sum(axis=0), dtype=np.int64)

    def cells_of(self, rank: int, side: str) -> list[int]:
        """The cells that a rank has, on the side "source", or wants, on the side "target"."""
        at = 0 if side == "source" else 1
        return [number for number, key in enumerate(self.keys) if rank in key[at]]

    def box(self, tensor: int, cell: int, rank: int, side: str) -> Box:
        """Where the cell lies in the memory of a rank, as bytes: the last dimension counts bytes."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class MeshBlock(CellBlock):
    """Tensors that lie alike on meshes. Tensors of one shape share a row of the arrays: `row[t]`."""

    element_bytes: I64
    row: I64
    dims: tuple[Segments, ...]

    def cell_bytes(self) -> I64:
        """Bytes of each cell, [tensor, cell]."""
        return self._row_bytes[self.row]

    def total_bytes(self) -> I64:
        """Bytes of each cell, of all tensors together."""
        count = np.bincount(self.row, minlength=len(self.element_bytes))
        return count @ self._row_bytes

    @cached_property
    def _row_bytes(self) -> I64:
        size = self.element_bytes.reshape(-1, 1)
        for segments in self.dims:
            size = (size[:, :, None] * segments.size[:, None, :]).reshape(len(size), -1)
        return size

    def box(self, tensor: int, cell: int, rank: int, side: str) -> Box:
        """Where the cell lies in the memory of a rank, as bytes: the last dimension counts bytes."""
        row, result = int(self.row[tensor]), []
        places = np.unravel_index(cell, [one.size.shape[1] for one in self.dims]) if self.dims else ()
        for place, segments in zip(places, self.dims, strict=True):
            local = segments.source_local if side == "source" else segments.target_local
            begin = int(local[row, place])
            result.append((begin, begin + int(segments.size[row, place])))
        unit = int(self.element_bytes[row])
        if not result:  # a tensor without dimensions is one element
            return ((0, unit),)
        result[-1] = (result[-1][0] * unit, result[-1][1] * unit)
        return tuple(result)


@dataclass(frozen=True, eq=False)
class RangeBlock(CellBlock):
    """One tensor of which a side is given as byte ranges. `local[side][rank, cell]` is its offset on a rank."""

    size: I64
    local: dict[str, dict[tuple[int, int], int]]

    def cell_bytes(self) -> I64:
        """Bytes of each cell, [tensor, cell]."""
        return self.size.reshape(1, -1)

    def box(self, tensor: int, cell: int, rank: int, side: str) -> Box:
        """Where the cell lies in the flat memory of a rank, in bytes."""
        begin = self.local[side][rank, cell]
        return ((begin, begin + int(self.size[cell])),)


def mesh_blocks(pairs: list[TensorPair]) -> Iterator[MeshBlock]:
    """Yield the blocks of tensors that lie on meshes on both sides."""
    alike: dict[object, list[TensorPair]] = {}
    for one, other in pairs:
        key = (one.mesh, one.placements, other.mesh, other.placements, len(one.shape))
        alike.setdefault(key, []).append((one, other))
    for group in alike.values():
        first, second = group[0]
        if first.mesh is None or second.mesh is None:
            continue
        sizes = np.array([(*one.shape, one.element_bytes) for one, _ in group], dtype=np.int64)
        rows, row = np.unique(sizes, axis=0, return_inverse=True)
        row = row.reshape(-1)
        per_block = max(_MOST_ENTRIES // _entries(first, second), 1)
        for start in range(0, len(rows), per_block):
            tensors = np.flatnonzero((row >= start) & (row < start + per_block))
            part = rows[start : start + per_block]
            sides = (
                mesh_side(part[:, :-1], first.mesh, first.placements),
                mesh_side(part[:, :-1], second.mesh, second.placements),
            )
            names = tuple(group[t][0].name for t in tensors.tolist())
            yield _mesh_block(names, row[tensors] - start, part, *sides)


def _entries(first: TensorLayout, second: TensorLayout) -> int:
    """The largest number of (source interval, target interval) pairs along a dimension."""
    most = 1
    for dim in range(len(first.shape)):
        count = 1
        for side in (first, second):
            for size, placement in zip(side.mesh.shape if side.mesh else (), side.placements, strict=True):
                count *= size * placement.split if placement.dim == dim else 1
        most = max(most, count)
    return most


def _mesh_block(names: tuple[str, ...], row: I64, rows: I64, source: MeshSide, target: MeshSide) -> MeshBlock:
    dims = tuple(_segments(a, b) for a, b in zip(source.dims, target.dims, strict=True))
    indices = [np.arange(one.size.shape[1]) for one in dims]
    grid = np.meshgrid(*indices, indexing="ij") if dims else []
    places = [one.reshape(-1) for one in grid]
    have = source.part_number([one.source_part[at] for one, at in zip(dims, places, strict=True)])
    want = target.part_number([one.target_part[at] for one, at in zip(dims, places, strict=True)])
    keys = tuple((source.ranks[a], target.ranks[b]) for a, b in zip(have.tolist(), want.tolist(), strict=True))
    return MeshBlock(names, keys, rows[:, -1].copy(), row, dims)


def _segments(source: DimensionShards, target: DimensionShards) -> Segments:
    """All pairs of a source interval and a target interval that overlap in some tensor."""
    begin = np.maximum(source.begin[:, :, None], target.begin[:, None, :])
    size = np.maximum(np.minimum(source.end[:, :, None], target.end[:, None, :]) - begin, 0)
    q, r = np.nonzero(size.any(axis=0))
    if not len(q):  # an empty dimension
        q = r = np.zeros(1, dtype=np.int64)
    begin, size = begin[:, q, r], size[:, q, r]
    here = source.local[:, q] + begin - source.begin[:, q]
    there = target.local[:, r] + begin - target.begin[:, r]
    return Segments(source.part[q], target.part[r], size, here, there)


# -- byte ranges ------------------------------------------------------------------------------------------------------


class _RankRanges(NamedTuple):
    """Byte ranges of a tensor on ranks, and where each starts in the memory of its rank."""

    rank: I64
    begin: I64
    end: I64
    local: I64


def range_block(source: TensorLayout, target: TensorLayout) -> RangeBlock:
    """Return the cells of a tensor of which a side is given as byte ranges."""
    sides = [_rank_ranges(source), _rank_ranges(target)]
    cuts = np.unique(np.concatenate([column for side in sides for column in (side.begin, side.end)]))
    size = np.diff(cuts)
    ranks: list[list[tuple[int, ...]]] = []
    local: dict[str, dict[tuple[int, int], int]] = {}
    for name, side in zip(("source", "target"), sides, strict=True):
        found, places = _by_interval(side, cuts)
        ranks.append(found)
        local[name] = places
    missing = next((n for n, (a, b) in enumerate(zip(*ranks, strict=True)) if b and not a), None)
    if missing is not None:
        raise DemandError(
            f"tensor {source.name}: rank {ranks[1][missing][0]} wants bytes {cuts[missing]} to {cuts[missing + 1]}, "
            "which no source rank has"
        )
    return RangeBlock((source.name,), tuple(zip(*ranks, strict=True)), size, local)


def _by_interval(side: _RankRanges, cuts: I64) -> tuple[list[tuple[int, ...]], dict[tuple[int, int], int]]:
    """The ranks of each interval between cuts, and the offset of the interval on each."""
    ranks: list[list[int]] = [[] for _ in range(len(cuts) - 1)]
    places: dict[tuple[int, int], int] = {}
    first, last = np.searchsorted(cuts, side.begin), np.searchsorted(cuts, side.end)
    starts = cuts.tolist()
    columns = (side.rank, side.begin, side.local, first, last)
    for rank, begin, local, low, high in zip(*(column.tolist() for column in columns), strict=True):
        for number in range(low, high):
            ranks[number].append(rank)
            places[rank, number] = local + starts[number] - begin
    return [tuple(sorted(found)) for found in ranks], places


def _rank_ranges(tensor: TensorLayout) -> _RankRanges:
    if tensor.mesh is not None:
        return _from_mesh(tensor)
    rows, used = [], dict.fromkeys(tensor.ranks, 0)
    for part in tensor.ranges:
        rows.append((part.rank, part.begin, part.end, used[part.rank]))
        used[part.rank] += part.end - part.begin
    return _RankRanges(*np.array(rows, dtype=np.int64).T)


def _from_mesh(tensor: TensorLayout) -> _RankRanges:
    """The shards of a tensor on a mesh as byte ranges, each rank's in the order of its memory."""
    if tensor.mesh is None:
        raise DemandError(f"tensor {tensor.name}: is not on a mesh")
    shape = np.array([tensor.shape or (1,)], dtype=np.int64)
    side = mesh_side(shape, tensor.mesh, tensor.placements)
    rows: list[tuple[int, int, int, int]] = []
    for part, ranks in enumerate(side.ranks):
        places = np.unravel_index(part, [one.parts for one in side.dims])
        spans = [_spans(one, int(place)) for one, place in zip(side.dims, places, strict=True)]
        ranges = _rows(spans, tensor.shape or (1,), tensor.element_bytes)
        if len(rows) + len(ranges) * len(ranks) > _MOST_RANGES:
            raise DemandError(
                f"tensor {tensor.name}: one side is given as byte ranges, and the other has more than "
                f"{_MOST_RANGES:,} of them; give a mesh and placements on both sides"
            )
        rows += [(rank, *row) for rank in ranks for row in ranges]
    return _RankRanges(*np.array(rows, dtype=np.int64).reshape(-1, 4).T)


def _spans(shards: DimensionShards, part: int) -> list[tuple[int, int]]:
    """The intervals of a part along one dimension, in the order of its memory."""
    tensors = np.flatnonzero(shards.part == part)
    return [(int(shards.begin[0, q]), int(shards.end[0, q])) for q in tensors if shards.end[0, q] > shards.begin[0, q]]


def _rows(spans: list[list[tuple[int, int]]], shape: tuple[int, ...], unit: int) -> list[tuple[int, int, int]]:
    """The byte ranges of a product of intervals, in row-major order, as (begin, end, offset in the part)."""
    whole = len(spans)  # dimensions from here on are whole, so that their rows follow each other
    while whole > 1 and spans[whole - 1] == [(0, shape[whole - 1])]:
        whole -= 1
    inner = unit * int(np.prod(shape[whole:], dtype=np.int64))
    strides = [inner * int(np.prod(shape[dim + 1 : whole], dtype=np.int64)) for dim in range(whole)]
    outer = [[index for low, high in span for index in range(low, high)] for span in spans[: whole - 1]]
    count = int(np.prod([len(one) for one in outer], dtype=np.int64)) * len(spans[whole - 1])
    if count > _MOST_RANGES:
        return [(0, 0, 0)] * (_MOST_RANGES + 1)
    rows, used = [], 0
    for place in product(*outer):
        start = sum(index * stride for index, stride in zip(place, strides[:-1], strict=True))
        for low, high in spans[whole - 1]:
            size = (high - low) * strides[-1]
            rows.append((start + low * strides[-1], start + low * strides[-1] + size, used))
            used += size
    return rows
