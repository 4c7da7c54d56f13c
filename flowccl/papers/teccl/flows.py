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
from flowccl.solver import ProgramBuilder, VariableBlock


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


class FlowProgram:
    """The program for `num_epochs` epochs.

    For commodity i: flow[i, a, k] starts on arc a in epoch k, keep[i, n, k] stays at node n during epoch k, and
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
        self.grid, self.amount, self.num_epochs, self.options, self.whole = (
            grid,
            wanted.amount,
            num_epochs,
            options,
            whole,
        )
        self.model = ProgramBuilder(maximize=options.objective == "paper")
        self.delay = (grid.delay if whole else grid.rate_delay)(num_epochs)
        self.sources = wanted.source
        wants = wanted.amount > 0
        self._first = distances.between[self.sources]
        self._left = np.stack([distances.between[:, w].min(axis=1) for w in wants])
        self.flow, self.keep, self.take = self._flows(), self._keeps(), self._takes(wants)
        self._conservation_rows()
        self._destination_rows(wants)
        self._capacity_rows()
        self._limit_rows()
        self._buffer_limit_rows()

    def _flows(self) -> VariableBlock:
        grid, epoch = self.grid, np.arange(self.num_epochs)
        where = self._first[:, grid.tail, None] <= epoch
        where = where & (epoch + self.delay <= self.num_epochs - self._left[:, grid.head, None])
        where &= (grid.head[None, :] != self.sources[:, None])[:, :, None]
        return self.model.variables("flow", where.shape, integer=self.whole, where=where)

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

    def arrivals(self) -> tuple[NDArray[np.int32], Ints, Ints, Ints]:
        """Return all flows as (column, commodity, arc, epoch from which the head can send it on)."""
        source, arc, epoch = np.nonzero(self.flow.exists)
        return self.flow.columns[source, arc, epoch], source, arc, epoch + self.delay[arc, epoch]

    def _conservation_rows(self) -> None:
        """What arrives or was kept is sent on, kept or taken."""
        shape = (len(self.sources), len(self.grid.topology.nodes), self.num_epochs + 1)
        supply = np.zeros(shape)
        supply[np.arange(len(self.sources)), self.sources, 0] = self.amount.sum(axis=1)
        rows = self.model.rows("flow conservation", shape, equals=-supply)
        column, source, arc, at = self.arrivals()
        rows.add_at((source, self.grid.head[arc], at), column)
        source, arc, epoch = np.nonzero(self.flow.exists)
        rows.add_at((source, self.grid.tail[arc], epoch), self.flow.columns[source, arc, epoch], times=-1)
        rows.add_at(np.s_[:, :, 1:], self.keep)
        rows.add_at(np.s_[:, :, :-1], self.keep, times=-1)
        rows.add(self.take, times=-1)

    def _destination_rows(self, wants: NDArray[np.bool_]) -> None:
        rows = self.model.rows("destination", wants.shape, equals=self.amount, where=wants)
        rows.add(self.take, sum_axis=2)

    def _hops(self) -> list[tuple[int, NDArray[np.int32], Ints, Ints]]:
        """Return (hop, columns, epochs, arcs) of all flows on each hop."""
        _, arcs, epochs = np.nonzero(self.flow.exists)
        columns = self.flow.columns[self.flow.exists]
        result = []
        for hop, arc in enumerate(self.grid.hop_arc.tolist()):
            selected = arcs == arc
            result.append((hop, columns[selected], epochs[selected], arcs[selected]))
        return result

    def _capacity_rows(self) -> None:
        """The flows on a link fit its capacity."""
        grid = self.grid
        busy_epochs = grid.busy_epochs(self.num_epochs) if self.whole else np.ones_like(self.delay)
        space = (grid.capacity if self.whole else grid.share)(self.num_epochs).astype(np.float64)
        busy = self.num_epochs + int(busy_epochs.max() + grid.hop_shift.max(initial=0))
        rows = self.model.rows("link capacity", (len(grid.topology.links), busy), upper=1)
        for hop, column, epoch, arc in self._hops():
            for ahead in range(int(busy_epochs[arc, epoch].max(initial=0))):
                still = busy_epochs[arc, epoch] > ahead
                at = epoch[still] + int(grid.hop_shift[hop]) + ahead
                rows.add_at(
                    (np.full(len(at), int(grid.hop_link[hop])), at),
                    column[still],
                    times=1.0 / space[arc[still], epoch[still]],
                )

    def _limit_rows(self) -> None:
        """The flows on the links of a limit fit its bandwidth."""
        grid, topology = self.grid, self.grid.topology
        busy = self.num_epochs + int(grid.busy_epochs(self.num_epochs).max() + grid.hop_shift.max(initial=0))
        for limit in topology.limits:
            rows = self.model.rows(f"limit {limit.name}", busy, upper=limit.bandwidth_GBps * grid.epoch_ps / 1000)
            for hop, column, epoch, arc in self._hops():
                if int(grid.hop_link[hop]) not in limit.links:
                    continue
                busy_epochs = (
                    grid.busy_epochs(self.num_epochs)[arc, epoch] if self.whole else np.ones(len(epoch), dtype=np.int64)
                )
                for ahead in range(int(busy_epochs.max(initial=0))):
                    still = busy_epochs > ahead
                    at = epoch[still] + int(grid.hop_shift[hop]) + ahead
                    rows.add_at((at,), column[still], times=grid.chunk_bytes / busy_epochs[still])

    def _buffer_limit_rows(self) -> None:
        """Data that a node receives, keeps and sends on for other nodes fits its buffer (appendix B).

        Data counts from the start of the send to the node until the end of the send from it.
        """
        topology = self.grid.topology
        busy_epochs = self.grid.busy_epochs(self.num_epochs) if self.whole else np.ones_like(self.delay)
        row, arc, epoch = np.nonzero(self.flow.exists)
        column = self.flow.columns[row, arc, epoch]
        for node, what in enumerate(topology.nodes):
            if what.buffer_bytes is None:
                continue
            others = (self.sources != node) & (self.amount[:, node] == 0)
            space = what.buffer_bytes / self.grid.chunk_bytes
            rows = self.model.rows(f"buffer limit of {what.name}", self.num_epochs, upper=space)
            rows.add(self.keep[np.flatnonzero(others), node], sum_axis=0)
            for ends, busy in ((self.grid.head, self.delay), (self.grid.tail, busy_epochs)):
                selected = others[row] & (ends[arc] == node)
                for ahead in range(int(busy[arc[selected], epoch[selected]].max(initial=0))):
                    still = selected & (busy[arc, epoch] > ahead) & (epoch + ahead < self.num_epochs)
                    rows.add_at((epoch[still] + ahead,), column[still])

    def reward_early(self) -> None:
        """The paper's objective: 1 / (k + 1) for all data that arrived by the end of epoch k."""
        worth = np.concatenate((np.cumsum(1.0 / np.arange(self.num_epochs, 0, -1))[::-1], [0.0]))
        self.model.add_cost(self.take, worth[np.maximum(np.arange(self.num_epochs + 1) - 1, 0)])
