"""Compiled loops of fluid optima: maximum flows on a small network with fractions on its links."""

import numpy as np

from flowccl.compiled import F64, I64, Bool, compiled

_NOTHING = 1e-12


@compiled
def narrow_sets(
    arc_ptr: I64, arc: I64, end: I64, use: F64, source: int, sinks: I64, least: float
) -> tuple[float, Bool]:
    """Sets of nodes that less than `least` can enter from the source, and the least flow to any of the sinks.

    Arc 2k is link k and arc 2k + 1 the way back; `arc[arc_ptr[v]:arc_ptr[v + 1]]` leave node v, `end` is where each
    goes. Of each sink that gets too little there are the smallest and the largest such set; sinks inside a set that was
    found are not looked at again.
    """
    count = len(arc_ptr) - 1
    found, size = np.zeros((2 * len(sinks), count), dtype=np.bool_), 0
    known = np.zeros(count, dtype=np.bool_)
    room, weakest = np.empty(2 * len(use)), np.inf
    for sink in sinks:
        if known[sink]:
            continue
        for k in range(len(use)):
            room[2 * k], room[2 * k + 1] = use[k], 0.0
        flow = _most(arc_ptr, arc, end, room, source, sink)
        weakest = min(weakest, flow)
        if flow >= least:
            continue
        found[size] = _reaching(arc_ptr, arc, end, room, sink)
        known |= found[size]
        found[size + 1] = _reached(arc_ptr, arc, end, room, source) < 0
        size += 2
    return weakest, found[:size]


@compiled
def _most(arc_ptr: I64, arc: I64, end: I64, room: F64, source: int, sink: int) -> float:
    """The largest flow from source to sink on shortest ways first; `room` is what is left."""
    total = 0.0
    while True:
        by = _reached(arc_ptr, arc, end, room, source)
        if by[sink] < 0:
            return total
        amount, node = np.inf, sink
        while node != source:
            amount = min(amount, room[by[node]])
            node = end[by[node] ^ 1]
        node = sink
        while node != source:
            room[by[node]] -= amount
            room[by[node] ^ 1] += amount
            node = end[by[node] ^ 1]
        total += amount


@compiled
def _reached(arc_ptr: I64, arc: I64, end: I64, room: F64, source: int) -> I64:
    """By which arc each node is reached where there is room; -1 where it is not."""
    count = len(arc_ptr) - 1
    by, queue = np.full(count, -1, dtype=np.int64), np.empty(count, dtype=np.int64)
    by[source], queue[0], head, tail = 2 * len(room), source, 0, 1
    while head < tail:
        node = queue[head]
        head += 1
        for k in range(arc_ptr[node], arc_ptr[node + 1]):
            a = arc[k]
            if room[a] > _NOTHING and by[end[a]] < 0:
                by[end[a]] = a
                queue[tail] = end[a]
                tail += 1
    return by


@compiled
def _reaching(arc_ptr: I64, arc: I64, end: I64, room: F64, sink: int) -> Bool:
    """The nodes from which there is room to the sink."""
    count = len(arc_ptr) - 1
    inside, queue = np.zeros(count, dtype=np.bool_), np.empty(count, dtype=np.int64)
    inside[sink], queue[0], head, tail = True, sink, 0, 1
    while head < tail:
        node = queue[head]
        head += 1
        for k in range(arc_ptr[node], arc_ptr[node + 1]):
            back = arc[k] ^ 1  # from the other end to this node
            if room[back] > _NOTHING and not inside[end[arc[k]]]:
                inside[end[arc[k]]] = True
                queue[tail] = end[arc[k]]
                tail += 1
    return inside
