"""Method `hierarchical`: a schedule for every use of the levels of the machine."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import ceil
from typing import NamedTuple

from flowccl.adapters.reduction import with_reductions
from flowccl.adapters.trunks import with_merged_lanes
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.hierarchical.block_plans import (
    estimate_ps,
    expected_load_ps,
    latency_ps,
    planned_blocks,
    schedule_of,
)
from flowccl.methods.hierarchical.roots import BINARY, LEAST, NEAR
from flowccl.methods.hierarchical.variants import (
    TreeVariant,
    exchange_variants,
    largest_group,
    least_exchange_ps,
    variants,
)
from flowccl.problem import Problem
from flowccl.schedule.generation.engine import at_shared_rates
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.trunks import with_merged_trunks

_MOST_ROOTED = 7  # chunks with a root for each one that is exchanged
_ALIKE = 1.01  # ratio of expected times up to which options count as equally good
_AFTER_ESTIMATES = 12  # times what estimates take must be left for schedules
_AGAIN = 2  # times what an option took on average must be left for one that was not estimated
_QUICK = 100_000  # transfers of one chunk of each block, up to which an estimate takes less than a second
_LATER = 1.05  # ratio of the loads of halves and of trees with roots from which more chunks of halves are not worth it
_FILLING = 1 / 64  # part of the time that filling the pipeline may take: chunks beyond gain less than 1 %


def hierarchical(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Schedules of all variants, planned on trunks where the machine has links side by side between switches."""
    return _at_shared_rates(with_merged_lanes(_on_levels)(problem, context), context)


def _at_shared_rates(some: Iterator[Schedule | None], context: SearchContext) -> Iterator[Schedule | None]:
    """The schedules, with links shared by rate where that is earlier."""
    for found in some:
        yield None if found is None else at_shared_rates(found, context.budget.has_time)


