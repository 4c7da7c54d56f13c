"""Small helpers for arrays."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

NEVER = int(np.iinfo(np.int64).max)
"""A time in picoseconds that never comes."""


def pointers(counts: ArrayLike) -> NDArray[np.int64]:
    """Where each row begins in an array of rows of these lengths, one after the other; the last entry is its length."""
    known = np.asarray(counts, dtype=np.int64)
    result = np.zeros(len(known) + 1, dtype=np.int64)
    np.cumsum(known, out=result[1:])
    return result


def members(counts: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (list, place in it) of the members of lists of some lengths, one list after the other."""
    ptr = pointers(counts)
    owner = np.repeat(np.arange(len(ptr) - 1, dtype=np.int64), np.diff(ptr))
    return owner, np.arange(len(owner), dtype=np.int64) - ptr[owner]


def distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The different values in their order. `np.unique` hashes, which takes many times as long for millions of keys."""
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def without_any(values: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.int64]:
    """The different values that are not among the others, which are sorted; in their order."""
    kept = distinct(values)
    return kept[~is_among(kept, others)]


def is_among(values: NDArray[np.int64], ordered: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each value is among some sorted ones."""
    if not len(ordered):
        return np.zeros(len(values), dtype=np.bool_)
    return np.asarray(ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values)


def components(nodes: int, src: ArrayLike, dst: ArrayLike, *, strong: bool = False) -> NDArray[np.int32]:
    """The connected component of each node of a graph with these edges; if `strong`, over paths in both directions."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    edges = np.ones(np.size(src), dtype=np.int32), (np.asarray(src), np.asarray(dst))
    graph: Any = csr_matrix(edges, (nodes, nodes))
    return np.asarray(connected_components(graph, directed=strong, connection="strong")[1])
