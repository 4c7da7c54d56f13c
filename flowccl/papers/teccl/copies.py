"""The program with copies (TE-CCL section 3): which chunk starts on which arc in which epoch.

The program is kept small. Sends are binary; "have" is continuous and exists only where a send could use it. A node
receives a chunk at most once. There are no variables for sends that are too early or too late to be useful.
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
from flowccl.topology.topology import Topology

NEVER = 2**40


@dataclass(frozen=True, eq=False)
class ChunkState:
    """The position of every chunk: node n can send chunk c from epoch `ready[c, n]` on; NEVER if it cannot."""

    ready: Ints
    wanted: NDArray[np.bool_]
    busy: NDArray[np.float64]
    """(links, epochs): the fraction of each link that sends of earlier rounds still use."""

    @classmethod
    def start(cls, demand: Demand, topology: Topology) -> "ChunkState":
        """Every chunk at its source."""
        num_nodes = len(topology.nodes)
        ready = np.full((len(demand), num_nodes), NEVER, dtype=np.int64)
        ready[np.arange(len(demand)), demand.source] = 0
        wanted = np.zeros((len(demand), num_nodes), dtype=np.bool_)
        wanted[demand.destination_chunk, demand.destination_rank] = True
        return cls(ready, wanted, np.zeros((len(topology.links), 0)))

    @property
    def missing(self) -> NDArray[np.bool_]:
        """(chunks, nodes): wanted, and neither there nor on the way."""
        return np.asarray(self.wanted & (self.ready >= NEVER))


class CopyProgram(EpochProgram):
    """The program for `num_epochs` epochs; with `finish`, every delivery must arrive within them.

    Without `finish` (a round of A*), sends start within the epochs and may arrive later.
    """

    def __init__(
        self,
        grid: Grid,
        state: ChunkState,
        distances: Distances,
        num_epochs: int,
        options: TecclOptions,
        *,
        finish: bool = True,
    ) -> None:
        maximize = options.objective == "paper" or not finish
        super().__init__(grid, num_epochs, options, whole=True, maximize=maximize)
        self.state, self.finish = state, finish
        self.last = num_epochs if finish else num_epochs + int(self.delay.max())
        self._earliest = self._first_epochs(distances)
        self._latest = self._last_epochs(distances)
        self.send = self._sends()
        self.have = self._haves()
        self._buffer_and_destination_rows()
        self._conservation_rows()
        self._switch_rows()
        self.capacity_rows(state.busy)
        self.limit_rows()
        self._buffer_limit_rows()

    # -- which variables exist ----------------------------------------------------------------------------------------

    def _first_epochs(self, distances: Distances) -> Ints:
        """(chunks, nodes): the first epoch in which a node can have a chunk."""
        first = np.full(self.state.ready.shape, float(NEVER))
        for node in range(self.state.ready.shape[1]):
            away = self.state.ready[:, node, None] + distances.between[node][None, :]
            np.minimum(first, np.where(np.isfinite(away), away, NEVER), out=first)
        return first.astype(np.int64)

    def _last_epochs(self, distances: Distances) -> Ints:
        """(chunks, nodes): the last epoch in which it is still useful that a node receives a chunk."""
        if not self.finish:
            return np.full(self.state.ready.shape, self.last, dtype=np.int64)
        left = np.full(self.state.ready.shape, float(NEVER))
        for node in np.flatnonzero(self.state.missing.any(axis=0)).tolist():
            chunks = self.state.missing[:, node]
            left[chunks] = np.minimum(left[chunks], distances.between[:, node])
        latest: Ints = (self.last - np.minimum(left, NEVER)).astype(np.int64)
        return latest

    def _sends(self) -> VariableBlock:
        grid, epoch = self.grid, np.arange(self.num_epochs)
        has_chunk = self.state.ready < NEVER
        where = (self._earliest[:, grid.tail, None] <= epoch) & ~has_chunk[:, grid.head, None]
        arrival = epoch + self.delay[:, None]
        where &= arrival <= self._latest[:, grid.head, None]
        if not self.finish:  # a chunk that enters a switch leaves it in the same round
            where &= (arrival < self.num_epochs) | grid.topology.stores[grid.head][:, None]
        return self.model.variables("send", where.shape, upper=1, integer=True, where=where)

    def _haves(self) -> VariableBlock:
        """have[c, n, k]: node n can send chunk c in epoch k; only where a send from n could use it."""
        grid = self.grid
        used = np.zeros((*self.state.ready.shape, self.num_epochs), dtype=np.bool_)
        exists = self.send.exists
        for arc in range(grid.num_arcs):
            used[:, grid.tail[arc]] |= exists[:, arc]
        used &= grid.topology.stores[None, :, None] & (self.state.ready >= NEVER)[:, :, None]
        if not self.options.buffers:
            used[:] = False
        # A chunk is kept until its last use: the interval has no gaps.
        used = np.maximum.accumulate(used[:, :, ::-1], axis=2)[:, :, ::-1]
        used &= np.arange(self.num_epochs) >= self._earliest[:, :, None]
        return self.model.variables("have", used.shape, upper=1, where=used)

    # -- the constraints ----------------------------------------------------------------------------------------------

    def _buffer_and_destination_rows(self) -> None:
        """A node has what it had and what it receives.

        A destination receives each chunk once, other nodes at most once.
        """
        column, chunk, arc, at = self.arrivals()
        node = self.grid.head[arc]
        stores = self.grid.topology.stores[node]
        rows = self.model.rows("buffer", self.have.shape, equals=0, where=self.have.exists)
        rows.add(self.have, times=-1)
        rows.add_at(np.s_[:, :, 1:], self.have[:, :, :-1])
        seen = stores & (at < self.num_epochs)
        rows.add_at((chunk[seen], node[seen], at[seen]), column[seen])
        missing = self.state.missing
        if self.finish:
            least = np.where(missing, 1, 0)
            most = 1 if self.options.buffers else np.inf
            once = self.model.rows("destination", missing.shape, least, most, where=self.grid.topology.stores)
        else:
            once = self.model.rows("destination", missing.shape, upper=1, where=self.grid.topology.stores)
        once.add_at((chunk[stores], node[stores]), column[stores])

    def _conservation_rows(self) -> None:
        """A node sends only chunks that it has; without buffers, only chunks that arrive in that epoch."""
        grid = self.grid
        own = (self.state.ready < NEVER)[:, grid.tail]
        where = self.send.exists & (grid.topology.stores[grid.tail] & ~own)[:, :, None]
        if self.options.buffers:
            rows = self.model.rows("flow conservation", self.send.shape, upper=0, where=where)
            rows.add(self.send).add(self.have[:, grid.tail, :], times=-1)
            return
        self._forwarding_rows("forward at once", where)

    def _forwarding_rows(self, name: str, where: NDArray[np.bool_]) -> None:
        """send[c, a, k] is at most the arrivals of c at the tail of a in epoch k."""
        rows = self.model.rows(name, self.send.shape, upper=0, where=where).add(self.send)
        column, chunk, arc, at = self.arrivals()
        seen = at < self.num_epochs
        column, chunk, arc, at = column[seen], chunk[seen], arc[seen], at[seen]
        for out in np.flatnonzero(where.any(axis=(0, 2))).tolist():
            into = self.grid.head[arc] == self.grid.tail[out]
            rows.add_at((chunk[into], np.full(into.sum(), out), at[into]), column[into], times=-1)

    def _switch_rows(self) -> None:
        """A switch that copies sends chunks that arrive; a plain switch forwards each exactly once."""
        grid, topology = self.grid, self.grid.topology
        copies = topology.copies & ~topology.stores
        if copies.any():
            self._forwarding_rows("switch with copies", self.send.exists & copies[grid.tail][None, :, None])
        plain = ~topology.copies & ~topology.stores
        if not plain.any():
            return
        shape = (len(self.state.ready), len(topology.nodes), self.last + 1)
        rows = self.model.rows("switch without copies", shape, equals=0, where=plain[None, :, None])
        column, chunk, arc, at = self.arrivals()
        into = plain[grid.head[arc]]
        rows.add_at((chunk[into], grid.head[arc[into]], at[into]), column[into])
        chunk, arc, epoch = np.nonzero(self.send.exists & plain[grid.tail][None, :, None])
        rows.add_at((chunk, grid.tail[arc], epoch), self.send.columns[chunk, arc, epoch], times=-1)

    def _buffer_limit_rows(self) -> None:
        """Chunks that a node keeps for other nodes fit its buffer.

        A chunk counts from the start of the send to the node until it is sent on. `keep` may fall at any time (in
        appendix B a dropped chunk may be received again; here each chunk is received only once).
        """
        topology = self.grid.topology
        limited = [n for n, node in enumerate(topology.nodes) if node.buffer_bytes is not None]
        if not limited or not self.options.buffers:
            return
        column, chunk, arc, at = self.arrivals()
        for node in limited:
            others = np.flatnonzero(~self.state.wanted[:, node] & (self.state.ready[:, node] >= NEVER))
            exists = self.have.exists[others, node]
            keep = self.model.variables(f"keep at {topology.nodes[node].name}", exists.shape, upper=1, where=exists)
            place = np.full(len(self.state.ready), -1)
            place[others] = np.arange(len(others))
            fits = (topology.nodes[node].buffer_bytes or 0) / self.grid.chunk_bytes
            full = self.model.rows("buffer limit", self.num_epochs, upper=fits + 1e-9).add(keep, sum_axis=0)
            selected = (self.grid.head[arc] == node) & (place[chunk] >= 0)
            falls = self.model.rows("keep", exists.shape, upper=0, where=exists).add(keep)
            falls.add_at(np.s_[:, 1:], keep[:, :-1], times=-1)
            seen = selected & (at < self.num_epochs)
            falls.add_at((place[chunk[seen]], at[seen]), column[seen], times=-1)
            delay = at - np.nonzero(self.send.exists)[2]
            for back in range(1, int(delay[selected].max(initial=0)) + 1):
                flying = selected & (delay >= back) & (at - back < self.num_epochs)
                full.add_at((at[flying] - back,), column[flying])
            self._sending_buffer_rows(keep, place, node)

    def _sending_buffer_rows(self, keep: VariableBlock, place: Ints, node: int) -> None:
        chunk, arc, epoch = np.nonzero(self.send.exists)
        selected = (self.grid.tail[arc] == node) & (place[chunk] >= 0)
        chunk, arc, epoch = chunk[selected], arc[selected], epoch[selected]
        busy_epochs = self.busy_epochs[arc]
        for ahead in range(int(busy_epochs.max(initial=0))):
            still = (busy_epochs > ahead) & (epoch + ahead < self.num_epochs)
            rows = self.model.rows("keep while sending", int(still.sum()), upper=0)
            rows.add(self.send.columns[chunk[still], arc[still], epoch[still]])
            rows.add(keep.columns[place[chunk[still]], epoch[still] + ahead], times=-1)

    # -- objectives ---------------------------------------------------------------------------------------------------

    def reward_early(self) -> None:
        """The paper's objective: 1 / (k + 1) for every delivery that arrived by the end of epoch k."""
        column, chunk, arc, at = self.arrivals()
        wanted = self.state.missing[chunk, self.grid.head[arc]]
        self.model.add_cost(column[wanted], self.worth(self.last)[at[wanted]])