def _on_levels(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Schedules of all variants, the most promising first."""
    _check_levels(problem, "hierarchical")
    if problem.allreduce_ranks is None:
        return with_reductions(_along_trees)(problem, context)
    return _while_there_are_options(_allreduce_options, problem, context)


def _check_levels(problem: Problem, method: str) -> None:
    """Raise DemandError where the machine has one level."""
    if not problem.hierarchy.levels:
        name = problem.topology.name
        raise DemandError(f"method {method} needs several hosts with several GPUs each; {name} has one level")


def hierarchical_halves(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """An allreduce as a reduce-scatter and an allgather, each along trees of all variants."""
    _check_levels(problem, "hierarchical-halves")
    halves = with_merged_lanes(with_reductions(_along_trees, replans=False))(problem, context)
    for found in _at_shared_rates(halves, context):
        yield None if found is None else replace(found, method="hierarchical-halves")


def useful_chunks(problem: Problem, context: SearchContext, *, halves: bool = False) -> int:
    """The number of chunks per block with which filling the pipeline takes a small part of the time: a power of two."""
    problem = Problem(with_merged_trunks(problem.topology), problem.demand)
    _check_levels(problem, "hierarchical-halves" if halves else "hierarchical")
    planned = problem
    if halves or problem.allreduce_ranks is None:
        planned = Problem(problem.topology, _spread_demand(problem))
        options = _spread_options(planned, context)
        if halves and 2 * min(option.load_ps for option in options) > _LATER * _rooted_load_ps(problem):
            return 1  # trees with roots are better with more chunks, whatever these are worth here
    else:
        options = _allreduce_options(problem, context)
    best = min(options, key=lambda option: option[:2])
    finish_ps, load_ps = best[:2]
    least = 2 if problem.allreduce_ranks is not None and not halves else 1  # one is reduced while the other is spread
    if finish_ps == load_ps:  # not estimated
        return least
    least_ps = load_ps + latency_ps(planned, best.variant)
    filling = (finish_ps - least_ps) / least_ps
    return max(least, 1 << max(ceil(filling / _FILLING) - 1, 0).bit_length())


def _rooted_load_ps(problem: Problem) -> float:
    """The load of the busiest links where chunks have roots, in the first way in which that is tried."""
    return expected_load_ps(problem, _rooted_variants(problem)[0])


def _rooted_variants(problem: Problem) -> list[TreeVariant]:
    """The variants of an allreduce in which chunks have roots, with all ways to place these that may differ."""
    direct = [replace(one, rooted=True) for one in variants(problem) if one.between == "direct"]
    planned = planned_blocks(problem, direct[0])
    if planned is None or planned.planner.roots.is_even:
        return direct
    return [replace(one, roots=placement) for placement in (BINARY, LEAST, NEAR) for one in direct]


def _along_trees(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Schedules of a demand without reductions, one for every variant."""
    return _while_there_are_options(_spread_options, problem, context)


class _Option(NamedTuple):
    """How to make a schedule, with its expected finish and the load of its busiest links."""

    finish_ps: float
    load_ps: float
    make: Callable[[], Schedule | None]
    variant: TreeVariant

    @property
    def kind(self) -> str:
        """What the option has in common with one for another number of chunks: a key of hints."""
        return f"hierarchical {replace(self.variant, exchanged=min(self.variant.exchanged, 1))}"


def _spread_options(problem: Problem, context: SearchContext) -> list[_Option]:
    """The variants of a demand without reductions; multicasts alone leave one port of a switch idle.

    Multicasts are mixed with single copies where that is expected to be earlier.
    """
    some = variants(problem)
    mixed = [one for one in some if one.inside == "mixed"]
    idle = 1 + 1 / (largest_group(problem) - 1) if mixed else 1.0
    began_s = context.budget.elapsed_s
    options = _tree_options(problem, context, [one for one in some if one.inside != "mixed"], idle)
    if not _has_time_for_more(context, began_s):
        return options
    finish_ps = {option.variant: option.finish_ps for option in options}
    return options + [
        option
        for option in _tree_options(problem, context, mixed)
        if option.finish_ps < finish_ps.get(replace(option.variant, inside="star"), float("inf"))
    ]


def _tree_options(
    problem: Problem, context: SearchContext, some: list[TreeVariant], idle: float = 1.0
) -> list[_Option]:
    """The variants that are possible; links from switches that copy have `idle` times their load.

    Variants are estimated while that has taken a small part of the time that is left. Where already the plan of the
    first one has taken more, it is the only one, and its expected finish is its load.
    """
    options, began_s = list[_Option](), context.budget.elapsed_s
    for number, one in enumerate(some):
        if number and not _has_time_for_more(context, began_s):
            break
        if not number and (load_ps := _load_without_estimate_ps(problem, context, one, idle)) is not None:
            return [_Option(load_ps, load_ps, partial(schedule_of, problem, one, context.budget.has_time), one)]
        estimate = estimate_ps(problem, one, idle)
        if estimate is not None:
            options.append(_Option(*estimate, partial(schedule_of, problem, one, context.budget.has_time), one))
    return options


def _load_without_estimate_ps(
    problem: Problem, context: SearchContext, variant: TreeVariant, idle: float
) -> float | None:
    """The load of a variant whose plan has taken so long that there is time for one schedule; else None."""
    planned = planned_blocks(problem, variant)
    if planned is None or planned.planner.ends[1][0] <= _QUICK:
        return None
    if context.budget.has_time(planned.seconds * _AFTER_ESTIMATES):
        return None
    return expected_load_ps(problem, variant, idle)


def _has_time_for_more(context: SearchContext, began_s: float) -> bool:
    """Whether estimates may go on: several times what they have taken since then is left for schedules."""
    return context.budget.has_time((context.budget.elapsed_s - began_s) * _AFTER_ESTIMATES)


def _allreduce_options(problem: Problem, context: SearchContext) -> list[_Option]:
    """Chunks have roots, or groups exchange them, or some of both.

    Exchanges send more between groups, so they are planned only where links are fast enough for them, and where plans
    take a small part of the time that is left.
    """
    began_s = context.budget.elapsed_s
    rooted = _tree_options(problem, context, _rooted_variants(problem))
    best_ps = min((option.finish_ps for option in rooted), default=float("inf"))
    planned = (planned_blocks(problem, option.variant) for option in rooted)  # kept from the estimates
    planned_s = max((one.seconds for one in planned if one is not None), default=0.0)
    if rooted and not _has_time_for_more(context, min(began_s, context.budget.elapsed_s - planned_s)):
        return rooted
    some = [one for one in exchange_variants(problem) if least_exchange_ps(problem, one) < best_ps]
    exchanges = _tree_options(problem, context, some)
    mixed = [_partly_exchanged(problem, context, one, other) for one in rooted for other in exchanges]
    return [*rooted, *exchanges, *(option for option in mixed if option is not None)]


def _partly_exchanged(problem: Problem, context: SearchContext, rooted: _Option, exchange: _Option) -> _Option | None:
    """Chunks with roots of which some are exchanged on the same levels; None where all or none would be."""
    variant, other = rooted.variant, exchange.variant
    every = max((k for k in range(2, _MOST_ROOTED + 2) if problem.demand.pieces % k == 0), default=0)
    if not every or other != replace(variant, rooted=False, roots=LEAST):
        return None
    more_ps = (exchange.load_ps - rooted.load_ps) / every
    mixed = replace(variant, exchanged=every)
    make = partial(schedule_of, problem, mixed, context.budget.has_time)
    return _Option(rooted.finish_ps + more_ps, rooted.load_ps + more_ps, make, mixed)


def _spread_demand(problem: Problem) -> Demand:
    """What trees are planned for: the demand itself, reversed, or the second half of an allreduce."""
    demand = problem.demand
    if not demand.reduces:
        return demand
    return demand.backward if demand.is_unicast else demand.halves[1][0]


def _while_there_are_options(
    options_of: Callable[[Problem, SearchContext], list[_Option]], problem: Problem, context: SearchContext
) -> Iterator[Schedule | None]:
    """The schedules of all options, then of those that were not estimated for lack of time, where some is left."""
    tried, began_s = set[TreeVariant](), context.budget.elapsed_s
    while not tried or context.budget.has_time(_AGAIN * (context.budget.elapsed_s - began_s) / len(tried)):
        options = [option for option in options_of(problem, context) if option.variant not in tried]
        if not options:
            return
        tried |= {option.variant for option in options}
        yield from _most_promising_first(options, context)


def _most_promising_first(options: list[_Option], context: SearchContext) -> Iterator[Schedule | None]:
    """The schedules of some options; those that cannot be better, or better than what others found, are left out.

    Estimates are corrected by what the same kind of option took with another number of chunks, over what was expected.
    Kinds that were not tried are corrected by the mean of the others. If the best kind was tried, it is a step of its
    own. The next step takes options while one more is expected to be about as good as the first, or as the best so far;
    each further step takes one. None begins that would end after the time limit if it took as long as the slowest one.
    """
    known = {option.kind: context.incumbents.hints.get(option.kind) for option in options}
    ratios = {kind: ratio for kind, ratio in known.items() if isinstance(ratio, float)}
    usual = sum(ratios.values()) / len(ratios) if ratios else 1.0
    expected = [option.finish_ps * ratios.get(option.kind, usual) for option in options]
    waiting = sorted(zip(expected, options, strict=True), key=lambda pair: (pair[0], pair[1][:2]))
    first_ps = min(expected, default=0.0)
    best_ps, kept, slowest_s = float("inf"), None, 0.0
    for turn, (_, option) in enumerate(waiting):
        if best_ps < float("inf") and not context.budget.has_time(slowest_s):
            yield kept
            return
        if option.load_ps < min(best_ps, context.incumbents.best_ps):
            began_s = context.budget.elapsed_s
            found = option.make()
            slowest_s = max(slowest_s, context.budget.elapsed_s - began_s)
            if found is not None and found.demand.pieces > 1:  # with one chunk there is no pipeline yet
                context.incumbents.report_hint(option.kind, found.finish_ps / option.finish_ps, found.finish_ps)
            if found is not None and found.finish_ps < best_ps:
                best_ps, kept = found.finish_ps, found
        further = waiting[turn + 1 : turn + 2]
        alone = turn == 0 and option.kind in ratios
        if alone or not further or further[0][0] > _ALIKE * max(best_ps, first_ps):
            yield kept
            kept = None
