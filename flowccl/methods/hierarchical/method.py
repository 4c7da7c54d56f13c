"""Method `hierarchical`: a schedule for every way to use the levels of the machine."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowccl.adapters.reduction import with_reductions
from flowccl.adapters.reversal import sorted_links
from flowccl.adapters.trunks import with_merged_lanes
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.hierarchical.loads import LoadedRoutes
from flowccl.methods.hierarchical.plans import NoExchangeError, Planner
from flowccl.methods.hierarchical.scheduling import PlanScheduler, TransferPlan
from flowccl.methods.hierarchical.trees import TreeShape
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology
from flowccl.topology.trunks import merge_lanes
from flowccl.verifier.verify import verify

_BALANCED = 1.05  # highest load over mean load of alike links, up to which all chunks of a block take the same way
_LARGEST_BYTES = 1 << 20  # of a block in plans that serve for all sizes
_PLANNED, _PLANNED_DELIVERIES = 4, 1 << 14  # chunks per block that are planned one by one: at least, and at most
_PLANNED_CHUNKS = 1 << 10  # of all blocks, that are planned one by one however many deliveries they have
_MOST_ROOTED = 7  # chunks with a root for each one that is exchanged
_FILLING = 1 / 64  # part of the time that filling the pipeline may take: chunks beyond gain less than 1 %


@dataclass(frozen=True, slots=True)
class TreeVariant:
    """Which levels are used, how groups send to each other, and how chunks go on inside the innermost groups.

    In an allreduce, a chunk has a root, or groups exchange it. Of chunks with roots, every `exchanged`-th one is
    exchanged instead: links between groups are idle while the first results come back. `near_roots` are
    those from which no chunk takes a hop inside the group before it goes to another one.
    """

    levels: tuple[int, ...]
    between: str
    inside: str = "star"
    rooted: bool = False
    exchanged: int = 0
    near_roots: bool = False


def hierarchical(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Schedules of all variants, planned on trunks where the machine has links side by side between switches."""
    return with_merged_lanes(_on_levels)(problem, context)


