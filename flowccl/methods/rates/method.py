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
from flowccl.methods.rates.network import I64, PricedNetwork
from flowccl.methods.rates.pipeline import periodic_schedule, rounds_of_any, rounds_of_blocks, tree_steps, up_and_down
from flowccl.methods.rates.proof import report_tree_bound
from flowccl.methods.rates.rounding import Columns, choose_columns, dealt
from flowccl.methods.rates.trees import TreeRates, tree_rates
from flowccl.methods.suitability import is_for_all
from flowccl.portable import power_of_ten
from flowccl.problem import Problem
from flowccl.schedule.generation.engine import Engine
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import reverse
from flowccl.search.context import SearchContext
from flowccl.topology.topology import Topology

_ORDERS = 3  # periodic schedules whose order the engine takes
_LEAST = (0.1, 0.5, 1.0)  # part of its rate below which a message waits
_ROUND_SIZES = (1, 1.5, 2, 3, 4, 6, 8)  # of an allreduce, relative to the number of roots
_MOST_LISTED, _MOST_PERIODIC = 10_000, 60_000  # transfers of schedules for the engine, and of periodic ones
_NAME = "packed-trees"
_RATES_SHARE = 0.3  # of the time limit, for the rates


def packed_trees(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Yield schedules of an allgather, a broadcast, a reduce, a reduce-scatter or an allreduce of all GPUs."""
    if problem.is_reduction and not problem.is_allreduce:  # a distribution of the reversed machine, backwards
        back = Problem(problem.topology.reversed, problem.demand.backward)
        for found in packed_trees(back, context):
            yield None if found is None else _reversed(found, problem)
        return
    rates = _rates_of(problem, context)
    yield from _TreesSearch(problem.topology, problem.demand, rates, np.random.default_rng(context.seed)).schedules()


def useful_chunks(problem: Problem) -> int:
    """A number of chunks with which the pipelines are long: a power of two."""
    demand, gpus = problem.demand, problem.topology.num_gpus
    blocks = max(len(demand) // demand.pieces, 1)
    transfers = blocks * (gpus - 1) * (2 if problem.is_allreduce else 1)
    return 1 << max(int(_MOST_PERIODIC / transfers).bit_length() - 1, 0)


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
        found = tree_rates(PricedNetwork(topology), data, context.budget.part_s(_RATES_SHARE))
        context.incumbents.hints[key] = found
        if data is not None:
            report_tree_bound(PricedNetwork(topology), demand, found.price, context.incumbents)
    return found


@dataclass
class _TreesSearch:
    """The search for one chunk count: periodic pipelines with rounds of several sizes, then list scheduling."""

    topology: Topology
    demand: Demand
    rates: TreeRates
    random: np.random.Generator

    def __post_init__(self) -> None:
        self.network = PricedNetwork(self.topology)
        self.best_ps = np.iinfo(np.int64).max
        self.is_allreduce = any(tree.inward for tree in self.rates.trees)
        roots = np.array([tree.root + self.topology.num_gpus * tree.inward for tree in self.rates.trees])
        self.columns = Columns.of(roots, self.rates.amount, self.rates.load)
        self.plans = [tree_steps(tree) for tree in self.rates.trees]

    def schedules(self) -> Iterator[Schedule | None]:
        """Schedules that are better than all before, or None."""
        periodic = []
        for size in self._round_sizes():
            periodic.append(self._periodic(size))
            yield self._if_better(periodic[-1])
        if len(periodic[0]) <= _MOST_LISTED:
            periodic.sort(key=lambda one: one.finish_ps)
            yield from map(self._if_better, self._in_order_of(periodic[:_ORDERS]))

    def _if_better(self, found: Schedule | None) -> Schedule | None:
        if found is None or found.finish_ps >= self.best_ps:
            return None
        self.best_ps = found.finish_ps
        return found

    # -- periodic pipelines ---------------------------------------------------------------------------------------

    def _round_sizes(self) -> list[int]:
        """Sizes of rounds to try: chunks of a block, or for an allreduce chunks of all blocks."""
        if self.is_allreduce:
            least = len(np.unique(self.columns.group)) // 2
            sizes = sorted({min(max(round(least * times), 1), len(self.demand)) for times in _ROUND_SIZES})
            return [*sizes, len(self.demand)]
        return [size for size in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if size <= self.demand.pieces]

    def _periodic(self, size: int) -> Schedule:
        demand = self.demand
        if not self.is_allreduce:
            rounds = rounds_of_blocks(demand, size)
            source = np.empty(len(rounds.slot_bytes), dtype=np.int64)
            source[rounds.slot] = demand.source
            choice, _ = choose_columns(self.columns, source, rounds.slot_bytes, self.network.capacity, None)
            return periodic_schedule(self.network, demand, rounds, [self.plans[j] for j in choice], _NAME)
        rounds = rounds_of_any(demand, size, chunk_sequence(demand))
        down, up = self._pairs(rounds.slot_bytes, None)
        plans = [up_and_down(self.plans[a], self.plans[b]) for a, b in zip(up, down, strict=True)]
        return periodic_schedule(self.network, demand, rounds, plans, _NAME)

    def _pairs(self, size: I64, random: np.random.Generator | None) -> tuple[I64, I64]:
        """A tree from a root and one into it for each chunk of an allreduce."""
        count, columns = self.topology.num_gpus, self.columns
        outward = columns.group < count
        owned = np.bincount(columns.group[outward], columns.weight[outward], count).astype(np.float64)
        owner = dealt(owned, len(size))
        group, sizes = np.concatenate((owner, owner + count)), np.concatenate((size, size))
        choice, _ = choose_columns(columns, group, sizes, self.network.capacity, random)
        down, up = np.split(choice, 2)
        return down, up

    # -- list scheduling ------------------------------------------------------------------------------------------

    def _in_order_of(self, periodic: list[Schedule]) -> Iterator[Schedule | None]:
        """The transfers of periodic schedules as early as the engine can, in their order; then with noise."""
        engines = [Engine(one) for one in periodic]
        for least in _LEAST:
            for engine in engines:
                yield engine.run(engine.schedule.start_ps, least, self.best_ps)
        while True:
            engine = engines[int(self.random.integers(len(engines)))]
            start, noise = engine.schedule.start_ps, power_of_ten(float(self.random.uniform(-3.0, -1.0)))
            late = noise * engine.schedule.finish_ps * self.random.uniform(-1, 1, len(start))
            tail = float(self.random.choice((0.0, 1.0))) * engine.tail_ps
            yield engine.run(start + late - tail, float(self.random.choice(_LEAST)), self.best_ps)


def chunk_sequence(demand: Demand) -> I64:
    """The chunks in their order: the first pieces of all blocks, then the second ones, and so on."""
    block, piece = np.divmod(np.arange(len(demand)), demand.pieces)
    return np.asarray(np.lexsort((block, piece)), dtype=np.int64)
