"""The three stages in sequence; a reduction uses the reversed routes of the distribution, with its own order."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.papers.taccl.choices import RouteChoices
from flowccl.papers.taccl.contiguity import contiguity_encoding, quick_merges
from flowccl.papers.taccl.fast_routing import quick_routes
from flowccl.papers.taccl.logical import LogicalTopology
from flowccl.papers.taccl.options import TacclOptions
from flowccl.papers.taccl.ordering import SendGraph, scheduled_orders
from flowccl.papers.taccl.relays import relayed
from flowccl.papers.taccl.routing import path_encoding
from flowccl.papers.taccl.send_order import SendOrder
from flowccl.papers.taccl.sketch import check_sketch, default_sketch
from flowccl.problem import Problem
from flowccl.schedule.generation.serial import fits, within_limits
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import concatenate
from flowccl.search.context import SearchContext

_MOST_PAIRS = 400_000  # orbits of (chunk, arc) pairs; beyond, the path encoding is skipped
_QUICK_SHARE = 0.1  # fraction of the time for merging by trial in auto
_ORDER_SHARE = 0.1  # fraction of the time left that one more order may take
_MOST_TRIALS = 3_000  # trials of merging
_MOST_SENDS = 20_000  # beyond, the contiguity encoding is skipped


def taccl(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Yield better and better schedules: quick routes, then those of the path encoding, then merged messages."""
    return _run(problem, context, TacclOptions.of(context.options))


