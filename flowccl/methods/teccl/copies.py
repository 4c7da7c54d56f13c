"""The program with copies (TE-CCL section 3): which chunk goes over which arc from which epoch on.

Kept lean: sends are binary, "have" is continuous and only there where somebody could send, a node gets a chunk at most
once, and no variable stands for what cannot be there yet or would come too late.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.methods.teccl.epochs import Grid, Ints
from flowccl.methods.teccl.grid_bound import Distances
from flowccl.methods.teccl.options import TecclOptions
from flowccl.solver import ProgramBuilder, VariableBlock
from flowccl.topology.topology import Topology

NEVER = 2**40


@dataclass(frozen=True, eq=False)
class State:
    """Where every chunk is: `ready[c, n]` is the epoch from which node n can send chunk c, NEVER if it has it not."""

    ready: Ints
    wanted: NDArray[np.bool_]
    busy: NDArray[np.float64]
    """(links, epochs): the share of each link that sends of earlier rounds still take."""

    @classmethod
    def start(cls, demand: Demand, topology: Topology) -> "State":
        """Every chunk at its source."""
        num_nodes = len(topology.nodes)
        ready = np.full((len(demand), num_nodes), NEVER, dtype=np.int64)
        ready[np.arange(len(demand)), demand.source] = 0
        wanted = np.zeros((len(demand), num_nodes), dtype=np.bool_)
        wanted[demand.destination_chunk, demand.destination_rank] = True
        return cls(ready, wanted, np.zeros((len(topology.links), 0)))

    @property
    def missing(self) -> NDArray[np.bool_]:
        """(chunks, nodes): wanted, and not there nor on the way."""
        return np.asarray(self.wanted & (self.ready >= NEVER))


class CopyProgram:
    """The program for `num_epochs` epochs; `finish` insists that everything wanted arrives within them.

    Without `finish` (a round of A*), sends start within the epochs and may arrive later.
    """

    def __init__(
        self,
        grid: Grid,
        state: State,
        distances: Distances,
        num_epochs: int,
        options: TecclOptions,
        *,
        finish: bool = True,
    ) -> None:
        self.grid, self.state, self.num_epochs, self.options, self.finish = grid, state, num_epochs, options, finish
        self.model = ProgramBuilder(maximize=options.objective == "paper" or not finish)
        self.delay, self.hold, self.capacity = (f(num_epochs) for f in (grid.delay, grid.hold, grid.capacity))
        self.last = num_epochs if finish else num_epochs + int(self.delay.max())
        self._earliest = self._first_epochs(distances)
        self._latest = self._last_epochs(distances)
        self.send = self._sends()
        self.have = self._haves()
        self._keep_and_get()
        self._send_what_you_have()
        self._cross_switches()
        self._fit_links()
        self._fit_limits()
        self._fit_buffers()

    # -- what can be where when ---------------------------------------------------------------------------------------

    def _first_epochs(self, distances: Distances) -> Ints:
        """(chunks, nodes): the first epoch in which a node can have a chunk."""
        first = np.full(self.state.ready.shape, float(NEVER))
        for node in range(self.state.ready.shape[1]):
            away = self.state.ready[:, node, None] + distances.between[node][None, :]
            np.minimum(first, np.where(np.isfinite(away), away, NEVER), out=first)
        return first.astype(np.int64)

    def _last_epochs(self, distances: Distances) -> Ints:
        """(chunks, nodes): the last epoch in which it still helps that a node gets a chunk."""
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
        held = self.state.ready < NEVER
        where = (self._earliest[:, grid.tail, None] <= epoch) & ~held[:, grid.head, None]
        where &= epoch + self.delay <= self._latest[:, grid.head, None]
        if not self.finish:  # what enters a switch leaves it in the same round
            where &= (epoch + self.delay < self.num_epochs) | grid.topology.stores[grid.head][:, None]
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
        # What is kept is kept until its last use: there are no holes in time.
        used = np.maximum.accumulate(used[:, :, ::-1], axis=2)[:, :, ::-1]
        used &= np.arange(self.num_epochs) >= self._earliest[:, :, None]
        return self.model.variables("have", used.shape, upper=1, where=used)

    # -- the constraints ----------------------------------------------------------------------------------------------

    def arrivals(self) -> tuple[NDArray[np.int32], Ints, Ints, Ints]:
        """All sends as (column, chunk, arc, epoch in which the head can send it on)."""
        chunk, arc, epoch = np.nonzero(self.send.exists)
        return self.send.columns[chunk, arc, epoch], chunk, arc, epoch + self.delay[arc, epoch]

    def _keep_and_get(self) -> None:
        """A node has what it had and what it gets; a destination gets each chunk once, the others at most once."""
        column, chunk, arc, at = self.arrivals()
        node = self.grid.head[arc]
        stores = self.grid.topology.stores[node]
        rows = self.model.rows("have", self.have.shape, equals=0, where=self.have.exists)
        rows.add(self.have, times=-1)
        rows.add_at(np.s_[:, :, 1:], self.have[:, :, :-1])
        seen = stores & (at < self.num_epochs)
        rows.add_at((chunk[seen], node[seen], at[seen]), column[seen])
        missing = self.state.missing
        if self.finish:
            least = np.where(missing, 1, 0)
            most = 1 if self.options.buffers else np.inf
            once = self.model.rows("get once", missing.shape, least, most, where=self.grid.topology.stores)
        else:
            once = self.model.rows("get once", missing.shape, upper=1, where=self.grid.topology.stores)
        once.add_at((chunk[stores], node[stores]), column[stores])

    def _send_what_you_have(self) -> None:
        """A node sends only what it has; without buffers, only what comes in at that moment."""
        grid = self.grid
        own = (self.state.ready < NEVER)[:, grid.tail]
        where = self.send.exists & (grid.topology.stores[grid.tail] & ~own)[:, :, None]
        if self.options.buffers:
            rows = self.model.rows("send what you have", self.send.shape, upper=0, where=where)
            rows.add(self.send).add(self.have[:, grid.tail, :], times=-1)
            return
        self._pass_on("pass on at once", where)

    def _pass_on(self, name: str, where: NDArray[np.bool_]) -> None:
        """send[c, a, k] <= what comes to the tail of a in epoch k."""
        rows = self.model.rows(name, self.send.shape, upper=0, where=where).add(self.send)
        column, chunk, arc, at = self.arrivals()
        seen = at < self.num_epochs
        column, chunk, arc, at = column[seen], chunk[seen], arc[seen], at[seen]
        for out in np.flatnonzero(where.any(axis=(0, 2))).tolist():
            into = self.grid.head[arc] == self.grid.tail[out]
            rows.add_at((chunk[into], np.full(into.sum(), out), at[into]), column[into], times=-1)

    def _cross_switches(self) -> None:
        """A switch that copies sends what comes in; a plain one sends it on exactly once."""
        grid, topology = self.grid, self.grid.topology
        copies = topology.copies & ~topology.stores
        if copies.any():
            self._pass_on("copy at a switch", self.send.exists & copies[grid.tail][None, :, None])
        plain = ~topology.copies & ~topology.stores
        if not plain.any():
            return
        shape = (len(self.state.ready), len(topology.nodes), self.last + 1)
        rows = self.model.rows("cross a switch", shape, equals=0, where=plain[None, :, None])
        column, chunk, arc, at = self.arrivals()
        into = plain[grid.head[arc]]
        rows.add_at((chunk[into], grid.head[arc[into]], at[into]), column[into])
        chunk, arc, epoch = np.nonzero(self.send.exists & plain[grid.tail][None, :, None])
        rows.add_at((chunk, grid.tail[arc], epoch), self.send.columns[chunk, arc, epoch], times=-1)

    def _fit_links(self) -> None:
        """A link carries its capacity in an epoch; a link slower than an epoch, one chunk per hold (appendix F)."""
        grid = self.grid
        busy = self.num_epochs + int(self.hold.max() + grid.hop_shift.max(initial=0))
        most = np.ones((len(grid.topology.links), busy))
        np.maximum.at(most, (grid.hop_link[:, None], np.arange(self.num_epochs)), self.capacity[grid.hop_arc])
        left = np.ones_like(most)
        taken = self.state.busy[:, :busy]
        left[:, : taken.shape[1]] -= taken
        rows = self.model.rows("fit the link", most.shape, upper=np.floor(most * left + 1e-6))
        _, arcs, epochs = np.nonzero(self.send.exists)
        columns = self.send.columns[self.send.exists]
        for hop in range(len(grid.hop_link)):
            mine = arcs == grid.hop_arc[hop]
            epoch, column, link = epochs[mine], columns[mine], int(grid.hop_link[hop])
            hold, room = self.hold[grid.hop_arc[hop], epoch], self.capacity[grid.hop_arc[hop], epoch]
            for ahead in range(int(hold.max(initial=0))):
                still = hold > ahead
                at = epoch[still] + int(grid.hop_shift[hop]) + ahead
                rows.add_at((np.full(len(at), link), at), column[still], times=most[link, at] / room[still])

    def _fit_limits(self) -> None:
        """The links of a limit share its bandwidth."""
        grid, topology = self.grid, self.grid.topology
        if not topology.limits:
            return
        rate, busy = grid.rate_GBps(self.num_epochs), self.num_epochs + int(self.hold.max() + grid.hop_shift.max())
        rows = self.model.rows("fit the limit", (len(topology.limits), busy), upper=1)
        _, arcs, epochs = np.nonzero(self.send.exists)
        columns = self.send.columns[self.send.exists]
        for number, limit in enumerate(topology.limits):
            for hop in np.flatnonzero(np.isin(grid.hop_link, limit.links)).tolist():
                mine = arcs == grid.hop_arc[hop]
                epoch, column = epochs[mine], columns[mine]
                hold, room = self.hold[grid.hop_arc[hop], epoch], self.capacity[grid.hop_arc[hop], epoch]
                share = rate[grid.hop_arc[hop], epoch] / limit.bandwidth_GBps / room
                for ahead in range(int(hold.max(initial=0))):
                    still = hold > ahead
                    at = epoch[still] + int(grid.hop_shift[hop]) + ahead
                    rows.add_at((np.full(len(at), number), at), column[still], times=share[still])

    def _fit_buffers(self) -> None:
        """What a node keeps for others fits its buffer, from the start of the send to it until it is sent on.

        `keep` may fall at any time (appendix B: what is dropped may be brought again, but here comes only once).
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
            room = (topology.nodes[node].buffer_bytes or 0) / self.grid.chunk_bytes
            full = self.model.rows("fit the buffer", self.num_epochs, upper=room + 1e-9).add(keep, sum_axis=0)
            mine = (self.grid.head[arc] == node) & (place[chunk] >= 0)
            falls = self.model.rows("keep", exists.shape, upper=0, where=exists).add(keep)
            falls.add_at(np.s_[:, 1:], keep[:, :-1], times=-1)
            seen = mine & (at < self.num_epochs)
            falls.add_at((place[chunk[seen]], at[seen]), column[seen], times=-1)
            delay = at - np.nonzero(self.send.exists)[2]
            for back in range(1, int(delay[mine].max(initial=0)) + 1):
                flying = mine & (delay >= back) & (at - back < self.num_epochs)
                full.add_at((at[flying] - back,), column[flying])
            self._keep_while_sending(keep, place, node)

    def _keep_while_sending(self, keep: VariableBlock, place: Ints, node: int) -> None:
        chunk, arc, epoch = np.nonzero(self.send.exists)
        mine = (self.grid.tail[arc] == node) & (place[chunk] >= 0)
        chunk, arc, epoch = chunk[mine], arc[mine], epoch[mine]
        hold = self.hold[arc, epoch]
        for ahead in range(int(hold.max(initial=0))):
            still = (hold > ahead) & (epoch + ahead < self.num_epochs)
            rows = self.model.rows("keep while sending", int(still.sum()), upper=0)
            rows.add(self.send.columns[chunk[still], arc[still], epoch[still]])
            rows.add(keep.columns[place[chunk[still]], epoch[still] + ahead], times=-1)

    # -- objectives ---------------------------------------------------------------------------------------------------

    def reward_early(self) -> None:
        """The paper's objective: 1 / (k + 1) for every wanted chunk that is there by the end of epoch k."""
        column, chunk, arc, at = self.arrivals()
        worth = np.concatenate((np.cumsum(1.0 / np.arange(self.last, 0, -1))[::-1], [0.0]))
        wanted = self.state.missing[chunk, self.grid.head[arc]]
        # There from epoch `at` on means by the end of epoch at - 1: worth 1 / at + ... + 1 / last.
        self.model.add_cost(column[wanted], worth[np.minimum(at[wanted] - 1, self.last)])
