"""Method `packed-trees`: trees at the rates of a linear program, whole chunks on them, and list scheduling.

1. Rates. `trees.py` finds trees and rates with which large data takes the least time, on any links and limits.
2. Chunks. Each chunk takes one tree (an allreduce: a pair with the same root), so that the loads stay near the optimum.
3. Times. Periodic pipelines need no order; the engine then carries out their transfers in the same order and as early
   as it can, which fills and empties the pipelines faster, and in orders with noise.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.rates.network import F64, I64, PricedNetwork
from flowccl.methods.rates.pipeline import ChunkStream, Pipelines
from flowccl.methods.rates.proof import report_tree_bound
from flowccl.methods.rates.rounding import Columns, deal_columns, dealt
from flowccl.methods.rates.trees import TreeRates, fewer_trees, tree_rates
from flowccl.methods.suitability import is_for_all
from flowccl.portable import power_of_ten
from flowccl.problem import Problem
from flowccl.schedule.generation.engine import Engine
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import reverse
from flowccl.search.context import SearchContext
from flowccl.topology.topology import Topology

_ORDERS = 3  # pipelines whose order the engine takes
_LEAST = (0.1, 0.5, 1.0)  # part of its rate below which a message waits
_LEAST_PARTS = (0.001, 0.1)  # of the largest tree of a root: trees with less data are left out
_MOST_LISTED, _MOST_STREAMED = 10_000, 400_000  # transfers of schedules for the engine, and of pipelines
_NAME = "packed-trees"
_RATES_SHARE = 0.2  # of the time limit, for the rates


def packed_trees(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Yield schedules of an allgather, a broadcast, a reduce, a reduce-scatter or an allreduce of all GPUs."""
    if problem.is_reduction and not problem.is_allreduce:  # a distribution of the reversed machine, backwards
        back = Problem(problem.topology.reversed, problem.demand.backward)
        for found in packed_trees(back, context):
            yield None if found is None else _reversed(found, problem)
        return
    if not _has_rates(problem, context):
        _rates_of(problem, context)
        yield None
    rates, data = _rates_of(problem, context), _data_of(problem)
    random = np.random.default_rng(context.seed)
    yield from _TreesSearch(problem.topology, problem.demand, rates, data, random).schedules()


