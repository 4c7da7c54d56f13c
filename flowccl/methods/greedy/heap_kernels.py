"""Pairing heaps, one for each pair of neighbours: the chunks that its source has, the one that helps most on top."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I32, I64, grown, inlined, inner, maker


class Heaps(NamedTuple):
    """Cells of all heaps in common arrays; -1 is no cell."""

    root: I64  # the top of each heap
    key: F64
    chunk: I32
    child: I64
    sibling: I64
    used: I64  # one number: cells from there on are fresh
    free: I64  # one number: the first of the cells that were given back, each the sibling of the one before


@maker
def new_heaps(count: int, room: int) -> Heaps:
    """Empty heaps, and cells for so many entries."""
    return Heaps(
        np.full(count, -1, dtype=np.int64),
        np.empty(room, dtype=np.float64),
        np.empty(room, dtype=np.int32),
        np.empty(room, dtype=np.int64),
        np.empty(room, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
        np.full(1, -1, dtype=np.int64),
    )


@inlined
def lack_room(heaps: Heaps, more: int) -> bool:
    """Whether there may not be cells for so many more entries."""
    return bool(heaps.used[0] + more > len(heaps.key))


@maker
def larger_heaps(heaps: Heaps) -> Heaps:
    """The same entries, and as many cells again."""
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
    """Add an entry; there must be a cell for it."""
    cell = heaps.free[0]
    if cell >= 0:
        heaps.free[0] = heaps.sibling[cell]
    else:
        cell = heaps.used[0]
        heaps.used[0] += 1
    heaps.key[cell], heaps.chunk[cell] = key, chunk
    put_back(heaps, heap, cell)


@inlined
def put_back(heaps: Heaps, heap: int, cell: int) -> None:
    """A cell that was taken out, with the chunk and the key that it has."""
    heaps.child[cell], heaps.sibling[cell] = -1, -1
    heaps.root[heap] = _meld(heaps, heaps.root[heap], cell)


@inlined
def give_back(heaps: Heaps, cell: int) -> None:
    """A cell that was taken out, for other entries."""
    heaps.sibling[cell] = heaps.free[0]
    heaps.free[0] = cell


@inner
def take_out(heaps: Heaps, heap: int) -> int:
    """The top cell; its children melded in pairs, then the pairs from the last to the first."""
    top = heaps.root[heap]
    pairs = -1
    node = heaps.child[top]
    while node >= 0:
        other = heaps.sibling[node]
        after = heaps.sibling[other] if other >= 0 else -1
        heaps.sibling[node] = -1
        if other >= 0:
            heaps.sibling[other] = -1
        joined = _meld(heaps, node, other)
        heaps.sibling[joined] = pairs
        pairs = joined
        node = after
    rest = -1
    while pairs >= 0:
        after = heaps.sibling[pairs]
        heaps.sibling[pairs] = -1
        rest = _meld(heaps, rest, pairs)
        pairs = after
    heaps.root[heap] = rest
    return int(top)


@inner
def _meld(heaps: Heaps, a: int, b: int) -> int:
    """One heap of two, the larger key on top."""
    if a < 0:
        return b
    if b < 0:
        return a
    if heaps.key[a] < heaps.key[b]:
        a, b = b, a
    heaps.sibling[b] = heaps.child[a]
    heaps.child[a] = b
    return a
