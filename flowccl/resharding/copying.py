"""Bytes between the tensors of a rank and messages.

The functions work on arrays of numpy and tensors of torch: both have slices, `reshape` and assignment to slices.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from flowccl.resharding.cells import Box, CellBlock
from flowccl.resharding.traffic import Traffic


class _Entry(NamedTuple):
    """A cell in the stream of a class."""

    offset: int
    bytes: int
    block: CellBlock
    tensor: int
    cell: int


@dataclass(frozen=True, eq=False)
class RankStreams:
    """The streams of the classes that a rank has (side "source") or wants (side "target"), in its tensors.

    `arrays` returns the local part of a tensor as an array of bytes, whose last dimension counts bytes.
    """

    rank: int
    side: str
    entries: Mapping[int, list[_Entry]]
    arrays: Callable[[str], Any]

    def read(self, cls: int, begin: int, end: int, buffer: Any) -> None:
        """Copy bytes of a class from the tensors to a flat buffer of as many bytes."""
        for at, part in self._parts(cls, begin, end):
            buffer[at : at + prod(part.shape)].reshape(part.shape)[...] = part

    def write(self, cls: int, begin: int, end: int, buffer: Any) -> None:
        """Copy bytes of a class from a flat buffer to the tensors."""
        for at, part in self._parts(cls, begin, end):
            part[...] = buffer[at : at + prod(part.shape)].reshape(part.shape)

    def _parts(self, cls: int, begin: int, end: int) -> Iterator[tuple[int, Any]]:
        """The parts of tensors with bytes `begin` to `end` of a class, each with its place in the buffer."""
        entries = self.entries[cls]
        number = bisect_right(entries, begin, key=lambda entry: entry.offset) - 1
        while number < len(entries) and entries[number].offset < end:
            entry = entries[number]
            low, high = max(begin - entry.offset, 0), min(end - entry.offset, entry.bytes)
            if high > low:
                yield from self._boxes(entry, low, high, entry.offset + low - begin)
            number += 1

    def _boxes(self, entry: _Entry, low: int, high: int, at: int) -> Iterator[tuple[int, Any]]:
        array = self.arrays(entry.block.names[entry.tensor])
        box = entry.block.box(entry.tensor, entry.cell, self.rank, self.side)
        if len(box) != array.ndim:
            array = array.reshape(-1)
        cell = array[tuple(slice(a, b) for a, b in box)]
        for part in spans([b - a for a, b in box], low, high):
            yield at, cell[tuple(slice(a, b) for a, b in part)]
            at += prod(b - a for a, b in part)


def rank_streams(found: Traffic, rank: int, side: str, arrays: Callable[[str], Any]) -> RankStreams:
    """Return the streams of a rank on one side."""
    entries: dict[int, list[_Entry]] = {}
    for block, cls, offset in found.cells():
        cells = block.cells_of(rank, side)
        size = block.cell_bytes()[:, cells].tolist()
        start = offset[:, cells].tolist()
        for tensor, (sizes, starts) in enumerate(zip(size, start, strict=True)):
            for cell, bytes_, begin in zip(cells, sizes, starts, strict=True):
                if bytes_:
                    entries.setdefault(int(cls[cell]), []).append(_Entry(begin, bytes_, block, tensor, cell))
    for rows in entries.values():
        rows.sort(key=lambda entry: entry.offset)
    return RankStreams(rank, side, entries, arrays)


def copy_own(found: Traffic, have: RankStreams, want: RankStreams) -> None:
    """Copy what a rank both has and wants, cell by cell."""
    for cls, entries in want.entries.items():
        if want.rank not in found.classes[cls].sources:
            continue
        for owned, other in zip(have.entries[cls], entries, strict=True):
            (_, source), *_ = have._boxes(owned, 0, owned.bytes, 0)
            (_, target), *_ = want._boxes(other, 0, other.bytes, 0)
            target[...] = source.reshape(target.shape)


def spans(shape: list[int], begin: int, end: int) -> Iterator[Box]:
    """Yield boxes that hold elements `begin` to `end` of an array in row-major order, in that order."""
    if len(shape) == 1:
        if end > begin:
            yield ((begin, end),)
        return
    row = prod(shape[1:])
    whole = tuple((0, size) for size in shape[1:])
    if begin % row and begin < end:
        first, stop = begin // row, min(end, (begin // row + 1) * row)
        for inner in spans(shape[1:], begin - first * row, stop - first * row):
            yield ((first, first + 1), *inner)
        begin = stop
    if end - begin >= row:
        yield ((begin // row, end // row), *whole)
        begin = end // row * row
    if end > begin:
        for inner in spans(shape[1:], 0, end - begin):
            yield ((begin // row, begin // row + 1), *inner)