def useful_chunks(problem: Problem) -> int:
    """A number of chunks with which the pipelines are long: a power of two."""
    demand, gpus = problem.demand, problem.topology.num_gpus
    blocks = max(len(demand) // demand.pieces, 1)
    transfers = blocks * (gpus - 1) * (2 if problem.is_allreduce else 1)
    return 1 << max(int(_MOST_STREAMED / transfers).bit_length() - 1, 0)


def _reversed(found: Schedule, problem: Problem) -> Schedule:
    return replace(reverse(found, problem.demand, reduce=True), topology=problem.topology)


def _data_of(problem: Problem) -> F64 | None:
    """The part of the data that each GPU has at first; None for an allreduce, whose roots are free."""
    topology, demand = problem.topology, problem.demand
    if not problem.is_allreduce and is_for_all(demand):
        data = np.bincount(demand.source, demand.chunk_bytes, topology.num_gpus)
        return np.asarray(data / demand.chunk_bytes.sum())
    if problem.allreduce_ranks is None or len(problem.allreduce_ranks) != topology.num_gpus:
        raise DemandError(f"method packed-trees is for data that all GPUs receive or reduce; got {demand.collective}")
    return None


def _key_of(problem: Problem) -> str:
    data = _data_of(problem)
    return f"{_NAME} {problem.topology.fingerprint} {None if data is None else np.round(data, 9).tolist()}"


def _has_rates(problem: Problem, context: SearchContext) -> bool:
    return _key_of(problem) in context.incumbents.hints


def _rates_of(problem: Problem, context: SearchContext) -> TreeRates:
    """The rates of the problem, found once for all chunk counts."""
    topology, demand, data = problem.topology, problem.demand, _data_of(problem)
    key = _key_of(problem)
    found = context.incumbents.hints.get(key)
    if not isinstance(found, TreeRates):
        found = tree_rates(PricedNetwork(topology), data, context.budget.part_s(_RATES_SHARE))
        context.incumbents.hints[key] = found
        if data is not None:
            report_tree_bound(PricedNetwork(topology), demand, found.price, context.incumbents)
    return found


@dataclass
class _TreesSearch:
    """The search for one chunk count: pipelines with few or many trees, then list scheduling."""

    topology: Topology
    demand: Demand
    rates: TreeRates
    data: F64 | None
    random: np.random.Generator

    def __post_init__(self) -> None:
        self.network = PricedNetwork(self.topology)
        self.best_ps = np.iinfo(np.int64).max
        self.is_allreduce = any(tree.inward for tree in self.rates.trees)
        roots = np.array([tree.root + self.topology.num_gpus * tree.inward for tree in self.rates.trees])
        self.columns = Columns.of(roots, self.rates.amount, self.rates.load)

    def schedules(self) -> Iterator[Schedule | None]:
        """Schedules that are better than all before, or None."""
        amounts = fewer_trees(self.network, self.rates, self.data, len(self.demand))
        pipelines = [self._pipelines(amount, least) for amount in amounts for least in _LEAST_PARTS]
        pipelines.sort(key=lambda one: one.time_ps)
        found = pipelines[0].schedule(_NAME)
        yield self._if_better(found)
        if len(found) <= _MOST_LISTED:
            orders = [found, *(one.schedule(_NAME) for one in pipelines[1:_ORDERS])]
            yield from map(self._if_better, self._in_order_of(orders))

    def _if_better(self, found: Schedule | None) -> Schedule | None:
        if found is None or found.finish_ps >= self.best_ps:
            return None
        self.best_ps = found.finish_ps
        return found

    # -- whole chunks ---------------------------------------------------------------------------------------------

    def _pipelines(self, amount: F64, least: float) -> Pipelines:
        """Chunks in proportion to amounts, on trees with this part of the largest of their root or more."""
        columns = replace(self.columns, weight=amount).with_parts(least)
        return Pipelines(self.network, self.demand, self._streams(columns, least))

    def _streams(self, columns: Columns, least: float) -> list[ChunkStream]:
        demand, trees = self.demand, self.rates.trees
        if not self.is_allreduce:
            choice = deal_columns(columns, demand.source.astype(np.int64))
            return [ChunkStream(trees[j].plan, np.flatnonzero(choice == j)) for j in np.unique(choice).tolist()]
        up, down = self._pairs(columns, least)
        pair = np.stack((up, down), axis=1)
        both, which = np.unique(pair, axis=0, return_inverse=True)
        return [
            ChunkStream(trees[a].plan.then(trees[b].plan), np.flatnonzero(which.reshape(-1) == i))
            for i, (a, b) in enumerate(both.tolist())
        ]

    def _pairs(self, columns: Columns, least: float) -> tuple[I64, I64]:
        """A tree into a root and one from it for each chunk of an allreduce, with few different pairs."""
        count = self.topology.num_gpus
        weight = np.where(columns.group < 0, 0, columns.weight)
        owned = np.bincount(np.maximum(columns.group, 0), weight, 2 * count)[:count]
        owner = dealt(np.where(owned >= least * owned.max(), owned, 0.0), len(self.demand))
        down, up = deal_columns(columns, owner), deal_columns(columns, owner + count)
        by_down, by_up, by_owner = (np.lexsort((one, owner)) for one in (down, up, owner))
        up[by_owner], down[by_owner] = up[by_up], down[by_down]
        return up, down

    # -- list scheduling ------------------------------------------------------------------------------------------

    def _in_order_of(self, orders: list[Schedule]) -> Iterator[Schedule | None]:
        """The transfers of pipelines as early as the engine can, in their order; then with noise."""
        engines = [Engine(one) for one in orders]
        for least in _LEAST:
            for engine in engines:
                yield engine.run(engine.schedule.start_ps, least, self.best_ps)
        while True:
            engine = engines[int(self.random.integers(len(engines)))]
            start, noise = engine.schedule.start_ps, power_of_ten(float(self.random.uniform(-3.0, -1.0)))
            late = noise * engine.schedule.finish_ps * self.random.uniform(-1, 1, len(start))
            tail = float(self.random.choice((0.0, 1.0))) * engine.tail_ps
            yield engine.run(start + late - tail, float(self.random.choice(_LEAST)), self.best_ps)
