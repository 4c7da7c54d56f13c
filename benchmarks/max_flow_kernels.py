"""Compiled loops of fluid optima: maximum flows on a small network with fractional capacities."""

import numpy as np

from flowccl.compiled import F64, I64, Bool, compiled, maker

_NOTHING = 1e-12


@compiled
def narrow_sets(
    arc_ptr: I64, arc: I64, end: I64, use: F64, source: int, sinks: I64, least: float
) -> tuple[float, Bool]:
    """Sets of nodes that less than `least` can enter from the source, and the smallest maximum flow to any sink.

    Arc 2k is link k and arc 2k + 1 its reverse; `arc[arc_ptr[v]:arc_ptr[v + 1]]` leave node v, and `end` is the head of
    each arc. For each sink with too little flow, the smallest and the largest such set are returned; sinks inside a set
    that was found are skipped.
    """
    count = len(arc_ptr) - 1
    found, size = np.zeros((2 * len(sinks), count), dtype=np.bool_), 0
    known = np.zeros(count, dtype=np.bool_)
    residual_capacity, weakest = np.empty(2 * len(use)), np.inf
    for sink in sinks:
        if known[sink]:
            continue
        for k in range(len(use)):
            residual_capacity[2 * k], residual_capacity[2 * k + 1] = use[k], 0.0
        flow = _max_flow(arc_ptr, arc, end, residual_capacity, source, sink)
        weakest = min(weakest, flow)
        if flow >= least:
            continue
        found[size] = _reaching(arc_ptr, arc, end, residual_capacity, sink)
        known |= found[size]
        found[size + 1] = _reached(arc_ptr, arc, end, residual_capacity, source) < 0
        size += 2
    return weakest, found[:size]


@maker
def _max_flow(arc_ptr: I64, arc: I64, end: I64, residual_capacity: F64, source: int, sink: int) -> float:
    """The maximum flow from source to sink by shortest augmenting paths; `residual_capacity` is what is left."""
    total = 0.0
    while True:
        by = _reached(arc_ptr, arc, end, residual_capacity, source)
        if by[sink] < 0:
            return total
        amount, node = np.inf, sink
        while node != source:
            amount = min(amount, residual_capacity[by[node]])
            node = end[by[node] ^ 1]
        node = sink
        while node != source:
            residual_capacity[by[node]] -= amount
            residual_capacity[by[node] ^ 1] += amount
            node = end[by[node] ^ 1]
        total += amount


@maker
def _reached(arc_ptr: I64, arc: I64, end: I64, residual_capacity: F64, source: int) -> I64:
    """The arc by which each node is reached in the residual network; -1 if it is not."""
    count = len(arc_ptr) - 1
    by, queue = np.full(count, -1, dtype=np.int64), np.empty(count, dtype=np.int64)
    by[source], queue[0], head, tail = 2 * len(residual_capacity), source, 0, 1
    while head < tail:
        node = queue[head]
        head += 1
        for k in range(arc_ptr[node], arc_ptr[node + 1]):
            a = arc[k]
            if residual_capacity[a] > _NOTHING and by[end[a]] < 0:
                by[end[a]] = a
                queue[tail] = end[a]
                tail += 1
    return by


@maker
def _reaching(arc_ptr: I64, arc: I64, end: I64, residual_capacity: F64, sink: int) -> Bool:
    """The nodes from which the sink can be reached in the residual network."""
    count = len(arc_ptr) - 1
    inside, queue = np.zeros(count, dtype=np.bool_), np.empty(count, dtype=np.int64)
    inside[sink], queue[0], head, tail = True, sink, 0, 1
    while head < tail:
        node = queue[head]
        head += 1
        for k in range(arc_ptr[node], arc_ptr[node + 1]):
            back = arc[k] ^ 1  # from the other end to this node
            if residual_capacity[back] > _NOTHING and not inside[end[arc[k]]]:
                inside[end[arc[k]]] = True
                queue[tail] = end[arc[k]]
                tail += 1
    return inside