def _on_levels(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Schedules of all variants, the most promising first."""
    if not problem.hierarchy.levels:
        name = problem.topology.name
        raise DemandError(f"method hierarchical needs several hosts with several GPUs each; {name} has one level")
    if problem.allreduce_ranks is None:
        return with_reductions(_along_trees)(problem, context)
    return _most_promising_first(_allreduce_options(problem, context))


def useful_chunks(problem: Problem) -> int:
    """The number of chunks per block with which filling the pipeline takes a small part of the time: a power of two."""
    lanes = merge_lanes(problem.topology)
    problem = problem if lanes is None else Problem(lanes.original, problem.demand)
    if problem.allreduce_ranks is None:
        problem = Problem(problem.topology, _spread_demand(problem))
        options = _spread_options(problem)
    else:
        options = _allreduce_options(problem, SearchContext.with_limit(1.0))
    finish_ps, load_ps = min(option[:2] for option in options)
    filling = (finish_ps - load_ps) / load_ps
    return 1 << max(int(filling / _FILLING) - 1, 0).bit_length()


def _along_trees(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Schedules of a demand without reductions, one for every variant."""
    return _most_promising_first(_spread_options(problem))


class _Option(NamedTuple):
    """A way to make a schedule, with its expected finish and the load of its busiest links."""

    finish_ps: float
    load_ps: float
    make: Callable[[], Schedule | None]
    variant: TreeVariant


def _spread_options(problem: Problem) -> list[_Option]:
    """The variants of a demand without reductions; multicasts alone leave one port of a switch idle."""
    some = variants(problem)
    mixed = [one for one in some if one.inside == "mixed"]
    idle = 1 + 1 / (_largest_group(problem) - 1) if mixed else 1.0
    others = [one for one in some if one.inside != "mixed"]
    return _tree_options(problem, others, idle) + _tree_options(problem, mixed)


def _tree_options(problem: Problem, some: list[TreeVariant], idle: float = 1.0) -> list[_Option]:
    """The variants that are possible; links from switches that copy have `idle` times their load."""
    known = [(_estimate_ps(problem, one, idle), partial(schedule_of, problem, one), one) for one in some]
    return [_Option(*estimate, make, one) for estimate, make, one in known if estimate is not None]


def _allreduce_options(problem: Problem, context: SearchContext) -> list[_Option]:
    """Chunks have roots, with one plan for both halves or the same plan for each half; or groups exchange chunks.

    Exchanges send more between groups, so they are planned only where links are fast enough for them.
    """
    trees, half = variants(problem), Problem(problem.topology, _spread_demand(problem))
    direct = [replace(one, rooted=True) for one in trees if one.between == "direct"]
    planned = _planned(problem, direct[0])
    if planned is not None and not planned.planner.roots.is_even:
        direct += [replace(one, near_roots=True) for one in direct]
    rooted = _tree_options(problem, direct)
    options = list(rooted)
    for variant in trees:
        make = partial(_two_halves, problem, variant, context)
        options += [
            _Option(2 * one.finish_ps, 2 * one.load_ps, make, variant) for one in _tree_options(half, [variant])
        ]
    best_ps = min(option.finish_ps for option in options)
    some = [one for one in _exchanges(problem) if _least_exchange_ps(problem, one) < best_ps]
    exchanges = _tree_options(problem, some)
    mixed = [_partly_exchanged(problem, one, other) for one in rooted for other in exchanges]
    return [*options, *exchanges, *(option for option in mixed if option is not None)]


def _partly_exchanged(problem: Problem, rooted: _Option, exchange: _Option) -> _Option | None:
    """Chunks with roots of which some are exchanged on the same levels; None where all or none would be."""
    variant, other = rooted.variant, exchange.variant
    every = max((k for k in range(2, _MOST_ROOTED + 2) if problem.demand.pieces % k == 0), default=0)
    if not every or other != replace(variant, rooted=False, near_roots=False):
        return None
    more_ps = (exchange.load_ps - rooted.load_ps) / every
    mixed = replace(variant, exchanged=every)
    make = partial(schedule_of, problem, mixed)
    return _Option(rooted.finish_ps + more_ps, rooted.load_ps + more_ps, make, mixed)


def _two_halves(problem: Problem, variant: TreeVariant, context: SearchContext) -> Schedule | None:
    """An allreduce as a reduce-scatter and an allgather along trees of a variant."""

    def half(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
        yield schedule_of(problem, variant)

    return next(with_reductions(half)(problem, context), None)


def _exchanges(problem: Problem) -> list[TreeVariant]:
    """The variants of an allreduce in which groups exchange chunks."""
    some = _subsets(problem)
    staged = [TreeVariant(levels, "stages") for levels in some if len(levels) > 1]
    return [*(TreeVariant(levels, "direct") for levels in some), *staged]


def _least_exchange_ps(problem: Problem, variant: TreeVariant) -> float:
    """A lower bound on the time of an exchange: each outermost group sends all bytes to each other group."""
    if variant.between == "stages":
        return 0.0
    label = np.array(problem.hierarchy.group_of(variant.levels[0]))
    network = LoadedRoutes(problem.topology, np.zeros(len(problem.topology.links) + 1))
    joins = network.joins_groups(label)
    out = np.unique(np.stack((label[network.src[joins]], network.links[joins][:, 0])), axis=1)
    rates = np.bincount(out[0], 1 / network.per_byte_ps[out[1]], int(label.max()) + 1)  # bytes per ps
    return float(problem.demand.chunk_bytes.sum()) * int(label.max()) / float(max(rates.min(), 1e-12))


def _spread_demand(problem: Problem) -> Demand:
    """What trees are planned for: the demand itself, reversed, or the second half of an allreduce."""
    demand = problem.demand
    if not demand.reduces:
        return demand
    return demand.backward if demand.is_unicast else demand.halves[1][0]


def variants(problem: Problem) -> list[TreeVariant]:
    """All variants of trees; their shape matters where a group has more than two groups or GPUs below it."""
    result = []
    for chosen in _subsets(problem):
        outer = [0, *(len(problem.hierarchy.levels[level]) for level in chosen[:-1])]
        below = [len(problem.hierarchy.levels[level]) for level in chosen]
        many = any(inner > 2 * max(around, 1) for around, inner in zip(outer, below, strict=True))
        shapes = ["direct", "chain", "tree"] if many and problem.is_multicast else ["direct"]
        result += [TreeVariant(chosen, between) for between in shapes]
    if _largest_group(problem) <= 2 or not problem.is_multicast:
        return result
    if not problem.topology.copies[problem.topology.num_gpus :].any():
        return result + [replace(one, inside="chain") for one in result]
    return result if problem.is_reduction else result + [replace(one, inside="mixed") for one in result]


def _largest_group(problem: Problem) -> int:
    """The number of GPUs of the largest innermost group."""
    return int(np.bincount(problem.hierarchy.group_of(len(problem.hierarchy.levels) - 1)).max())


def _subsets(problem: Problem) -> list[tuple[int, ...]]:
    """All sets of levels with the innermost one, the largest first; none inside groups that have trees of their own.

    Chunks with one destination take no outer levels: nothing is saved by passing through another host.
    """
    *outer, inner = range(_used_levels(problem))
    outer = outer if problem.is_multicast else []
    return [(*chosen, inner) for size in range(len(outer), -1, -1) for chosen in combinations(outer, size)]


def _used_levels(problem: Problem) -> int:
    """The number of levels to the first one whose groups are joined unevenly: trees there grow over their links."""
    network = LoadedRoutes(problem.topology, np.zeros(len(problem.topology.links) + 1))
    for level, groups in enumerate(problem.hierarchy.levels):
        if any(len(ranks) > 1 and network.is_uneven(ranks[0], list(ranks[1:])) for ranks in groups):
            return level + 1
    return len(problem.hierarchy.levels)


def _most_promising_first(options: list[_Option]) -> Iterator[Schedule | None]:
    """The schedules of some options; those that cannot be better are left out.

    The first step takes options while the next one is expected to be as good as the first one, or as the best so far;
    each further step takes one more.
    """
    waiting = sorted(options, key=lambda option: option[:2])
    best_ps, kept = float("inf"), None
    for turn, option in enumerate(waiting):
        if option.load_ps < best_ps:
            found = option.make()
            if found is not None and found.finish_ps < best_ps:
                best_ps, kept = found.finish_ps, found
        further = waiting[turn + 1 : turn + 2]
        if not further or further[0].finish_ps > max(best_ps, waiting[0].finish_ps):
            yield kept
            kept = None


def _planner(problem: Problem, variant: TreeVariant, overloaded: NDArray[np.bool_] | None = None) -> Planner:
    labels = tuple(tuple(problem.hierarchy.group_of(level).tolist()) for level in variant.levels)
    shape = TreeShape(labels, variant.between, variant.inside, variant.rooted, variant.exchanged, variant.near_roots)
    return Planner(problem.topology, problem.demand, shape, overloaded)


class _Planned(NamedTuple):
    """The planner of a demand, the load of each link with one chunk per block, and which links are overloaded."""

    planner: Planner
    load_ps: NDArray[np.float64]
    overloaded: NDArray[np.bool_]


def _plan(problem: Problem, planned: _Planned, count: int) -> TransferPlan:
    """The plan of some chunks of every block, on the machine with its own links, with the chunks of its demand."""
    plan, order = planned.planner.plan(count), _with_sorted_links(problem.topology)[1]
    routes = Routes(plan.routes.ptr, order[plan.routes.link].astype(np.int32))
    chunk = plan.chunk // count * problem.demand.pieces + plan.chunk % count
    return replace(plan, routes=routes, chunk=chunk)


def _planned(problem: Problem, variant: TreeVariant) -> _Planned | None:
    """The blocks of a problem, planned on the machine with sorted links; None: not possible.

    The costs by which a plan is made scale with the sizes, so one plan serves for all numbers of chunks.
    """
    demand = problem.demand
    topology, order = _with_sorted_links(problem.topology)
    found = _planned_blocks(Problem(topology, _blocks(demand)), variant)
    if found is None:
        return None
    own_ps = np.empty_like(found.load_ps)
    own_ps[order] = found.load_ps * (float(demand.chunk_bytes.max()) / _LARGEST_BYTES)
    return found._replace(load_ps=own_ps)


@lru_cache(maxsize=8)
def _with_sorted_links(topology: Topology) -> tuple[Topology, NDArray[np.int64]]:
    """The machine with its links sorted, and the number of each in the given machine.

    A machine whose links have the same bandwidth in both directions is then equal to its reversal: the plans of a
    reduction are those of the distribution.
    """
    order = sorted_links(topology)
    return replace(topology, name="sorted", links=tuple(topology.links[link] for link in order)), order


@lru_cache(maxsize=32)
def _planned_blocks(problem: Problem, variant: TreeVariant) -> _Planned | None:
    """The first chunk of every block, planned; by cost where links are overloaded, as a slow network card."""
    first = _planned_along_rails(problem, _simplest(variant))
    if first is None or (variant == _simplest(variant) and not first.overloaded.any()):
        return first
    planner = _planner(problem, variant, first.overloaded)
    try:
        planner.plan(1)
    except NoExchangeError:
        return None
    return _Planned(planner, planner.load_ps[:-1].copy(), first.overloaded)


def _simplest(variant: TreeVariant) -> TreeVariant:
    """The variant that shows which links are overloaded: each group sends to all others."""
    between = "stages" if variant.between == "stages" else "direct"
    return TreeVariant(variant.levels, between, rooted=variant.rooted)


@lru_cache(maxsize=32)
def _planned_along_rails(problem: Problem, variant: TreeVariant) -> _Planned | None:
    """The first chunk of every block, planned as if no link were overloaded; None: not possible."""
    planner = _planner(problem, variant)
    try:
        planner.plan(1)
    except NoExchangeError:
        return None
    return _Planned(planner, planner.load_ps[:-1].copy(), planner.found_overloaded())


def _blocks(demand: Demand) -> Demand:
    """The first chunk of every block, with sizes in proportion, the largest one given."""
    first = np.arange(0, len(demand), demand.pieces)
    scale = _LARGEST_BYTES / float(demand.chunk_bytes.max())
    sources, destinations = (
        (
            np.concatenate(([0], np.cumsum(np.diff(ptr)[first]))),
            np.concatenate([rank[ptr[c] : ptr[c + 1]] for c in first]),
        )
        for ptr, rank in (
            (demand.source_ptr, demand.source_rank),
            (demand.destination_ptr, demand.destination_rank),
        )
    )
    return replace(
        demand,
        size_bytes=_LARGEST_BYTES,
        chunk_bytes=np.maximum(np.rint(demand.chunk_bytes[first] * scale), 1),
        source_ptr=sources[0],
        source_rank=sources[1],
        destination_ptr=destinations[0],
        destination_rank=destinations[1],
        pieces=1,
        ready_ps=None,
        tenants=(),
    )


def _planned_count(demand: Demand) -> int:
    """How many chunks of every block are planned one by one; the plan is repeated for the others.

    The more are planned, the better the shares of unequal links.
    """
    deliveries = _PLANNED_DELIVERIES * demand.pieces // len(demand.destination_rank)
    most = max(deliveries, min(_PLANNED_CHUNKS * demand.pieces // len(demand), 4 * _PLANNED), _PLANNED)
    divisors = (count for count in range(min(most, demand.pieces), 1, -1) if demand.pieces % count == 0)
    return next(divisors, demand.pieces)


@lru_cache(maxsize=64)
def _estimate_ps(problem: Problem, variant: TreeVariant, idle: float = 1.0) -> tuple[float, float] | None:
    """Expected finish of a variant, and the load of its busiest links, from one chunk per block; None: not possible.

    The expected finish is that of the first chunk of every block, and the load of the others.
    """
    planned = _planned(problem, variant)
    if planned is None:
        return None
    first = PlanScheduler(problem.topology, problem.demand, _plan(problem, planned, 1), "").longest_first()
    if first is None:
        return None
    shifts = variant.rooted and len(variant.levels) == 1  # roots are in groups with less load
    label = None if shifts else problem.hierarchy.group_of(variant.levels[-1])
    topology, pieces = problem.topology, problem.demand.pieces
    copying = (topology.copies & ~topology.stores)[topology.link_src]
    load_ps = _typical_load_ps(topology, planned.load_ps * np.where(copying, idle, 1.0), label)
    return first.finish_ps + load_ps * (pieces - 1), load_ps * pieces


def _typical_load_ps(topology: Topology, load_ps: NDArray[np.float64], label: NDArray[np.int64] | None) -> float:
    """The highest mean load of alike links: further chunks go where the load is still lower.

    Of alike links of one group, where `label` is the group of every GPU: all groups send and receive what they must.
    """
    kind = _link_kinds(topology)
    if label is not None:
        group = np.full(len(topology.nodes), -1)
        group[: len(label)] = label
        ends = np.maximum(group[topology.link_src], group[topology.link_dst])
        kind = np.unique(np.stack((kind, ends)), axis=1, return_inverse=True)[1].reshape(-1)
    used = load_ps > 0
    count = np.bincount(kind[used])
    return float((np.bincount(kind[used], load_ps[used]) / np.maximum(count, 1)).max())


def _is_balanced(topology: Topology, load_ps: NDArray[np.float64]) -> bool:
    """Whether all alike links have nearly the same load."""
    kind = _link_kinds(topology)
    mean_ps = np.bincount(kind, load_ps) / np.bincount(kind)
    return bool(np.all(load_ps <= _BALANCED * mean_ps[kind]))


def _link_kinds(topology: Topology) -> NDArray[np.int64]:
    """A number for each link, the same for links of one bandwidth from GPUs to switches, back, or between alike."""
    ends = topology.stores[topology.link_src], topology.stores[topology.link_dst]
    kinds = np.unique(np.stack((topology.link_GBps, *ends)), axis=1, return_inverse=True)[1]
    return kinds.reshape(-1).astype(np.int64)


def schedule_of(problem: Problem, variant: TreeVariant) -> Schedule | None:
    """The schedule of a variant; None where its gateways are not joined."""
    planned = _planned(problem, variant)
    if planned is None:
        return None
    balanced = _is_balanced(problem.topology, planned.load_ps) and not planned.overloaded.any()
    count = 1 if balanced else _planned_count(problem.demand)  # chunks of a block that take ways of their own
    count = math.lcm(count, variant.exchanged or 1)
    plan = _plan(problem, planned, count).repeated(problem.demand.pieces // count, count)
    scheduler = PlanScheduler(problem.topology, problem.demand, plan, "hierarchical")
    schedule = scheduler.best(problem.hierarchy.group_of(variant.levels[-1]))
    exchanged = problem.is_reduction and (not variant.rooted or variant.exchanged > 0)
    if schedule is not None and exchanged and verify(schedule):  # a gateway received before it had sent
        return None
    return schedule
