"""Method `hierarchical`: a schedule for every way to use the levels of the machine."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from flowccl.adapters.reduction import with_reductions
from flowccl.errors import DemandError
from flowccl.methods.hierarchical.plans import NoExchangeError, Planner
from flowccl.methods.hierarchical.scheduling import PlanScheduler
from flowccl.methods.hierarchical.trees import TreeShape
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.verifier.verify import verify


@dataclass(frozen=True, slots=True)
class TreeVariant:
    """Which levels are used, and how groups send to each other."""

    levels: tuple[int, ...]
    between: str


def hierarchical(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Schedules of all variants: of an allreduce with exchange, then, as for other demands, those of trees."""
    if not problem.hierarchy.levels:
        name = problem.topology.name
        raise DemandError(f"method hierarchical needs several hosts with several GPUs each; {name} has one level")
    if problem.allreduce_ranks is not None:
        yield from _of_variants(problem, context, [TreeVariant(levels, "direct") for levels in _subsets(problem)])
    yield from with_reductions(_along_trees)(problem, context)


def _along_trees(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Schedules of a demand without reductions, one for every variant."""
    return _of_variants(problem, context, variants(problem))


def variants(problem: Problem) -> list[TreeVariant]:
    """All variants of trees."""
    result = []
    for chosen in _subsets(problem):
        groups = max(len(problem.hierarchy.levels[level]) for level in chosen)
        shapes = ["direct", "chain", "tree"] if groups > 2 and problem.is_multicast else ["direct"]
        result += [TreeVariant(chosen, between) for between in shapes]
    return result


def _subsets(problem: Problem) -> list[tuple[int, ...]]:
    """All sets of levels, the largest first."""
    levels = range(len(problem.hierarchy.levels))
    return [chosen for size in range(len(levels), 0, -1) for chosen in combinations(levels, size)]


def _of_variants(problem: Problem, context: SearchContext, some: list[TreeVariant]) -> Iterator[Schedule | None]:
    """The schedules of some variants, the most promising first; those that cannot be better are left out."""
    promising = sorted((estimate, at) for at, one in enumerate(some) if (estimate := _estimate_ps(problem, one)))
    best_ps = float("inf")
    for (_, load_ps), at in promising:
        if load_ps < best_ps:
            found = schedule_of(problem, some[at])
            best_ps = min(best_ps, best_ps if found is None else found.finish_ps)
            yield found


def _planner(problem: Problem, variant: TreeVariant) -> Planner:
    labels = tuple(tuple(problem.hierarchy.group_of(level).tolist()) for level in variant.levels)
    return Planner(problem.topology, problem.demand, TreeShape(labels, variant.between))


def _estimate_ps(problem: Problem, variant: TreeVariant) -> tuple[float, float] | None:
    """Expected finish of a variant, and the load of its busiest link, from one chunk per block; None: not possible."""
    planner = _planner(problem, variant)
    try:
        plan = planner.plan_of(1)
    except NoExchangeError:
        return None
    load_ps = float(planner.load_ps.max()) * problem.demand.pieces
    path_ps = int(PlanScheduler(problem.topology, problem.demand, plan, "").tail_ps.max())
    return load_ps + path_ps, load_ps


def schedule_of(problem: Problem, variant: TreeVariant) -> Schedule | None:
    """The schedule of a variant; None where its gateways are not joined."""
    planner = _planner(problem, variant)
    try:
        plan = planner.plan()
    except NoExchangeError:
        return None
    scheduler = PlanScheduler(problem.topology, problem.demand, plan, "hierarchical")
    schedule = scheduler.best(problem.hierarchy.group_of(variant.levels[-1]))
    return None if schedule is None or verify(schedule) else schedule
