"""The three stages in a row; a reduction takes the ways of the distribution backwards, with an order of its own."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.methods.taccl.choices import Ways
from flowccl.methods.taccl.contiguity import contiguity_encoding, quick_joints
from flowccl.methods.taccl.fast_routing import quick_ways
from flowccl.methods.taccl.logical import Logical
from flowccl.methods.taccl.options import TacclOptions
from flowccl.methods.taccl.ordering import Sends, orders
from flowccl.methods.taccl.relays import relayed
from flowccl.methods.taccl.routing import path_encoding
from flowccl.methods.taccl.send_order import Layout
from flowccl.problem import Problem
from flowccl.schedule.generation.serial import fits, generate_serial, sequence
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import concatenate
from flowccl.search.context import SearchContext
from flowccl.solver import SolverOptions
from flowccl.topology.sketch import check_sketch, default_sketch

_MOST_PAIRS = 400_000  # beyond so many orbits of (chunk, arc) pairs the path encoding is left out
_QUICK_SHARE = 0.1  # of the time, for joining by trial in auto
_ORDER_SHARE = 0.1  # of the time left that one more order may take
_MOST_TRIALS = 3_000  # of joining by trial
_MOST_SENDS = 20_000  # beyond so many the contiguity encoding is left out


def taccl(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Schedules, better and better: with quick ways, then with those of the path encoding, then sent together."""
    return _run(problem, context, TacclOptions.of(context.options))


def taccl_quick(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """The same without a solver, in little time: what auto takes where links have setups."""
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
    logical = Logical.of(topology, sketch, size, reduces=demand.reduces)
    logical.check_reaches(demand)
    if demand.reduces and not demand.is_unicast:
        yield from _joined(logical, demand, context, options)
    else:
        yield from _stages(logical, demand, context, options, 1.0)


def _stages(
    logical: Logical, demand: Demand, context: SearchContext, options: TacclOptions, share: float
) -> Iterator[Schedule | None]:
    """`share` is the part of the time that is left, at each stage, for this demand."""
    ways = _ways(logical, demand)
    quick = quick_ways(ways)
    sends = _sends(ways, demand, quick)
    began = context.budget.elapsed_s
    best = _ordered(sends, context, "quick ways")
    order_s = context.budget.elapsed_s - began
    yield best
    if options.routing == "milp" and len(ways.pair_orbits[1]) <= _MOST_PAIRS and order_s < context.budget.left_s:
        limit = min(options.routing_limit_s or share * context.budget.left_s / 2, context.budget.left_s - order_s)
        chosen, solution = path_encoding(ways, quick, _solver(options, context, limit), options.solver)
        context.notes |= {"routing_status": str(solution.status), "routing_s": round(solution.seconds, 3)}
        encoded = _sends(ways, demand, chosen)
        found = _ordered(encoded, context, "path encoding")
        if found.finish_ps < best.finish_ps:
            best, sends = found, encoded
            yield best
        elif not logical.topology.has_overheads:
            yield None
    together = _together(sends, best, context, options, share * context.budget.left_s - order_s)
    yield together if together is not None and together.finish_ps < best.finish_ps else None


def _ways(logical: Logical, demand: Demand) -> Ways:
    """A sum for one destination is a distribution backwards."""
    if demand.reduces:
        return Ways.of(logical.backwards, demand.backward)
    return Ways.of(logical, demand)


def _sends(ways: Ways, demand: Demand, chosen: NDArray[np.bool_]) -> Sends:
    """What the chosen pairs make of the demand; of a reduction, each send after all that it adds up."""
    pairs, before = ways.sends(chosen)
    child = np.flatnonzero(before >= 0)
    first, second = before[child], child
    logical = ways.logical
    if demand.reduces:
        first, second, logical = second, first, logical.backwards
    return Sends(logical, demand, ways.chunk[pairs], ways.arc[pairs], first, second)


def _ordered(sends: Sends, context: SearchContext, what: str) -> Schedule:
    """The best order by all heuristics, or by those for which there is time."""
    began, found = context.budget.elapsed_s, list[tuple[str, Schedule]]()
    for item in orders(sends):
        found.append(item)
        if (
            context.budget.steps is None
            and (context.budget.elapsed_s - began) / len(found) > _ORDER_SHARE * context.budget.left_s
        ):
            break
    name, best = min(found, key=lambda item: item[1].finish_ps)
    context.notes |= {"order": f"{what}: {name}"}
    return best


def _together(
    sends: Sends, schedule: Schedule, context: SearchContext, options: TacclOptions, total_s: float
) -> Schedule | None:
    """Stage 3, where links have setups; `total_s` leaves time to put the sends on the links again."""
    topology = schedule.topology
    late = context.budget.steps is None and total_s <= 0
    if late or not topology.has_overheads or topology.changes or len(sends) > _MOST_SENDS:
        return None
    layout = Layout.of(sends, schedule)
    limit = min(options.contiguity_limit_s or total_s, total_s)
    until = context.budget.elapsed_s + limit
    part = 0.3 if options.contiguity == "milp" else 1.0
    quick_until = context.budget.elapsed_s + part * limit
    trials = iter(range(_MOST_TRIALS))

    def over() -> bool:
        """With a number of steps the result must not depend on the speed of the computer."""
        late = context.budget.steps is None and context.budget.elapsed_s > quick_until
        return next(trials, None) is None or late or context.budget.should_stop()

    joined = quick_joints(layout, over)
    if options.contiguity == "milp" and len(layout.joint):
        left = max(until - context.budget.elapsed_s, 0.1)
        joined, solution = contiguity_encoding(layout, joined, _solver(options, context, left), options.solver)
        if solution is not None:
            context.notes |= {"contiguity_status": str(solution.status), "contiguity_s": round(solution.seconds, 3)}
    context.notes |= {"sent_together": int(joined.sum())}
    found = layout.schedule(joined)
    return found if fits(found) else generate_serial(found, sequence(found))


def _solver(options: TacclOptions, context: SearchContext, seconds: float) -> SolverOptions:
    return SolverOptions(
        time_limit_s=max(seconds, 0.1),
        threads=options.threads,
        seed=context.seed,
        should_stop=context.budget.should_stop,
    )


def _joined(
    logical: Logical, demand: Demand, context: SearchContext, options: TacclOptions
) -> Iterator[Schedule | None]:
    """All-reduce: a reduce-scatter, then an all-gather, each with its own stages; quick ways of both first."""
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