def taccl_quick(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Run without a solver in little time: for `auto` on links with an overhead per message."""
    limit = _QUICK_SHARE * context.budget.time_limit_s
    return _run(problem, context, TacclOptions(routing="fast", contiguity="fast", contiguity_limit_s=limit))


def _run(problem: Problem, context: SearchContext, options: TacclOptions) -> Iterator[Schedule | None]:
    topology, demand = problem.topology, problem.demand
    if options.sketch is not None:
        check_sketch(options.sketch, topology)
    size = int(demand.chunk_bytes.max(initial=1))
    sketch, changes = relayed(options.sketch or default_sketch(topology), topology, size)
    if changes:
        context.notes |= {"relayed": changes}
    logical = LogicalTopology.of(topology, sketch, size, reduces=demand.reduces)
    logical.check_reaches(demand)
    if demand.reduces and not demand.is_unicast:
        yield from _allreduce(logical, demand, context, options)
    else:
        yield from _stages(logical, demand, context, options, 1.0)


def _stages(
    logical: LogicalTopology, demand: Demand, context: SearchContext, options: TacclOptions, share: float
) -> Iterator[Schedule | None]:
    """Run the stages; `share` is the fraction of the time left, at each stage, for this demand."""
    choices = _route_choices(logical, demand)
    quick_choice = quick_routes(choices)
    sends = _send_graph(choices, demand, quick_choice)
    began = context.budget.elapsed_s
    best = _ordered(sends, context, "quick routes")
    order_s = context.budget.elapsed_s - began
    yield best
    if options.routing == "milp" and len(choices.pair_orbits[1]) <= _MOST_PAIRS and order_s < context.budget.left_s:
        limit = min(options.routing_limit_s or share * context.budget.left_s / 2, context.budget.left_s - order_s)
        chosen, solution = path_encoding(
            choices, quick_choice, options.of_solve(context, max(limit, 0.1)), options.solver
        )
        context.notes |= {"routing_status": str(solution.status), "routing_s": round(solution.seconds, 3)}
        encoded = _send_graph(choices, demand, chosen)
        found = _ordered(encoded, context, "path encoding")
        if found.finish_ps < best.finish_ps:
            best, sends = found, encoded
            yield best
        elif not logical.topology.has_overheads:
            yield None
    merged_schedule = _merged(sends, best, context, options, share * context.budget.left_s - order_s)
    yield merged_schedule if merged_schedule is not None and merged_schedule.finish_ps < best.finish_ps else None


def _route_choices(logical: LogicalTopology, demand: Demand) -> RouteChoices:
    """The choices of a demand; a reduction to one destination is a reversed distribution."""
    if demand.reduces:
        return RouteChoices.of(logical.backwards, demand.backward)
    return RouteChoices.of(logical, demand)


def _send_graph(choices: RouteChoices, demand: Demand, chosen: NDArray[np.bool_]) -> SendGraph:
    """The sends of the chosen pairs; in a reduction, each send follows all contributions that it reduces."""
    pairs, before = choices.sends(chosen)
    child = np.flatnonzero(before >= 0)
    first, second = before[child], child
    logical = choices.logical
    if demand.reduces:
        first, second, logical = second, first, logical.backwards
    return SendGraph(logical, demand, choices.chunk[pairs], choices.arc[pairs], first, second)


def _ordered(sends: SendGraph, context: SearchContext, what: str) -> Schedule:
    """The best order of all heuristics, or of those for which there is time."""
    began, found = context.budget.elapsed_s, list[tuple[str, Schedule]]()
    for item in scheduled_orders(sends):
        found.append(item)
        if (
            context.budget.steps is None
            and (context.budget.elapsed_s - began) / len(found) > _ORDER_SHARE * context.budget.left_s
        ):
            break
    name, best = min(found, key=lambda item: item[1].finish_ps)
    context.notes |= {"order": f"{what}: {name}"}
    return best


def _merged(
    sends: SendGraph, schedule: Schedule, context: SearchContext, options: TacclOptions, total_s: float
) -> Schedule | None:
    """Stage 3, if links have overheads; `total_s` leaves time to generate the schedule."""
    topology = schedule.topology
    late = context.budget.steps is None and total_s <= 0
    if late or not topology.has_overheads or topology.changes or len(sends) > _MOST_SENDS:
        return None
    send_order = SendOrder.of(sends, schedule)
    limit = min(options.contiguity_limit_s or total_s, total_s)
    until = context.budget.elapsed_s + limit
    part = 0.3 if options.contiguity == "milp" else 1.0
    quick_until = context.budget.elapsed_s + part * limit
    trials = iter(range(_MOST_TRIALS))

    def over() -> bool:
        """With counted steps, the result must not depend on the speed of the computer."""
        late = context.budget.steps is None and context.budget.elapsed_s > quick_until
        return next(trials, None) is None or late or context.budget.should_stop()

    merged = quick_merges(send_order, over)
    if options.contiguity == "milp" and len(send_order.mergeable):
        left = max(until - context.budget.elapsed_s, 0.1)
        merged, solution = contiguity_encoding(send_order, merged, options.of_solve(context, left), options.solver)
        if solution is not None:
            context.notes |= {"contiguity_status": str(solution.status), "contiguity_s": round(solution.seconds, 3)}
    context.notes |= {"sent_together": int(merged.sum())}
    found = send_order.schedule(merged)
    return found if fits(found) else within_limits(found)


def _allreduce(
    logical: LogicalTopology, demand: Demand, context: SearchContext, options: TacclOptions
) -> Iterator[Schedule | None]:
    """Allreduce: a reduce-scatter, then an allgather, each with its own stages; quick routes of both first."""
    chunks = [chunk for _, chunk in demand.halves]
    stages = [
        _stages(logical, part, context, options, share)
        for (part, _), share in zip(demand.halves, (0.5, 1.0), strict=True)
    ]

    def as_part(i: int, found: Schedule) -> Schedule:
        return replace(found, demand=demand, chunk=chunks[i][found.chunk].astype(np.int32))

    best = [as_part(i, found) for i, stage in enumerate(stages) if (found := next(stage)) is not None]
    both = concatenate(best[0], best[1], demand)
    yield both
    for i, stage in enumerate(stages):
        for found in stage:
            if found is None:
                yield None
                continue
            best[i] = as_part(i, found)
            again = concatenate(best[0], best[1], demand)
            yield again if again.finish_ps < both.finish_ps else None
            both = min(again, both, key=lambda schedule: schedule.finish_ps)
