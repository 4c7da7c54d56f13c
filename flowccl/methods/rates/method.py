"""Method `packed-trees`: trees at the rates of a linear program, whole chunks on them, and list scheduling.

1. Rates. `trees.py` finds trees and rates with which large data takes the least time, on any links and limits.
2. Chunks. Each chunk takes one tree (an allreduce: a pair with the same root), so that the loads stay near the optimum.
3. Times. The engine carries out the transfers in several orders: early chunks first, or long tails first, with noise.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.rates.network import I64, Network
from flowccl.methods.rates.rounding import Columns, choose_columns, dealt
from flowccl.methods.rates.trees import TreeRates, tree_rates
from flowccl.methods.suitability import is_for_all
from flowccl.portable import power_of_ten
from flowccl.problem import Problem
from flowccl.schedule.generation.engine import Engine
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import reverse
from flowccl.search.context import SearchContext
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology

_POSITION_WEIGHTS = (1.0, 0.25, 0.0)  # weights of the positions of chunks in the priority
_LEAST = (1.0, 0.5)  # part of its rate below which a message waits
_RUNS_PER_TREES = 6
_RATES_SHARE = 0.3  # of the time limit, for the rates
_LEVEL = 1 << 40  # of drafts: transfers of a level start together, long after those of the level before


def packed_trees(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Yield schedules of an allgather, a broadcast, a reduce, a reduce-scatter or an allreduce of all GPUs."""
    if problem.is_reduction and not problem.is_allreduce:  # a distribution of the reversed machine, backwards
        back = Problem(problem.topology.reversed, problem.demand.backward)
        for found in packed_trees(back, context):
            yield None if found is None else _reversed(found, problem)
        return
    search = _Search(problem.topology, problem.demand, _rates_of(problem, context), np.random.default_rng(context.seed))
    while True:
        yield search.step()


def _reversed(found: Schedule, problem: Problem) -> Schedule:
    return replace(reverse(found, problem.demand, reduce=True), topology=problem.topology)


def _rates_of(problem: Problem, context: SearchContext) -> TreeRates:
    """The rates of the problem, found once for all chunk counts."""
    topology, demand = problem.topology, problem.demand
    data = None
    if not problem.is_allreduce and is_for_all(demand):
        data = np.bincount(demand.source, demand.chunk_bytes, topology.num_gpus) / demand.chunk_bytes.sum()
    elif problem.allreduce_ranks is None or len(problem.allreduce_ranks) != topology.num_gpus:
        raise DemandError(f"method packed-trees is for data that all GPUs receive or reduce; got {demand.collective}")
    key = f"packed-trees {topology.fingerprint} {None if data is None else np.round(data, 9).tolist()}"
    found = context.incumbents.hints.get(key)
    if not isinstance(found, TreeRates):
        found = tree_rates(Network(topology), data, _RATES_SHARE * context.budget.time_limit_s)
        context.incumbents.hints[key] = found
    return found


