"""Method `packed-trees`: trees at the rates of a linear program, whole chunks on them, and list scheduling.

1. Rates. `trees.py` finds trees and rates with which large data takes the least time, on any links and limits.
2. Chunks. Each chunk takes one tree (an allreduce: a pair with the same root), so that the loads stay near the optimum.
3. Times. Periodic pipelines need no order; the engine then carries out their transfers in the same order and as early
   as it can, which fills and empties the pipelines faster, and then justifies them.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from flowccl.adapters.reversal import opposite_links
from flowccl.errors import DemandError
from flowccl.methods.justification import JustifyingWalk
from flowccl.methods.rates.network import F64, PricedNetwork
from flowccl.methods.rates.proof import report_tree_bound
from flowccl.methods.rates.rounding import EVEN
from flowccl.methods.rates.streams import HalvesPipelines, TreePipelines, reversed_reduction
from flowccl.methods.rates.trees import TreeRates, least_of_halves, pair_bound, tree_rates
from flowccl.methods.suitability import is_for_all
from flowccl.problem import Problem
from flowccl.schedule.generation.engine import LEAST_RATES, Engine
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext

_ORDERS = 3  # pipelines whose order the engine takes
_MOST_LISTED, _MOST_STREAMED = 10_000, 400_000  # transfers of schedules for the engine, and of pipelines
_NAME = "packed-trees"
_RATES_SHARE, _HALF_SHARE = 0.15, 0.06  # of the time limit, for rates: of all trees, and of a half of an allreduce
_AS_GOOD = 1.002  # ratio of times up to which pairs of trees are not looked for


def packed_trees(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Yield schedules of an allgather, a broadcast, a reduce, a reduce-scatter or an allreduce of all GPUs."""
    topology, demand = problem.topology, problem.demand
    if demand.reduces and not problem.is_allreduce:  # a distribution of the reversed machine, backwards
        for found in packed_trees(Problem(topology.reversed, demand.backward), context):
            yield None if found is None else reversed_reduction(found, topology, demand)
        return
    is_new = all(not key.startswith(_key_of(problem)) for key in context.incumbents.hints)
    makers = _pipelines_of(problem, context)
    if is_new:  # the rates serve all chunk counts
        yield None
    yield from _schedules(problem, makers, context)


def useful_chunks(problem: Problem, context: SearchContext) -> int:
    """A number of chunks with which the pipelines are long: a power of two."""
    per_chunk = max(_transfers(problem) // problem.demand.pieces, 1)
    return 1 << max(int(_MOST_STREAMED / per_chunk).bit_length() - 1, 0)


def _transfers(problem: Problem) -> int:
    """The number of transfers of a pipeline."""
    return len(problem.demand) * (problem.topology.num_gpus - 1) * (2 if problem.is_allreduce else 1)


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


def _rates_of(problem: Problem, context: SearchContext, share: float = _RATES_SHARE) -> TreeRates:
    """The rates of the problem, found once for all chunk counts within a share of the time limit."""
    key = _key_of(problem)
    found = context.incumbents.hints.get(key)
    if not isinstance(found, TreeRates):
        limit_s = context.budget.part_s(share)
        found = tree_rates(PricedNetwork(problem.topology), _data_of(problem), limit_s)
        context.incumbents.hints[key] = found
    return found


def _pipelines_of(problem: Problem, context: SearchContext) -> list[TreePipelines | HalvesPipelines]:
    """What makes pipelines for the problem; for an allreduce halves, or pairs of trees, or both.

    Pipelines of halves are shorter, while pairs may have higher rates where GPUs differ.
    """
    topology, demand, hints = problem.topology, problem.demand, context.incumbents.hints
    if not problem.is_allreduce:
        spread = _spread(problem, context)
        report_tree_bound(spread.network, demand, spread.rates.price, context.incumbents)
        return [spread]
    key = f"{_key_of(problem)} halves"
    least = hints.get(key)
    if not isinstance(least, tuple):
        least = hints[key] = (pair_bound(PricedNetwork(topology)), least_of_halves(topology))
    pairs = None
    if least[1] > least[0] * _AS_GOOD:
        pairs = TreePipelines(topology, demand, _rates_of(problem, context), None, _NAME)
        if pairs.rates.time <= least[1]:
            return [pairs]
    second = demand.halves[1][0]
    there, back = _spread(Problem(topology, second), context, _HALF_SHARE), None
    if opposite_links(topology) is None:
        back = _spread(Problem(topology.reversed, second), context, _HALF_SHARE)
    halves = HalvesPipelines(demand, there, back)
    if pairs is None and halves.time > least[0] * _AS_GOOD:
        pairs = TreePipelines(topology, demand, _rates_of(problem, context), None, _NAME)
    return [halves] if pairs is None else [halves, pairs]


def _spread(problem: Problem, context: SearchContext, share: float = _RATES_SHARE) -> TreePipelines:
    """Pipelines for data that all GPUs receive."""
    rates = _rates_of(problem, context, share)
    return TreePipelines(problem.topology, problem.demand, rates, _data_of(problem), _NAME)


def _schedules(
    problem: Problem, makers: list[TreePipelines | HalvesPipelines], context: SearchContext
) -> Iterator[Schedule | None]:
    """Pipelines, then their transfers in orders of the engine: those better than all before, or None.

    Also the pipeline that loads links most evenly: threadblocks that repeat their operations may do so with its chunks.
    """
    some = sorted((one for maker in makers for one in maker.in_order()), key=lambda one: one.time_ps)
    if _transfers(problem) > _MOST_LISTED and some[0].time_ps >= context.incumbents.best_ps:
        return  # the engine would not improve it
    first = some[0].make()
    if len(first) > _MOST_LISTED:
        yield first
        return
    orders = [first, *(one.make() for one in some[1:_ORDERS])]
    runs = _in_order_of(orders, context)
    best = min([first, *filter(None, islice(runs, 2 * len(orders)))], key=lambda one: one.finish_ps)
    yield best
    best_ps, even = best.finish_ps, min(some, key=lambda one: one.crowded)
    if some[0].crowded > EVEN * even.crowded:  # later, but not where it is repeated with smaller chunks
        yield even.make()
    for found in runs:
        if found is None or found.finish_ps >= best_ps:
            yield None
        else:
            best_ps = found.finish_ps
            yield found


def _in_order_of(orders: list[Schedule], context: SearchContext) -> Iterator[Schedule | None]:
    """The transfers of pipelines as early as the engine can, in their order; then justified, with noise."""
    engines, best, give_up_ps = [Engine(one) for one in orders], list(orders), orders[0].finish_ps
    for least in LEAST_RATES:
        for i, engine in enumerate(engines):
            for key in (engine.schedule.start_ps, -engine.tail_ps):
                found = engine.run(key, least, give_up_ps)
                best[i] = min([best[i], *([] if found is None else [found])], key=lambda one: one.finish_ps)
                yield found
    random, walks = np.random.default_rng(context.seed), [JustifyingWalk(by_rate=True) for _ in best]
    for walk, one in zip(walks, best, strict=True):
        walk.adopt(one)
    while True:
        yield walks[int(random.integers(len(walks)))].step(random)
