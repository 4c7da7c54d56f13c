"""Pairing heaps in arrays: each is given by its top, -1 where it is empty; compiled.

Cell c has the key `key[c]`, its first child is `child[c]`, and the next child of the same parent is `sibling[c]`.
"""

from typing import Any

from numpy.typing import NDArray

from flowccl.compiled import I64, inner


@inner
def meld(child: I64, sibling: I64, key: NDArray[Any], one: int, other: int) -> int:
    """Join two heaps, the least key on top, `one` where both are as small; return the top of both."""
    if one < 0:
        return other
    if other < 0:
        return one
    if key[other] < key[one]:
        one, other = other, one
    sibling[other] = child[one]
    child[one] = other
    return one


@inner
def without_top(child: I64, sibling: I64, key: NDArray[Any], top: int) -> int:
    """Remove the top of a heap: join its children in pairs, then the pairs from the last to the first."""
    cell, pairs = child[top], -1
    while cell >= 0:
        one, other = cell, sibling[cell]
        cell = sibling[other] if other >= 0 else -1
        sibling[one] = -1
        if other >= 0:
            sibling[other] = -1
        pair = meld(child, sibling, key, one, other)
        sibling[pair] = pairs
        pairs = pair
    rest = -1
    while pairs >= 0:
        after = sibling[pairs]
        sibling[pairs] = -1
        rest = meld(child, sibling, key, rest, pairs)
        pairs = after
    child[top], sibling[top] = -1, -1
    return rest
