"""The transfers of one chunk over a tree, a path, or a pair of trees, as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.methods.rates.network import I64, Path


@dataclass(frozen=True, eq=False)
class ChunkTransfers:
    """Transfers that bring a chunk from its sources to all destinations.

    Transfer i crosses `link[ptr[i]:ptr[i + 1]]` and reduces or not. It waits for every transfer with which it forms a
    pair (`before`, `after`), and `level[i]` is the length of the longest chain of transfers before it.
    """

    ptr: I64
    link: I64
    reduces: NDArray[np.bool_]
    before: I64
    after: I64
    level: I64

    @classmethod
    def of(
        cls, paths: Sequence[Path], level: Sequence[int], waits: Sequence[tuple[int, int]], *, reduce: bool
    ) -> "ChunkTransfers":
        """Transfers that all reduce or all copy; `waits` are pairs of a transfer and one that waits for it."""
        pairs = np.array(waits, dtype=np.int64).reshape(-1, 2)
        link = np.array([k for path in paths for k in path], dtype=np.int64)
        ptr = pointers([len(path) for path in paths]).astype(np.int64)
        return cls(ptr, link, np.full(len(paths), reduce), pairs[:, 0], pairs[:, 1], np.array(level, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.reduces)

    def then(self, other: "ChunkTransfers") -> "ChunkTransfers":
        """The plan, followed by another one, whose first transfers wait for its last ones."""
        count = len(self)
        is_last, is_first = np.ones(count, dtype=np.bool_), np.ones(len(other), dtype=np.bool_)
        is_last[self.before] = is_first[other.after] = False
        last, first = np.flatnonzero(is_last), np.flatnonzero(is_first) + count
        return ChunkTransfers(
            np.concatenate((self.ptr, self.ptr[-1] + other.ptr[1:])),
            np.concatenate((self.link, other.link)),
            np.concatenate((self.reduces, other.reduces)),
            np.concatenate((self.before, other.before + count, np.repeat(last, len(first)))),
            np.concatenate((self.after, other.after + count, np.tile(first, len(last)))),
            np.concatenate((self.level, other.level + int(self.level.max(initial=-1)) + 1)),
        )
