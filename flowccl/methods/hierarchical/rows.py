"""Arrays of the transfers of a plan that grow while chunks are planned."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.methods.hierarchical.row_kernels import PlanRows, waits_of
from flowccl.methods.hierarchical.trees import TreeBuilder
from flowccl.topology.routes import Routes

I64 = NDArray[np.int64]


class GrowingRows:
    """The transfers of a plan, the links that they take and what they wait for."""

    def __init__(self, nodes: int) -> None:
        none = np.zeros(0, dtype=np.int64)
        wait, exchange, entry = (np.zeros((0, columns), dtype=np.int64) for columns in (2, 2, 3))
        newest, used = np.full(nodes, -1, dtype=np.int64), np.zeros(5, dtype=np.int64)
        self.rows = PlanRows(none, none, none.astype(np.bool_), none, wait, exchange, entry, newest, used)

    @property
    def marks(self) -> tuple[int, int]:
        """The number of transfers, and of rows that say what they wait for."""
        return int(self.rows.used[0]), int(self.rows.used[2])

    def begin_chunk(self) -> None:
        """No node has received anything of the next chunk."""
        self.rows.newest[:] = -1

    def with_space(self, trees: TreeBuilder, transfers: int = 0) -> PlanRows:
        """The arrays with space for one tree, or for some transfers between two GPUs each."""
        edges = max(len(trees.growing.edges), transfers)
        links = max(len(trees.growing.links), transfers * trees.tables.links.shape[1])
        rows, (count, linked, waits, exchanges, entries) = self.rows, self.rows.used.tolist()
        self.rows = rows._replace(
            link_ptr=_longer(rows.link_ptr, count + 1, edges),
            link=_longer(rows.link, linked, links),
            reduce=_longer(rows.reduce, count, edges),
            end=_longer(rows.end, count, edges),
            wait=_longer(rows.wait, waits, 2 * edges),
            exchange=_longer(rows.exchange, exchanges, transfers),
            entry=_longer(rows.entry, entries, 2 * edges),
        )
        return self.rows

    def routes(self, count: int) -> Routes:
        """The links of the first transfers."""
        ptr = self.rows.link_ptr[: count + 1]
        return Routes(ptr.copy(), self.rows.link[: ptr[-1]].astype(np.int32))

    def waits(self, marks: tuple[int, int]) -> tuple[I64, I64, int]:
        """What waits for what, up to some marks: numbers of transfers before and after; and how many joins there are.

        Where several transfers wait for the same ones, as those that leave a root wait for all that arrive there, they
        wait for a join, which waits for the others. Joins have the numbers after those of the transfers.
        """
        entry, row = self.rows.wait[: marks[1]].T
        size, used = self.rows.entry[:, 2], np.unique(entry)
        followers = np.bincount(np.searchsorted(used, entry), minlength=len(used))
        shared = used[followers * size[used] > followers + size[used]]
        join = np.full(len(size), -1)
        join[shared] = marks[0] + np.arange(len(shared))
        single = join[entry] < 0
        wanted = np.stack((np.append(entry[single], shared), np.append(row[single], join[shared])), axis=1)
        before, after = np.zeros((2, int(size[wanted[:, 0]].sum())), dtype=np.int64)
        waits_of(self.rows.entry, wanted, before, after)
        return np.append(before, join[entry[~single]]), np.append(after, row[~single]), len(shared)

    def exchanges(self, count: int) -> I64:
        """Of each of the first transfers, the first one of its exchange; -1: none."""
        row, first = self.rows.exchange[: self.rows.used[3]].T
        result = np.full(len(self.rows.end), -1)
        result[row] = first
        return result[:count]


def _longer(array: NDArray[Any], used: int, more: int) -> NDArray[Any]:
    """The array, or one of at least twice its length where that many more entries do not fit."""
    if used + more <= len(array):
        return array
    result = np.zeros((max(used + more, 2 * len(array)), *array.shape[1:]), dtype=array.dtype)
    result[: len(array)] = array
    return result
