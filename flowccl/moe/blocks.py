"""Blocks: what a planner gets, by source and destinations."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Blocks:
    """What a source has for the same destinations in one host, sorted by host pair and source.

    Host pair p has the blocks `ptr[p]` to `ptr[p + 1] - 1`, and block b the destinations `to[to_ptr[b]:to_ptr[b + 1]]`.
    """

    ptr: NDArray[np.int64]
    source: NDArray[np.int32]
    bytes: NDArray[np.int64]
    to_ptr: NDArray[np.int64]
    to: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.source)
