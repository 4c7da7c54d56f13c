"""The program without copies (TE-CCL section 4.1): how much of each commodity starts on which arc in each epoch.

A commodity is all data of one source: its chunks are interchangeable. What arrives at a node is taken, kept or sent on.
With `whole`, amounts are whole chunks, and a link slower than an epoch is busy for several epochs (appendix F). Without
it, amounts are rates, and any fraction of a chunk may take its own path.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.papers.teccl.epochs import Grid, Ints
from flowccl.papers.teccl.grid_bound import Distances
from flowccl.papers.teccl.options import TecclOptions
from flowccl.papers.teccl.program import EpochProgram
from flowccl.solver import VariableBlock


@dataclass(frozen=True, eq=False)
class GridCommodities:
    """The commodities, one per row: node n needs `amount[i, n]` chunks from node `source[i]`."""

    source: Ints
    amount: NDArray[np.float64]

    @classmethod
    def of(cls, grid: Grid, demand: Demand, *, whole: bool) -> "GridCommodities":
        """One commodity per source, in chunks; amounts are measured by bytes unless chunks are whole.

        With buffer limits, one commodity per source and destination: the program must know whose data a node keeps.
        """
        source, rank = demand.source[demand.destination_chunk].astype(np.int64), demand.destination_rank
        size = np.ones(len(rank)) if whole else demand.chunk_bytes[demand.destination_chunk] / grid.chunk_bytes
        limited = grid.topology.has_buffer_limits
        key = source * len(grid.topology.nodes) + rank if limited else source
        _, first, row = np.unique(key, return_index=True, return_inverse=True)
        amount = np.zeros((len(first), len(grid.topology.nodes)))
        np.add.at(amount, (row.reshape(-1), rank), size)
        return cls(source[first], amount)


class FlowProgram(EpochProgram):
    """The program for `num_epochs` epochs.

    For commodity i: send[i, a, k] starts on arc a in epoch k, keep[i, n, k] stays at node n during epoch k, and
    take[i, n, k] is delivered at node n in epoch k.
    """

    def __init__(
        self,
        grid: Grid,
        wanted: GridCommodities,
        distances: Distances,
        num_epochs: int,
        options: TecclOptions,
        *,
        whole: bool,
    ) -> None:
        super().__init__(grid, num_epochs, options, whole=whole, maximize=options.objective == "paper")
        self.amount, self.sources = wanted.amount, wanted.source
        wants = wanted.amount > 0
        self._first = distances.between[self.sources]
        self._left = np.stack([distances.between[:, w].min(axis=1) for w in wants])
        self.send, self.keep, self.take = self._sends(), self._keeps(), self._takes(wants)
        self._conservation_rows()
        self._destination_rows(wants)
        self.capacity_rows()
        self.limit_rows()
        self._buffer_limit_rows()

    def _sends(self) -> VariableBlock:
        grid, epoch = self.grid, np.arange(self.num_epochs)
        where = self._first[:, grid.tail, None] <= epoch
        where = where & (epoch + self.delay[:, None] <= self.num_epochs - self._left[:, grid.head, None])
        where &= (grid.head[None, :] != self.sources[:, None])[:, :, None]
        return self.model.variables("send", where.shape, integer=self.whole, where=where)

    def _keeps(self) -> VariableBlock:
        """Without buffers, only the source keeps data."""
        epoch = np.arange(self.num_epochs)
        where = (self._first[:, :, None] <= epoch) & (epoch + 1 <= self.num_epochs - self._left[:, :, None])
        where &= self.grid.topology.stores[None, :, None]
        own = np.zeros(where.shape[:2], dtype=np.bool_)
        own[np.arange(len(self.sources)), self.sources] = True
        if not self.options.buffers:
            where &= own[:, :, None]
        return self.model.variables("keep", where.shape, where=where)

    def _takes(self, wants: NDArray[np.bool_]) -> VariableBlock:
        epoch = np.arange(self.num_epochs + 1)
        where = wants[:, :, None] & (self._first[:, :, None] <= epoch)
        return self.model.variables("take", where.shape, where=where)

    def _conservation_rows(self) -> None:
        """What arrives or was kept is sent on, kept or taken."""
        shape = (len(self.sources), len(self.grid.topology.nodes), self.num_epochs + 1)
        supply = np.zeros(shape)
        supply[np.arange(len(self.sources)), self.sources, 0] = self.amount.sum(axis=1)
        rows = self.model.rows("flow conservation", shape, equals=-supply)
        column, source, arc, at = self.arrivals()
        rows.add_at((source, self.grid.head[arc], at), column)
        rows.add_at((source, self.grid.tail[arc], at - self.delay[arc]), column, times=-1)
        rows.add_at(np.s_[:, :, 1:], self.keep)
        rows.add_at(np.s_[:, :, :-1], self.keep, times=-1)
        rows.add(self.take, times=-1)

    def _destination_rows(self, wants: NDArray[np.bool_]) -> None:
        rows = self.model.rows("destination", wants.shape, equals=self.amount, where=wants)
        rows.add(self.take, sum_axis=2)

    def _buffer_limit_rows(self) -> None:
        """Data that a node receives, keeps and sends on for other nodes fits its buffer (appendix B).

        Data counts from the start of the send to the node until the end of the send from it.
        """
        topology = self.grid.topology
        column, row, arc, at = self.arrivals()
        epoch = at - self.delay[arc]
        for node, what in enumerate(topology.nodes):
            if what.buffer_bytes is None:
                continue
            others = (self.sources != node) & (self.amount[:, node] == 0)
            space = what.buffer_bytes / self.grid.chunk_bytes
            rows = self.model.rows(f"buffer limit of {what.name}", self.num_epochs, upper=space)
            rows.add(self.keep[np.flatnonzero(others), node], sum_axis=0)
            for ends, busy in ((self.grid.head, self.delay), (self.grid.tail, self.busy_epochs)):
                selected = others[row] & (ends[arc] == node)
                for ahead in range(int(busy[arc[selected]].max(initial=0))):
                    still = selected & (busy[arc] > ahead) & (epoch + ahead < self.num_epochs)
                    rows.add_at((epoch[still] + ahead,), column[still])

    def reward_early(self) -> None:
        """The paper's objective: 1 / (k + 1) for all data that arrived by the end of epoch k."""
        self.model.add_cost(self.take, self.worth(self.num_epochs))
