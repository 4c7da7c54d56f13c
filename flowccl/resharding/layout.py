"""Layouts: which rank has which part of which tensor."""

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from flowccl.errors import DemandError

MAX_BYTES = 2**60
DTYPE_BYTES = {
    "float64": 8,
    "int64": 8,
    "uint64": 8,
    "complex64": 8,
    "complex128": 16,
    "float32": 4,
    "int32": 4,
    "uint32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int16": 2,
    "uint16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}
"""Bytes of an element of each known dtype, by the names of torch."""


@dataclass(frozen=True, slots=True)
class Placement:
    """How a tensor lies on one dimension of a mesh: whole on every rank, or divided along its dimension `dim`.

    `dim` None is torch's Replicate. With `split` above 1, the placement is torch's _StridedShard: the dimension is
    first divided into `split` blocks, and each block is divided among the ranks.
    """

    dim: int | None = None
    split: int = 1

    def __str__(self) -> str:
        if self.dim is None:
            return "Replicate"
        return f"Shard({self.dim})" if self.split == 1 else f"StridedShard({self.dim}, {self.split})"


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks as an array of one or more dimensions, in row-major order, as torch's DeviceMesh."""

    shape: tuple[int, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.shape or min(self.shape) < 1 or math.prod(self.shape) != len(self.ranks):
            size = " x ".join(map(str, self.shape))
            raise DemandError(f"a mesh of shape {size or '()'} cannot have {len(self.ranks)} ranks")
        if len(set(self.ranks)) != len(self.ranks):
            raise DemandError(f"a mesh names rank {_first_twice(self.ranks)} twice")
        if min(self.ranks) < 0:
            raise DemandError(f"a mesh names rank {min(self.ranks)}; ranks start at 0")


@dataclass(frozen=True, slots=True)
class TensorRange:
    """Bytes `begin` to `end` of a tensor in row-major order, on a rank; its ranges follow each other in its memory."""

    rank: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """One tensor: its shape, its dtype, and where it lies, on a mesh or as byte ranges.

    `dtype` may be "" if only the bytes of an element are known.
    """

    name: str
    shape: tuple[int, ...]
    element_bytes: int
    dtype: str = ""
    mesh: Mesh | None = None
    placements: tuple[Placement, ...] = ()
    ranges: tuple[TensorRange, ...] = ()

    def __post_init__(self) -> None:
        if self.element_bytes < 1:
            raise DemandError(f"tensor {self.name}: an element has at least 1 byte, got {self.element_bytes}")
        if any(size < 0 for size in self.shape):
            raise DemandError(f"tensor {self.name}: sizes must not be negative, got {list(self.shape)}")
        if self.bytes > MAX_BYTES:
            raise DemandError(f"tensor {self.name}: has more than 2^60 bytes")
        if self.mesh is not None:
            self._check_placements(self.mesh)
        else:
            self._check_ranges()

    @property
    def bytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * self.element_bytes

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have a part of the tensor; a part may be empty."""
        if self.mesh is not None:
            return self.mesh.ranks
        return tuple(sorted({part.rank for part in self.ranges}))

    def _check_placements(self, mesh: Mesh) -> None:
        if len(self.placements) != len(mesh.shape):
            raise DemandError(
                f"tensor {self.name}: has {len(self.placements)} placements, but its mesh has "
                f"{len(mesh.shape)} dimensions; give one placement for each"
            )
        for placement in self.placements:
            if placement.dim is not None and not 0 <= placement.dim < len(self.shape):
                dims = f"only dimensions 0 to {len(self.shape) - 1}" if self.shape else "no dimensions"
                raise DemandError(f"tensor {self.name}: {placement}, but its shape {list(self.shape)} has {dims}")

    def _check_ranges(self) -> None:
        after: dict[int, list[TensorRange]] = {}
        for part in self.ranges:
            if not 0 <= part.begin <= part.end <= self.bytes:
                raise DemandError(
                    f"tensor {self.name}: bytes {part.begin} to {part.end} of rank {part.rank} do not lie within its "
                    f"{self.bytes} bytes"
                )
            if part.rank < 0:
                raise DemandError(f"tensor {self.name}: a range names rank {part.rank}; ranks start at 0")
            after.setdefault(part.rank, []).append(part)
        for rank, parts in after.items():
            ordered = sorted((part for part in parts if part.end > part.begin), key=lambda part: part.begin)
            for one, other in pairwise(ordered):
                if other.begin < one.end:
                    raise DemandError(
                        f"tensor {self.name}: the ranges {one.begin} to {one.end} and {other.begin} to {other.end} of "
                        f"rank {rank} overlap"
                    )


@dataclass(frozen=True)
class Layout:
    """The tensors of a model and where their parts lie. Names are unique."""

    tensors: tuple[TensorLayout, ...]
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", tuple(self.tensors))
        if not self.tensors:
            raise DemandError(f"layout {self.name}: has no tensors" if self.name else "a layout has no tensors")
        if len(self.by_name) != len(self.tensors):
            raise DemandError(f"tensor {_first_twice([one.name for one in self.tensors])} is given twice")

    @cached_property
    def by_name(self) -> dict[str, TensorLayout]:
        """The tensors by name."""
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """All ranks that have a part of a tensor."""
        meshes = {tensor.mesh for tensor in self.tensors if tensor.mesh is not None}
        ranks = {rank for mesh in meshes for rank in mesh.ranks}
        ranks |= {part.rank for tensor in self.tensors for part in tensor.ranges}
        return tuple(sorted(ranks))

    @property
    def bytes(self) -> int:
        """Bytes of all tensors, each counted once."""
        return sum(tensor.bytes for tensor in self.tensors)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything but the layout's name; the order of the tensors does not matter."""
        rows = sorted((_facts(tensor) for tensor in self.tensors), key=lambda row: str(row[0]))
        return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()[:16]


def _facts(tensor: TensorLayout) -> list[Any]:
    mesh = tensor.mesh
    placed: list[Any] = [list(mesh.shape), list(mesh.ranks)] if mesh is not None else []
    parts = [[part.rank, part.begin, part.end] for part in tensor.ranges]
    size = [list(tensor.shape), tensor.element_bytes, tensor.dtype]
    return [tensor.name, *size, *placed, [str(one) for one in tensor.placements], parts]


def _first_twice(values: Iterable[Any]) -> Any:
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
