"""The integer program of one instance: chunks, steps, and rounds in each step (SCCL, section 3.4).

    send(c, e, s)   chunk c goes over edge e in step s
    have(c, n, s)   node n has chunk c at the start of step s
    round(s)        rounds of step s, at least 1, together at most R

A node sends what it has, gets each chunk at most once, and all destinations have theirs at the end. The chunks of a
step on a set of edges are at most its capacity times the rounds of the step. Chunks with the same source and the same
single destination are interchangeable: they are one commodity that flows in whole units.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.papers.sccl.graph import StepGraph
from flowccl.solver import ProgramBuilder, SolverOptions, Status, VariableBlock, solve

I64 = NDArray[np.int64]
_MOST_COLUMNS = 2_000_000  # larger programs are not built


@dataclass(frozen=True, eq=False)
class StepPlan:
    """Row i: chunk `chunk[i]` goes over edge `edge[i]` in step `step[i]`; `rounds` of each step."""

    chunk: I64
    edge: I64
    step: I64
    rounds: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class UnitCommodities:
    """Chunks by commodity: `source`, units `wanted` at each node, number of units, and the chunks of each."""

    source: I64
    wanted: I64
    units: I64
    chunks: list[list[int]]
    copies: bool

    @classmethod
    def of(cls, demand: Demand, num_nodes: int) -> "UnitCommodities":
        """One commodity per chunk; where no chunk has several destinations, one per source and destination."""
        if not demand.is_unicast:
            wanted = np.zeros((len(demand), num_nodes), dtype=np.int64)
            wanted[demand.destination_chunk, demand.destination_rank] = 1
            one = np.ones(len(demand), dtype=np.int64)
            return cls(demand.source.astype(np.int64), wanted, one, [[c] for c in range(len(demand))], True)
        pair = demand.source.astype(np.int64) * num_nodes + demand.destination_rank
        kinds, index, units = np.unique(pair, return_inverse=True, return_counts=True)
        wanted = np.zeros((len(kinds), num_nodes), dtype=np.int64)
        wanted[np.arange(len(kinds)), kinds % num_nodes] = units
        chunks: list[list[int]] = [[] for _ in kinds]
        for chunk, kind in enumerate(index.reshape(-1).tolist()):
            chunks[kind].append(chunk)
        return cls(kinds // num_nodes, wanted, units.astype(np.int64), chunks, False)


class StepProgram:
    """The program of a demand in a number of steps, which must be enough to reach all destinations.

    It is solved for given rounds per step, or for a total of rounds.
    """

    def __init__(self, graph: StepGraph, demand: Demand, steps: int) -> None:
        self.graph, self.steps = graph, steps
        self.commodities = UnitCommodities.of(demand, len(graph.topology.nodes))

    @property
    def is_too_large(self) -> bool:
        """Whether the program has too many variables to be built."""
        return len(self.commodities.units) * len(self.graph.src) * self.steps > _MOST_COLUMNS

    def solve(
        self, total: int, split: tuple[int, ...] | None, options: SolverOptions, solver: str
    ) -> tuple[Status, StepPlan | None]:
        """Decide the instance with this total of rounds, or with this split into steps."""
        model = ProgramBuilder()
        send = self._sends(model)
        self._possession(model, send)
        rounds = self._rounds(model, send, total, split)
        found = solve(model.build(), options, solver)
        if not found.has_point:
            return found.status, None
        sent = np.rint(found.value(send)).astype(np.int64)
        return found.status, self._plan(sent, tuple(np.rint(found.value(rounds)).astype(int).tolist()))

    def _sends(self, model: ProgramBuilder) -> VariableBlock:
        """A variable where the chunk can be at the start of the edge, and can be of use at its end."""
        goods, graph, step = self.commodities, self.graph, np.arange(self.steps)
        away = graph.steps_between[goods.source]
        onward = np.full_like(away, 1 << 30)
        for node in np.flatnonzero(goods.wanted.any(axis=0)).tolist():
            wants = goods.wanted[:, node] > 0
            onward[wants] = np.minimum(onward[wants], graph.steps_between[:, node][None, :])
        possible = (away[:, graph.src, None] <= step) & (onward[:, graph.dst, None] < self.steps - step)
        possible &= (graph.dst != goods.source[:, None])[:, :, None]
        return model.variables("send", possible.shape, upper=goods.units[:, None, None], integer=True, where=possible)

    def _possession(self, model: ProgramBuilder, send: VariableBlock) -> None:
        """Nodes have what they had and what arrived, less what they gave away, if nothing is copied."""
        goods, graph = self.commodities, self.graph
        away = graph.steps_between[goods.source]
        least = np.zeros((*away.shape, self.steps + 1))
        least[:, :, self.steps] = goods.wanted
        least[np.arange(len(away)), goods.source, 0] = goods.units
        reached = away[:, :, None] <= np.arange(self.steps + 1)
        have = model.variables("have", least.shape, least, goods.units[:, None, None], where=reached)
        rows = model.rows("possession", (*away.shape, self.steps), equals=0)
        rows.add(have[:, :, :-1]).add(have[:, :, 1:], times=-1).add_at(np.s_[:, graph.dst], send)
        if goods.copies:
            model.rows("send what you have", send.shape, upper=0).add(send).add(have[:, graph.src, :-1], times=-1)
            return
        rows.add_at(np.s_[:, graph.src], send, times=-1)
        kept = model.rows("send what you have", (*away.shape, self.steps), lower=0)
        kept.add(have[:, :, :-1]).add_at(np.s_[:, graph.src], send, times=-1)

    def _rounds(
        self, model: ProgramBuilder, send: VariableBlock, total: int, split: tuple[int, ...] | None
    ) -> VariableBlock:
        """Capacity of every set of edges in every step."""
        graph = self.graph
        least = np.ones(self.steps) if split is None else np.array(split, dtype=np.float64)
        most = np.full(self.steps, total - self.steps + 1.0) if split is None else least
        rounds = model.variables("rounds", self.steps, least, most, integer=True)
        model.rows("all rounds", (), upper=total).add(rounds, sum_axis=0)
        used = np.unique(graph.row_set)
        rows = model.rows("capacity", (len(used), self.steps), upper=0)
        at = np.searchsorted(used, graph.row_set)
        capacity = np.array([float(graph.capacity[one]) for one in used.tolist()])
        for commodity in range(len(self.commodities.units)):
            rows.add_at(np.s_[at], send[commodity, graph.row_edge])
        rows.add(np.broadcast_to(rounds.columns, rows.shape), times=-capacity[:, None])
        return rounds

    def _plan(self, sent: I64, rounds: tuple[int, ...]) -> StepPlan:
        """The chunks behind the units: a node that gives units away sends those that it got first."""
        goods, graph = self.commodities, self.graph
        rows: list[tuple[int, int, int]] = []
        held: dict[tuple[int, int], deque[int]] = {}
        for k, chunks in enumerate(goods.chunks):
            held[k, int(goods.source[k])] = deque(chunks)
        for step in range(self.steps):
            arrived: list[tuple[int, int, int]] = []
            for k, edge in zip(*(part.tolist() for part in np.nonzero(sent[:, :, step])), strict=True):
                store, to = held[k, int(graph.src[edge])], int(graph.dst[edge])
                for _ in range(int(sent[k, edge, step])):
                    chunk = store[0] if goods.copies else store.popleft()
                    rows.append((chunk, edge, step))
                    arrived.append((k, to, chunk))
            for k, to, chunk in arrived:
                held.setdefault((k, to), deque()).append(chunk)
        table = np.array(rows, dtype=np.int64).reshape(-1, 3)
        return StepPlan(table[:, 0], table[:, 1], table[:, 2], rounds)
