"""Pairing heaps, one per pair of neighbours: the chunks that its first node has, the highest score on top."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I32, I64, grown, inlined, inner, maker


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
    heaps.root[heap] = _meld(heaps, heaps.root[heap], cell)


@inlined
def free_cell(heaps: Heaps, cell: int) -> None:
    """Free a popped cell for other entries."""
    heaps.sibling[cell] = heaps.free[0]
    heaps.free[0] = cell


@inner
def pop_cell(heaps: Heaps, heap: int) -> int:
    """Remove and return the top cell: meld its children in pairs, then the pairs from the last to the first."""
    top = heaps.root[heap]
    pairs = -1
    node = heaps.child[top]
    while node >= 0:
        other = heaps.sibling[node]
        after = heaps.sibling[other] if other >= 0 else -1
        heaps.sibling[node] = -1
        if other >= 0:
            heaps.sibling[other] = -1
        melded = _meld(heaps, node, other)
        heaps.sibling[melded] = pairs
        pairs = melded
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
    """Meld two heaps, the larger key on top."""
    if a < 0:
        return b
    if b < 0:
        return a
    if heaps.key[a] < heaps.key[b]:
        a, b = b, a
    heaps.sibling[b] = heaps.child[a]
    heaps.child[a] = b
    return a
