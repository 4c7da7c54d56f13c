"""Functions whose results have the same bits on every processor.

Libraries of mathematical functions choose among implementations by the processor, and their last bits differ.
Additions and multiplications are rounded in the same way everywhere.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Real = TypeVar("Real", float, NDArray[np.float64])

_LN_10 = 2.302585092994046
_SQUARINGS = 30


def exponential(x: Real) -> Real:
    """Return e^x as (1 + x / 2^30)^(2^30), to some seven digits for |x| up to 16."""
    result = 1.0 + x * 2.0**-_SQUARINGS
    for _ in range(_SQUARINGS):
        result = result * result
    return result


def power_of_ten(x: Real) -> Real:
    """Return 10^x, to some seven digits for |x| up to 7."""
    return exponential(_LN_10 * x)
