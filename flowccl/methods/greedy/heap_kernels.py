"""Pairing heaps, one per pair of neighbours: the chunks that its first node has, the highest score on top.

A key is the negative score: the least is on top.
"""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I32, I64, grown, inlined, inner, maker
from flowccl.schedule.generation.pairing_kernels import meld, without_top


class Heaps(NamedTuple):
    """The cells of all heaps in common arrays; -1 means no cell."""

    root: I64  # the top of each heap
    key: F64
    chunk: I32
    child: I64
    sibling: I64
    used: I64  # one number: the first cell that was never used
    free: I64  # one number: the first freed cell; `sibling` links the others


@maker
def new_heaps(count: int, space: int) -> Heaps:
    """Empty heaps, and cells for `space` entries."""
    return Heaps(
        np.full(count, -1, dtype=np.int64),
        np.empty(space, dtype=np.float64),
        np.empty(space, dtype=np.int32),
        np.empty(space, dtype=np.int64),
        np.empty(space, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
        np.full(1, -1, dtype=np.int64),
    )


@inlined
def heaps_lack_space(heaps: Heaps, more: int) -> bool:
    """Whether the cells may not suffice for `more` entries."""
    return bool(heaps.used[0] + more > len(heaps.key))


@maker
def larger_heaps(heaps: Heaps) -> Heaps:
    """The same entries, with twice as many cells."""
    return Heaps(
        heaps.root,
        grown(heaps.key),
        grown(heaps.chunk),
        grown(heaps.child),
        grown(heaps.sibling),
        heaps.used,
        heaps.free,
    )


@inlined
def add(heaps: Heaps, heap: int, key: float, chunk: int) -> None:
    """Add an entry; a cell must be free."""
    cell = heaps.free[0]
    if cell >= 0:
        heaps.free[0] = heaps.sibling[cell]
    else:
        cell = heaps.used[0]
        heaps.used[0] += 1
    heaps.key[cell], heaps.chunk[cell] = key, chunk
    reinsert(heaps, heap, cell)


@inlined
def reinsert(heaps: Heaps, heap: int, cell: int) -> None:
    """Insert a popped cell again, with its chunk and key."""
    heaps.child[cell], heaps.sibling[cell] = -1, -1
    heaps.root[heap] = meld(heaps.child, heaps.sibling, heaps.key, heaps.root[heap], cell)


@inlined
def free_cell(heaps: Heaps, cell: int) -> None:
    """Free a popped cell for other entries."""
    heaps.sibling[cell] = heaps.free[0]
    heaps.free[0] = cell


@inner
def pop_cell(heaps: Heaps, heap: int) -> int:
    """Remove and return the top cell."""
    top = heaps.root[heap]
    heaps.root[heap] = without_top(heaps.child, heaps.sibling, heaps.key, top)
    return int(top)