@dataclass
class _Search:
    """The state of the search: the engine for the current choice of trees, and the best completion time."""

    topology: Topology
    demand: Demand
    rates: TreeRates
    random: np.random.Generator

    def __post_init__(self) -> None:
        self.engine: Engine | None = None
        self.best_ps, self.idle, self.turn = np.iinfo(np.int64).max, 0, 0
        self.waiting: list[tuple[float, float]] = []

    def step(self) -> Schedule | None:
        """Carry out the transfers in one order; return the schedule if it is the best so far."""
        if self.engine is None or self.idle >= _RUNS_PER_TREES:
            self.engine = Engine(self._draft(self.random if self.turn else None))
            self.waiting = [(weight, least) for least in _LEAST for weight in _POSITION_WEIGHTS][::-1]
            self.idle = 0
            self.turn += 1
        noise = 0.0 if self.waiting else power_of_ten(float(self.random.uniform(-2.5, -0.3)))
        weight, least = self.waiting.pop() if self.waiting else self._drawn()
        found = self.engine.run(self._key(self.engine, weight, noise), least)
        if found is None or found.finish_ps >= self.best_ps:
            self.idle += not self.waiting
            return None
        self.best_ps, self.idle = found.finish_ps, 0
        return found

    def _drawn(self) -> tuple[float, float]:
        return float(self.random.choice(_POSITION_WEIGHTS)), float(self.random.choice(_LEAST))

    def _key(self, engine: Engine, weight: float, noise: float) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        """Early chunks first, and long tails first; `weight` is that of the position of the chunk."""
        demand = self.demand
        turn = np.argsort(self._sequence())
        total_ps = self.rates.time * float(demand.chunk_bytes.sum()) * 1000.0
        tail = engine.tail_ps * (1 + noise * self.random.uniform(-1, 1, len(engine.tail_ps)))
        return np.asarray(turn[engine.schedule.chunk] * (total_ps * weight / len(demand)) - tail)

    def _sequence(self) -> I64:
        """The chunks in their order: the first pieces of all blocks, then the second ones, and so on."""
        block, piece = np.divmod(np.arange(len(self.demand)), self.demand.pieces)
        return np.asarray(np.lexsort((block, piece)), dtype=np.int64)

    def _draft(self, random: np.random.Generator | None) -> Schedule:
        """All transfers over the chosen trees, level by level."""
        columns = self._chosen(random)
        rows = [_transfers(self.rates, column, chunk, turned) for chunk, pair in columns for column, turned in pair]
        chunk, level, turned = (np.concatenate([row[k] for row in rows]) for k in range(3))
        links = [path for row in rows for path in row[3]]
        start = level * _LEVEL
        return Schedule.from_links(
            self.topology, self.demand, chunk.astype(np.int32), Routes.from_lists(links), start, turned, "packed-trees"
        )

    def _chosen(self, random: np.random.Generator | None) -> list[tuple[int, list[tuple[int, bool]]]]:
        """The tree of every chunk, or for an allreduce the tree into its root and the tree from there."""
        rates, demand, capacity = self.rates, self.demand, Network(self.topology).capacity
        root = np.array([tree.root for tree in rates.trees])
        inward = np.array([tree.inward for tree in rates.trees])
        order, count = self._sequence(), self.topology.num_gpus
        size = demand.chunk_bytes[order]
        if not inward.any():
            columns = Columns.of(root, rates.amount, rates.load)
            choice, _ = choose_columns(columns, demand.source[order].astype(np.int64), size, capacity, random)
            return [(chunk, [(column, False)]) for chunk, column in zip(order.tolist(), choice.tolist(), strict=True)]
        owner = dealt(np.bincount(root[~inward], rates.amount[~inward], count), len(demand))
        columns = Columns.of(np.where(inward, root + count, root), rates.amount, rates.load)
        group, sizes = np.concatenate((owner, owner + count)), np.concatenate((size, size))
        choice, _ = choose_columns(columns, group, sizes, capacity, random)
        down, up = np.split(choice, 2)
        pairs = zip(order.tolist(), up.tolist(), down.tolist(), strict=True)
        return [(chunk, [(into, True), (out, False)]) for chunk, into, out in pairs]


def _transfers(rates: TreeRates, column: int, chunk: int, turned: bool) -> tuple[I64, I64, I64, list[tuple[int, ...]]]:
    """The transfers of a chunk over a tree: chunk, level, whether they reduce, and links."""
    tree = rates.trees[column]
    depth = {tree.root: 0}
    for above, node, _ in tree.edges:
        depth[node] = depth[above] + 1
    levels = np.array([depth[node] for _, node, _ in tree.edges], dtype=np.int64)
    levels = 64 - levels if turned else 64 + levels
    links = [tuple(reversed(path)) if turned else path for _, _, path in tree.edges]
    return np.full(len(levels), chunk), levels, np.full(len(levels), turned), links
