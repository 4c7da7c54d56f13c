"""Integers from floats, so that the last bits of a float never decide which bound, cut or partition is chosen.

Sums, exponentials and linear algebra differ in their last bits between CPUs. All choices in this package therefore
compare integers, and ties go to the first candidate.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_GRID = 2.0**30


def whole_ps(ps: float) -> int:
    """Return a lower bound in whole picoseconds.

    Finish times are whole picoseconds, so the bound is rounded up, after subtracting more than the rounding error.
    """
    return max(int(np.ceil(ps * (1 - 1e-12))), 0)


def on_grid(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return non-negative values as multiples of 2^-30 of the largest one; values above 0 stay above 0."""
    largest = float(values.max(initial=0.0))
    if largest <= 0:
        return np.zeros(values.shape, dtype=np.int64)
    scaled = np.rint(values * (_GRID / largest)).astype(np.int64)
    return np.where(values > 0, np.maximum(scaled, 1), scaled)
