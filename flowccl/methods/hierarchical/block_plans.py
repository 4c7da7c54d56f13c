"""From a variant of method `hierarchical` to its schedule: the first chunk of every block is planned, then repeated.

One plan serves for all numbers of chunks, so it also tells which variants are promising before they are scheduled.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowccl.adapters.reversal import sorted_links
from flowccl.arrays import pointers
from flowccl.demand.demand import Demand
from flowccl.methods.hierarchical.plans import HierarchicalPlanner, NoExchangeError
from flowccl.methods.hierarchical.scheduling import PlanScheduler, TransferPlan
from flowccl.methods.hierarchical.trees import TreeShape
from flowccl.methods.hierarchical.variants import TreeVariant
from flowccl.problem import Problem
from flowccl.schedule.generation.engine import at_shared_rates
from flowccl.schedule.schedule import Schedule
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology

Labels = tuple[tuple[int, ...], ...]  # the group of every GPU, on each level of a variant

_BALANCED = 1.05  # highest load over mean load of alike links, up to which all chunks of a block take the same way
_LARGEST_BYTES = 1 << 20  # of a block in plans that serve for all sizes
_PLANNED, _PLANNED_DELIVERIES = 4, 1 << 14  # chunks per block that are planned one by one: at least, and at most
_PLANNED_CHUNKS = 1 << 10  # of all blocks, that are planned one by one however many deliveries they have


class PlannedBlocks(NamedTuple):
    """The planner of a demand, the load of each link with one chunk per block, and which links are overloaded.

    `seconds` is what planning took.
    """

    planner: HierarchicalPlanner
    load_ps: NDArray[np.float64]
    overloaded: NDArray[np.bool_]
    seconds: float


def planned_blocks(problem: Problem, variant: TreeVariant) -> PlannedBlocks | None:
    """The blocks of a problem, planned on the machine with sorted links; None: not possible.

    The costs by which a plan is made scale with the sizes, so one plan serves for all numbers of chunks.
    """
    demand = problem.demand
    topology, order = _with_sorted_links(problem.topology)
    labels = tuple(tuple(problem.hierarchy.group_of(level).tolist()) for level in variant.levels)
    found = _on_sorted_links(Problem(topology, first_chunks(demand)), variant, labels)
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
def _on_sorted_links(problem: Problem, variant: TreeVariant, labels: Labels) -> PlannedBlocks | None:
    """The first chunk of every block, planned; by cost where links are overloaded, as a slow network card."""
    first = _along_rails(problem, _simplest(variant), labels)
    if first is None or (variant == _simplest(variant) and not first.overloaded.any()):
        return first
    began_s, planner = time.monotonic(), _planner(problem, variant, labels, first.overloaded)
    try:
        planner.grow(1)
    except NoExchangeError:
        return None
    seconds = first.seconds + time.monotonic() - began_s
    return PlannedBlocks(planner, planner.load_ps[:-1].copy(), first.overloaded, seconds)


def _simplest(variant: TreeVariant) -> TreeVariant:
    """The variant that shows which links are overloaded: each group sends to all others."""
    between = "stages" if variant.between == "stages" else "direct"
    return TreeVariant(variant.levels, between, rooted=variant.rooted, by_rate=variant.by_rate)


@lru_cache(maxsize=32)
def _along_rails(problem: Problem, variant: TreeVariant, labels: Labels) -> PlannedBlocks | None:
    """The first chunk of every block, planned as if no link were overloaded; None: not possible."""
    began_s, planner = time.monotonic(), _planner(problem, variant, labels)
    try:
        planner.grow(1)
    except NoExchangeError:
        return None
    overloaded = planner.found_overloaded()
    return PlannedBlocks(planner, planner.load_ps[:-1].copy(), overloaded, time.monotonic() - began_s)


def _planner(
    problem: Problem, variant: TreeVariant, labels: Labels, overloaded: NDArray[np.bool_] | None = None
) -> HierarchicalPlanner:
    shape = TreeShape(
        labels, variant.between, variant.inside, variant.rooted, variant.exchanged, variant.roots, variant.by_rate
    )
    return HierarchicalPlanner(problem.topology, problem.demand, shape, overloaded)


def chunk_plan(problem: Problem, planned: PlannedBlocks, count: int) -> TransferPlan:
    """The plan of some chunks of every block, on the machine with its own links, with the chunks of its demand."""
    plan, order = planned.planner.plan(count), _with_sorted_links(problem.topology)[1]
    routes = Routes(plan.routes.ptr, order[plan.routes.link].astype(np.int32))
    chunk = plan.chunk // count * problem.demand.pieces + plan.chunk % count
    return replace(plan, routes=routes, chunk=chunk)


def first_chunks(demand: Demand) -> Demand:
    """The first chunk of every block, with sizes in proportion, the largest one given."""
    is_first = np.arange(len(demand)) % demand.pieces == 0
    scale = _LARGEST_BYTES / float(demand.chunk_bytes.max())
    sources, destinations = (
        (pointers(np.diff(ptr)[is_first]), rank[np.repeat(is_first, np.diff(ptr))])
        for ptr, rank in (
            (demand.source_ptr, demand.source_rank),
            (demand.destination_ptr, demand.destination_rank),
        )
    )
    return replace(
        demand,
        size_bytes=_LARGEST_BYTES,
        chunk_bytes=np.maximum(np.rint(demand.chunk_bytes[is_first] * scale), 1),
        source_ptr=sources[0],
        source_rank=sources[1],
        destination_ptr=destinations[0],
        destination_rank=destinations[1],
        pieces=1,
        ready_ps=None,
        tenants=(),
    )


@lru_cache(maxsize=64)
def estimate_ps(problem: Problem, variant: TreeVariant, idle: float = 1.0) -> tuple[float, float] | None:
    """Expected finish of a variant, and the load of its busiest links, from one chunk per block; None: not possible.

    The expected finish is that of the first chunk of every block, and the load of the others.
    """
    planned = planned_blocks(problem, variant)
    if planned is None:
        return None
    first = PlanScheduler(problem.topology, problem.demand, chunk_plan(problem, planned, 1), "").longest_first()
    if first is None:
        return None
    if variant.by_rate:
        first = at_shared_rates(first, lambda seconds: False)
    load_ps, pieces = _chunk_load_ps(problem, variant, planned, idle), problem.demand.pieces
    return first.finish_ps + load_ps * (pieces - 1), load_ps * pieces


def latency_ps(problem: Problem, variant: TreeVariant) -> int:
    """The longest latency of a chunk with a variant, which more chunks do not shorten; 0 where it is not possible."""
    planned = planned_blocks(problem, variant)
    if planned is None:
        return 0
    least = replace(problem.demand, chunk_bytes=np.ones_like(problem.demand.chunk_bytes))
    scheduler = PlanScheduler(problem.topology, least, chunk_plan(problem, planned, 1), "")
    return int(scheduler.tail_ps.max(initial=0))


def expected_load_ps(problem: Problem, variant: TreeVariant, idle: float = 1.0) -> float:
    """The load of the busiest links with a variant; inf where it is not possible."""
    planned = planned_blocks(problem, variant)
    return math.inf if planned is None else _chunk_load_ps(problem, variant, planned, idle) * problem.demand.pieces


def _chunk_load_ps(problem: Problem, variant: TreeVariant, planned: PlannedBlocks, idle: float) -> float:
    """The load of the busiest links with one chunk of every block."""
    shifts = variant.rooted and len(variant.levels) == 1  # roots are in groups with less load
    label = None if shifts else problem.hierarchy.group_of(variant.levels[-1])
    topology = problem.topology
    copying = (topology.copies & ~topology.stores)[topology.link_src]
    return _typical_load_ps(topology, planned.load_ps * np.where(copying, idle, 1.0), label)


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


def schedule_of(
    problem: Problem, variant: TreeVariant, has_time: Callable[[float], bool] = lambda seconds: True
) -> Schedule | None:
    """The best schedule of a variant of those that there is time for; None where its gateways are not joined."""
    planned = planned_blocks(problem, variant)
    if planned is None:
        return None
    balanced = _is_balanced(problem.topology, planned.load_ps) and not planned.overloaded.any()
    balanced = balanced and (not variant.rooted or planned.planner.roots.is_even)
    count = 1 if balanced else _planned_count(problem.demand)  # chunks of a block that take ways of their own
    count = math.lcm(count, variant.exchanged or 1)
    plan = chunk_plan(problem, planned, count).repeated(problem.demand.pieces // count, count)
    scheduler = PlanScheduler(problem.topology, problem.demand, plan, "hierarchical")
    return scheduler.best(problem.hierarchy.group_of(variant.levels[-1]), has_time)


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


def _planned_count(demand: Demand) -> int:
    """How many chunks of every block are planned one by one; the plan is repeated for the others.

    The more are planned, the better the shares of unequal links.
    """
    deliveries = _PLANNED_DELIVERIES * demand.pieces // len(demand.destination_rank)
    most = max(deliveries, min(_PLANNED_CHUNKS * demand.pieces // len(demand), 4 * _PLANNED), _PLANNED)
    divisors = (count for count in range(min(most, demand.pieces), 1, -1) if demand.pieces % count == 0)
    return next(divisors, demand.pieces)
