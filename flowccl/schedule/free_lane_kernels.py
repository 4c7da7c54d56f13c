"""Compiled loop that gives every use of a trunk one of its lanes."""

import numpy as np

from flowccl.compiled import I64, compiled


@compiled
def free_lanes(order: I64, trunk: I64, start_ps: I64, end_ps: I64, ptr: I64, lane: I64) -> I64:
    """Return the lane of each use of a trunk, the one that is free for the longest; -1 where none is.

    `order` has the uses by their start; trunk t has the lanes `lane[ptr[t]:ptr[t + 1]]`.
    """
    free_ps, chosen = np.zeros(len(lane), dtype=np.int64), np.empty(len(trunk), dtype=np.int64)
    for use in order:
        best = ptr[trunk[use]]
        for at in range(ptr[trunk[use]], ptr[trunk[use] + 1]):
            if free_ps[at] < free_ps[best]:
                best = at
        chosen[use] = lane[best] if free_ps[best] <= start_ps[use] else -1
        free_ps[best] = end_ps[use]
    return chosen
