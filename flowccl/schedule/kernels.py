"""Compiled loops of schedule/. Kept apart, because importing numba takes half a second."""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True)
def earliest_starts(
    order: NDArray[np.int64],
    ptr: NDArray[np.int64],
    before: NDArray[np.int64],
    lag: NDArray[np.int64],
    latest: NDArray[np.int64],
    soonest: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Least start >= soonest with start[i] >= start[before] + lag for all of i's predecessors; never above `latest`.

    Sweeps in `order` until nothing changes: one sweep where predecessors come first, more where lags are negative.
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
