"""Small helpers for arrays."""

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
