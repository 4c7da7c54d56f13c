"""The intervals of a tensor's dimension that each part of a mesh has, for many tensors at once.

The rules are those of torch's DTensor: placements apply from left to right; a dimension of n elements is divided into
parts of ceil(n / parts) elements, of which the last ones may be smaller or empty.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.resharding.layout import Mesh, Placement

I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class DimensionShards:
    """One dimension of tensors t, divided into `parts` parts; interval q belongs to part `part[q]`.

    Interval q has elements `begin[t, q]` to `end[t, q]`, and may be empty. In the memory of a rank with the part, it
    starts at element `local[t, q]`.
    """

    parts: int
    part: I64
    begin: I64
    end: I64

    @cached_property
    def local(self) -> I64:
        """Where each interval starts in the memory of its part."""
        result = np.zeros_like(self.begin)
        for part in range(self.parts):
            same_part = np.flatnonzero(self.part == part)
            if len(same_part) > 1:
                length = (self.end - self.begin)[:, same_part]
                result[:, same_part] = np.cumsum(length, axis=1) - length
        return result

    def sizes(self) -> I64:
        """Elements of each tensor in each part."""
        result = np.zeros((len(self.begin), self.parts), dtype=np.int64)
        for q, part in enumerate(self.part.tolist()):
            result[:, part] += self.end[:, q] - self.begin[:, q]
        return result


def dimension_shards(size: I64, dim: int, mesh: Mesh, placements: tuple[Placement, ...]) -> DimensionShards:
    """Return the shards of dimension `dim`, which has `size[t]` elements in tensor t."""
    zero = np.zeros((len(size), 1), dtype=np.int64)
    found = DimensionShards(1, np.zeros(1, dtype=np.int64), zero, size.reshape(-1, 1).astype(np.int64))
    for divisions, placement in zip(mesh.shape, placements, strict=True):
        if placement.dim == dim:
            found = _divided(found, divisions, placement.split)
    return found


def _divided(shards: DimensionShards, divisions: int, split: int) -> DimensionShards:
    """Each part divided into `divisions` parts; with `split`, each of its blocks is."""
    length = shards.sizes()
    columns: list[tuple[int, I64, I64]] = []
    local, old = shards.local, shards.end - shards.begin
    for part in range(shards.parts):
        total = length[:, part]
        block = -(-total // split)
        for place in range(divisions):
            for number in range(split):
                start = np.minimum(number * block, total)
                inside = np.minimum((number + 1) * block, total) - start
                size = -(-inside // divisions)
                low, high = start + np.minimum(place * size, inside), start + np.minimum((place + 1) * size, inside)
                for q in np.flatnonzero(shards.part == part).tolist():
                    first = shards.begin[:, q] + np.clip(low - local[:, q], 0, old[:, q])
                    last = shards.begin[:, q] + np.clip(high - local[:, q], 0, old[:, q])
                    columns.append((part * divisions + place, first, last))
    used = [column for column in columns if np.any(column[2] > column[1])] or columns[:1]
    owner = np.array([part for part, _, _ in used], dtype=np.int64)
    begin, end = (np.stack([column[at] for column in used], axis=1) for at in (1, 2))
    return DimensionShards(shards.parts * divisions, owner, begin, end)


@dataclass(frozen=True, eq=False)
class MeshSide:
    """One side, source or target, of tensors that lie alike: their shards, and the ranks that have each part.

    The parts of all dimensions together are numbered in row-major order; `ranks[p]` have part p.
    """

    dims: tuple[DimensionShards, ...]
    ranks: tuple[tuple[int, ...], ...]
    part_of_rank: dict[int, int]

    def part_number(self, parts: list[I64]) -> I64:
        """The number of the part with these numbers along each dimension."""
        number = np.zeros(1, dtype=np.int64)
        for shards, part in zip(self.dims, parts, strict=True):
            number = number * shards.parts + part
        return number


def mesh_side(shapes: I64, mesh: Mesh, placements: tuple[Placement, ...]) -> MeshSide:
    """Return the side of tensors of these shapes, one row each, on a mesh."""
    dims = tuple(dimension_shards(shapes[:, dim], dim, mesh, placements) for dim in range(shapes.shape[1]))
    coordinates = np.stack(np.unravel_index(np.arange(len(mesh.ranks)), mesh.shape), axis=1)
    number = np.zeros(len(mesh.ranks), dtype=np.int64)
    for dim in range(shapes.shape[1]):
        for axis, placement in enumerate(placements):
            if placement.dim == dim:
                number = number * mesh.shape[axis] + coordinates[:, axis]
    holders: list[list[int]] = [[] for _ in range(math.prod(one.parts for one in dims))]
    for rank, part in sorted(zip(mesh.ranks, number.tolist(), strict=True)):
        holders[part].append(rank)
    part_of = dict(zip(mesh.ranks, number.tolist(), strict=True))
    return MeshSide(dims, tuple(map(tuple, holders)), part_of)
