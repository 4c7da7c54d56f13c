"""Decomposition of a flow into paths: what arrives is followed back to the source, along the largest flow.

Each path takes the smallest amount along it, so it uses up an arc: there are at most as many paths as arcs with flow.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

NOTHING = 1e-7  # amounts that count as zero


class FlowPath(NamedTuple):
    """A path of `amount` from the source to node `end`: its arcs, in order."""

    end: int
    arcs: tuple[int, ...]
    amount: float


def flow_paths(tail: I64, head: I64, flow: F64, source: int, wanted: F64) -> Iterator[FlowPath]:
    """Yield the paths of a flow on arcs, without cycles, to each node that keeps the amount `wanted` of it."""
    by_head = np.argsort(head, kind="stable")
    ptr = np.searchsorted(head[by_head], np.arange(len(wanted) + 1))
    left = flow.copy()
    for end in np.flatnonzero(wanted > NOTHING).tolist():
        want = float(wanted[end])
        while want > NOTHING and (arcs := _path_back(tail, by_head, ptr, source, end, left)):
            amount = min(want, float(left[arcs].min()))
            left[arcs] -= amount
            want -= amount
            yield FlowPath(end, tuple(arcs), amount)


def _path_back(tail: I64, by_head: I64, ptr: I64, source: int, end: int, left: F64) -> list[int]:
    """Follow the largest flow from the end back to the source; cycles are removed from the flow."""
    arcs: list[int] = []
    passed = {end: 0}
    at = end
    while at != source:
        into = by_head[ptr[at] : ptr[at + 1]]
        if not len(into) or left[into].max() <= NOTHING:
            return []
        arcs.append(int(into[np.argmax(left[into])]))
        at = int(tail[arcs[-1]])
        if at in passed:
            cycle = arcs[passed[at] :]
            left[cycle] -= left[cycle].min()
            return _path_back(tail, by_head, ptr, source, end, left)
        passed[at] = len(arcs)
    return arcs[::-1]
