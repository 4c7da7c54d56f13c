"""Compiled loops of schedule generation. A module of its own, because importing numba takes half a second."""

import numpy as np

from flowccl.compiled import I64, compiled


@compiled
def earliest_starts(
    order: I64,
    ptr: I64,
    before: I64,
    lag: I64,
    latest: I64,
    soonest: I64,
) -> I64:
    """Return the least starts >= `soonest` with start[i] >= start[before] + lag for all predecessors of i.

    No start exceeds `latest`. Sweeps in `order` until nothing changes: one sweep if predecessors come first, more if
    there are negative lags.
    """
    start = np.minimum(soonest, latest)
    changed = True
    while changed:
        changed = False
        for i in order:
            value = start[i]
            for k in range(ptr[i], ptr[i + 1]):
                value = max(value, start[before[k]] + lag[k])
            value = min(value, latest[i])
            if value > start[i]:
                start[i] = value
                changed = True
    return start


@compiled
def longest_tails(
    order: I64,
    ptr: I64,
    after: I64,
    lag: I64,
    takes: I64,
) -> I64:
    """Return the tail of each transfer: the time from its start to the end of its last successor.

    `order` lists successors first.
    """
    tail = takes.copy()
    for i in order:
        for k in range(ptr[i], ptr[i + 1]):
            tail[i] = max(tail[i], lag[k] + tail[after[k]])
    return tail
