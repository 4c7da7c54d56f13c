"""What the programs with and without copies have in common: sends, and the capacity of links and limits."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flowccl.papers.teccl.epochs import Grid, Ints
from flowccl.papers.teccl.options import TecclOptions
from flowccl.solver import ProgramBuilder, VariableBlock

Columns = NDArray[np.int32]


class EpochProgram:
    """A program in which `send[row, arc, epoch]` starts on the arc in the epoch; with `whole`, in whole chunks.

    Rows are chunks, or commodities: amounts of chunks that are interchangeable.
    """

    send: VariableBlock

    def __init__(self, grid: Grid, num_epochs: int, options: TecclOptions, *, whole: bool, maximize: bool) -> None:
        self.grid, self.num_epochs, self.options, self.whole = grid, num_epochs, options, whole
        self.model = ProgramBuilder(maximize=maximize)
        self.delay = grid.delay if whole else grid.rate_delay
        self.busy_epochs = grid.busy_epochs if whole else np.ones_like(grid.delay)
        self.capacity = grid.capacity if whole else grid.share

    def arrivals(self) -> tuple[Columns, Ints, Ints, Ints]:
        """Return all sends as (column, row, arc, epoch from which the head can send it on)."""
        row, arc, epoch = np.nonzero(self.send.exists)
        return self.send.columns[row, arc, epoch], row, arc, epoch + self.delay[arc]

    def capacity_rows(self, taken: NDArray[np.float64] | None = None) -> None:
        """A link carries its capacity per epoch; a link slower than an epoch, one chunk at a time (appendix F).

        `taken` is the fraction of each link in the first epochs that is not available.
        """
        grid = self.grid
        most = np.ones(len(grid.topology.links))
        most[grid.hop_link] = 0
        np.maximum.at(most, grid.hop_link, self.capacity[grid.hop_arc])
        space = np.repeat(most[:, None], self._last_busy, axis=1)
        if taken is not None:
            known = taken[:, : self._last_busy]
            space[:, : known.shape[1]] *= 1 - known
        rows = self.model.rows("link capacity", space.shape, upper=np.floor(space + 1e-6) if self.whole else space)
        for arc, link, column, epoch in self._uses():
            rows.add_at((np.full(len(epoch), link), epoch), column, times=most[link] / self.capacity[arc])

    def limit_rows(self) -> None:
        """The links of a limit share its bandwidth."""
        grid, limits = self.grid, self.grid.topology.limits
        if not limits:
            return
        rows = self.model.rows("limit", (len(limits), self._last_busy), upper=1)
        for arc, link, column, epoch in self._uses():
            for number in (n for n, limit in enumerate(limits) if link in limit.links):
                share = grid.rate_GBps[arc] / limits[number].bandwidth_GBps / self.capacity[arc]
                rows.add_at((np.full(len(epoch), number), epoch), column, times=share)

    @property
    def _last_busy(self) -> int:
        """The number of epochs in which links may be busy."""
        return self.num_epochs + int(self.busy_epochs.max() + self.grid.hop_shift.max(initial=0))

    def _uses(self) -> Iterator[tuple[int, int, Columns, Ints]]:
        """(arc, link, columns, epochs) of all sends on each hop, once for each epoch in which they occupy it."""
        _, arcs, epochs = np.nonzero(self.send.exists)
        columns = self.send.columns[self.send.exists]
        hops = zip(self.grid.hop_arc.tolist(), self.grid.hop_link.tolist(), self.grid.hop_shift.tolist(), strict=True)
        for arc, link, shift in hops:
            selected = arcs == arc
            for ahead in range(int(self.busy_epochs[arc])):
                yield arc, link, columns[selected], epochs[selected] + shift + ahead

    def worth(self, last: int) -> NDArray[np.float64]:
        """The paper's objective: 1 / (k + 1) for all data that arrived by the end of epoch k, by epoch of arrival."""
        by_end = np.cumsum(1.0 / np.arange(last, 0, -1))[::-1]
        return np.concatenate((by_end[:1], by_end))
