"""All bytes of two layouts, grouped by the ranks that have them and the ranks that want them.

Each tensor is divided into cells, on which neither its sources nor its targets change. The cells of all tensors with
the same sources and the same targets form one class: a stream of bytes, in the order of the tensors and of the cells
in each. A plan moves classes, so its size does not depend on the number of tensors.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import DemandError
from flowccl.resharding.cells import CellBlock, mesh_blocks, range_block
from flowccl.resharding.layout import Layout, TensorLayout
from flowccl.topology.topology import Topology
from flowccl.wording import counted

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TrafficClass:
    """Bytes that all `sources` have and all `targets` want; a target that is a source copies them itself."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]
    bytes: int

    @property
    def missing(self) -> tuple[int, ...]:
        """The targets that do not have the bytes yet."""
        return tuple(rank for rank in self.targets if rank not in self.sources)


@dataclass(frozen=True, eq=False)
class Traffic:
    """The classes of two layouts, and the cells of every tensor in blocks of tensors that lie alike."""

    source: Layout
    target: Layout
    classes: tuple[TrafficClass, ...]
    blocks: tuple[CellBlock, ...]
    class_of_cell: tuple[I64, ...]

    @property
    def moved(self) -> tuple[int, ...]:
        """The classes with bytes that some target does not have yet."""
        return tuple(number for number, one in enumerate(self.classes) if one.bytes and one.missing)

    @property
    def ranks(self) -> int:
        """One more than the largest rank of both layouts."""
        return max(self.source.ranks[-1], self.target.ranks[-1]) + 1

    @property
    def copied_bytes(self) -> int:
        """Bytes that arrive at ranks which do not have them: those of every class, once for each missing target."""
        return sum(one.bytes * len(one.missing) for one in self.classes)

    def cells(self) -> Iterator[tuple[CellBlock, I64, I64]]:
        """Yield each block with the class of each cell and its offset in the stream of the class, [tensor, cell]."""
        base = np.zeros(len(self.classes), dtype=np.int64)
        for block, cls in zip(self.blocks, self.class_of_cell, strict=True):
            size = block.cell_bytes()
            flat = np.tile(cls, len(size))
            order = np.argsort(flat, kind="stable")
            ordered = size.reshape(-1)[order]
            before = np.cumsum(ordered) - ordered
            total = np.bincount(flat, size.reshape(-1), len(base)).astype(np.int64)
            start = np.cumsum(total) - total
            offset = np.empty(size.size, dtype=np.int64)
            offset[order] = before - start[flat[order]] + base[flat[order]]
            base = base + total
            yield block, cls, offset.reshape(size.shape)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Numbers for people: tensors, bytes, classes."""
        return {
            "tensors": len(self.target.tensors),
            "bytes": self.target.bytes,
            "copied_bytes": self.copied_bytes,
            "classes": len(self.moved),
        }


def traffic(source: Layout, target: Layout, *, partial: bool = False) -> Traffic:
    """Return what must move from one layout to another; `partial` allows source tensors that no target wants.

    Raise DemandError if the layouts do not fit: other shapes or dtypes, missing tensors, bytes that no source has.
    """
    pairs = _pairs(source, target, partial)
    blocks: list[CellBlock] = [*mesh_blocks([pair for pair in pairs if _on_meshes(pair)])]
    blocks += [range_block(*pair) for pair in pairs if not _on_meshes(pair)]
    numbers: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    totals: list[int] = []
    class_of_cell = []
    for block in blocks:
        sizes = block.total_bytes()
        found = np.empty(block.num_cells, dtype=np.int64)
        for cell, key in enumerate(block.keys):
            number = numbers.setdefault(key, len(totals))
            if number == len(totals):
                totals.append(0)
            totals[number] += int(sizes[cell])
            found[cell] = number
        class_of_cell.append(found)
    classes = tuple(TrafficClass(*key, totals[number]) for key, number in numbers.items())
    return Traffic(source, target, classes, tuple(blocks), tuple(class_of_cell))


def check_ranks(found: Traffic, topology: Topology) -> None:
    """Raise DemandError if a layout names a rank that the machine does not have."""
    for what, layout in (("source", found.source), ("target", found.target)):
        if layout.ranks[-1] >= topology.num_gpus:
            raise DemandError(
                f"the {what} layout names rank {layout.ranks[-1]}, but {topology.name} has "
                f"{counted(topology.num_gpus, 'GPU')}: ranks 0 to {topology.num_gpus - 1}"
            )


def _on_meshes(pair: tuple[TensorLayout, TensorLayout]) -> bool:
    return pair[0].mesh is not None and pair[1].mesh is not None


def _pairs(source: Layout, target: Layout, partial: bool) -> list[tuple[TensorLayout, TensorLayout]]:
    """The tensors of both layouts, in the order of the source layout."""
    for tensor in target.tensors:
        if tensor.name not in source.by_name:
            raise DemandError(f"tensor {tensor.name} is in the target layout, but not in the source layout")
    result = []
    for tensor in source.tensors:
        other = target.by_name.get(tensor.name)
        if other is None:
            if not partial:
                raise DemandError(
                    f"tensor {tensor.name} is in the source layout, but not in the target layout; "
                    "allow it with --partial (partial=True)"
                )
            continue
        if tensor.shape != other.shape:
            shapes = f"{list(tensor.shape)} in the source layout and {list(other.shape)} in the target layout"
            raise DemandError(f"tensor {tensor.name}: its shape is {shapes}; the shapes must be equal")
        if tensor.element_bytes != other.element_bytes or (
            tensor.dtype and other.dtype and tensor.dtype != other.dtype
        ):
            one, two = (part.dtype or f"{part.element_bytes} bytes per element" for part in (tensor, other))
            raise DemandError(
                f"tensor {tensor.name}: is {one} in the source layout and {two} in the target layout; cast it before, "
                "since a plan only moves bytes"
            )
        result.append((tensor, other))
    if not result or all(tensor.bytes == 0 for tensor, _ in result):
        raise DemandError("the two layouts have no bytes in common; there is nothing to move")
    return result
