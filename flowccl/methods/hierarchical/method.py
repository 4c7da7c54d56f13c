"""Method `hierarchical`: a schedule for every way to use the levels of the machine."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
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
_FILLING = 1 / 64  # part of the time that filling the pipeline may take: chunks beyond gain less than 1 %


@dataclass(frozen=True, slots=True)
class TreeVariant:
    """Which levels are used, how groups send to each other, and how chunks go on inside the innermost groups.

    In an allreduce, a chunk has a root, or groups exchange it.
    """

    levels: tuple[int, ...]
    between: str
    inside: str = "star"
    rooted: bool = False


def hierarchical(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Schedules of all variants, planned on trunks where the machine has links side by side between switches."""
    return with_merged_lanes(_on_levels)(problem, context)


def _on_levels(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Schedules of all variants; of an allreduce with one plan for both halves or one for each, the better first."""
    if not problem.hierarchy.levels:
        name = problem.topology.name
        raise DemandError(f"method hierarchical needs several hosts with several GPUs each; {name} has one level")
    trees = with_reductions(_along_trees)(problem, context)
    if problem.allreduce_ranks is None:
        yield from trees
        return
    first = next(trees, None)
    exchanged = _of_variants(problem, _exchanges(problem), float("inf") if first is None else first.finish_ps)
    found = [one for one in (first, next(exchanged, None)) if one is not None]
    yield min(found, key=lambda one: one.finish_ps, default=None)
    yield from exchanged
    yield from trees


def useful_chunks(problem: Problem) -> int:
    """The number of chunks per block with which filling the pipeline takes a small part of the time: a power of two."""
    lanes = merge_lanes(problem.topology)
    problem = problem if lanes is None else Problem(lanes.original, problem.demand)
    if problem.allreduce_ranks is not None:
        some = _exchanges(problem)
    else:
        problem = Problem(problem.topology, _spread_demand(problem))
        some = variants(problem)
    finish_ps, load_ps = min(one for variant in some if (one := _estimate_ps(problem, variant)))
    filling = (finish_ps - load_ps) / load_ps
    return 1 << max(int(filling / _FILLING) - 1, 0).bit_length()


def _along_trees(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Schedules of a demand without reductions, one for every variant."""
    return _of_variants(problem, variants(problem), float("inf"))


def _exchanges(problem: Problem) -> list[TreeVariant]:
    """The variants of an allreduce: chunks have roots, or groups exchange them."""
    some = _subsets(problem)
    staged = [TreeVariant(levels, "stages") for levels in some if len(levels) > 1]
    rooted = [replace(one, rooted=True) for one in variants(problem) if one.between == "direct"]
    return [*(TreeVariant(levels, "direct") for levels in some), *staged, *rooted]


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
    most = int(np.bincount(problem.hierarchy.group_of(len(problem.hierarchy.levels) - 1)).max())
    sends_alone = problem.is_multicast and not problem.topology.copies[problem.topology.num_gpus :].any()
    return result + [replace(one, inside="chain") for one in result if most > 2 and sends_alone]


def _subsets(problem: Problem) -> list[tuple[int, ...]]:
    """All sets of levels with the innermost one, the largest first; none inside groups that have trees of their own."""
    *outer, inner = range(_used_levels(problem))
    return [(*chosen, inner) for size in range(len(outer), -1, -1) for chosen in combinations(outer, size)]


def _used_levels(problem: Problem) -> int:
    """The number of levels to the first one whose groups are joined unevenly: trees there grow over their links."""
    network = LoadedRoutes(problem.topology, np.zeros(len(problem.topology.links) + 1))
    for level, groups in enumerate(problem.hierarchy.levels):
        if any(len(ranks) > 1 and network.is_uneven(ranks[0], list(ranks[1:])) for ranks in groups):
            return level + 1
    return len(problem.hierarchy.levels)


def _of_variants(problem: Problem, some: list[TreeVariant], best_ps: float) -> Iterator[Schedule | None]:
    """The schedules of some variants, the most promising first; those that cannot be better are left out.

    The first step takes the better one of two variants: estimates are rough.
    """
    promising = sorted((estimate, at) for at, one in enumerate(some) if (estimate := _estimate_ps(problem, one)))
    kept: Schedule | None = None
    for turn, ((_, load_ps), at) in enumerate(promising):
        if load_ps < best_ps:
            found = schedule_of(problem, some[at])
            if found is not None and found.finish_ps < best_ps:
                best_ps, kept = found.finish_ps, found
        if turn > 0 or len(promising) == 1:
            yield kept
            kept = None


def _planner(problem: Problem, variant: TreeVariant, overloaded: NDArray[np.bool_] | None = None) -> Planner:
    labels = tuple(tuple(problem.hierarchy.group_of(level).tolist()) for level in variant.levels)
    shape = TreeShape(labels, variant.between, variant.inside, variant.rooted)
    return Planner(problem.topology, problem.demand, shape, overloaded)


class _Planned(NamedTuple):
    """The planner of a demand, the load of each link with one chunk per block, and whether links are overloaded."""

    planner: Planner
    load_ps: NDArray[np.float64]
    overloaded: bool


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
    """The first chunk of every block, planned; once more where links are overloaded, as a slow network card."""
    planner = _planner(problem, variant)
    try:
        planner.plan(1)
        overloaded = planner.found_overloaded()
        if overloaded.any():
            planner = _planner(problem, variant, overloaded)
            planner.plan(1)
    except NoExchangeError:
        return None
    return _Planned(planner, planner.load_ps[:-1].copy(), bool(overloaded.any()))


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
def _estimate_ps(problem: Problem, variant: TreeVariant) -> tuple[float, float] | None:
    """Expected finish of a variant, and the load of its busiest links, from one chunk per block; None: not possible.

    The expected finish is that of the first chunk of every block, and the load of the others.
    """
    planned = _planned(problem, variant)
    if planned is None:
        return None
    first = PlanScheduler(problem.topology, problem.demand, _plan(problem, planned, 1), "").longest_first()
    if first is None:
        return None
    load_ps, pieces = _typical_load_ps(problem.topology, planned.load_ps), problem.demand.pieces
    return first.finish_ps + load_ps * (pieces - 1), load_ps * pieces


def _typical_load_ps(topology: Topology, load_ps: NDArray[np.float64]) -> float:
    """The highest mean load of alike links: further chunks go where the load is still lower."""
    used, kind = load_ps > 0, _link_kinds(topology)
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
    balanced = _is_balanced(problem.topology, planned.load_ps) and not planned.overloaded
    count = 1 if balanced else _planned_count(problem.demand)  # chunks of a block that take ways of their own
    plan = _plan(problem, planned, count).repeated(problem.demand.pieces // count, count)
    scheduler = PlanScheduler(problem.topology, problem.demand, plan, "hierarchical")
    schedule = scheduler.best(problem.hierarchy.group_of(variant.levels[-1]))
    exchanged = problem.is_reduction and not variant.rooted
    if schedule is not None and exchanged and verify(schedule):  # a gateway received before it had sent
        return None
    return schedule
