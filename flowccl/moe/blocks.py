"""Blocks: what a planner gets, by source and destinations."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.moe.table_kernels import BlockArrays

_MOST_UNIT = 4096


def common_unit(matrix: NDArray[np.int64]) -> int:
    """Return the unit in which the entries of a matrix are divided: a power of two from 16 to 4,096 bytes, or 1."""
    unit = int(np.gcd(int(np.gcd.reduce(matrix, axis=None)), _MOST_UNIT))
    return unit if unit >= 16 else 1


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

    @property
    def tables(self) -> BlockArrays:
        """The arrays for compiled loops."""
        return BlockArrays(self.ptr, self.source, self.bytes, self.to_ptr, self.to)
