"""Adapter for process groups and late data: GPUs that must not relay, and sources that are ready later."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from flowccl.demand.demand import Demand
from flowccl.problem import Problem
from flowccl.schedule.generation.list_scheduling import list_schedule
from flowccl.schedule.generation.serial import generate_serial, sequence
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift
from flowccl.search.context import Method, SearchContext
from flowccl.topology.variants import without


def with_groups(method: Method, *, late: bool = False, groups: bool = True) -> Method:
    """The method, restricted to the GPUs that may take part, and delayed where data is late.

    A method that supports `late` data (of chunks with one source) receives the ready times. For any other method, and
    for reductions, everything starts when the last data is ready, and then moves as early as its order allows.
    """

    def run(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
        topology, demand = problem.topology, problem.demand
        machine, kept = (topology, None) if not demand.forbidden else without(topology, demand.forbidden)
        delay = demand.ready_ps is not None and (demand.reduces or not late)
        pass_on = demand.ready_ps is not None and (not delay or (demand.reduces and groups))
        ready_ps = demand.ready_ps if pass_on else None
        seen = replace(demand, group=None, relays=None, tenants=(), ready_ps=ready_ps)
        for found in method(Problem(machine, seen), context):
            if found is None:
                yield None
                continue
            routes = found.routes if kept is None else found.routes.renamed(kept)
            whole = replace(found, topology=topology, routes=routes, demand=_as_requested(found.demand, demand))
            yield delayed(whole) if delay else whole

    return run


def _as_requested(found: Demand, requested: Demand) -> Demand:
    """The requested demand; where the method subdivided its chunks, with every block's pieces one after another."""
    if len(found) == len(requested):
        return requested
    times = len(found) // len(requested)
    ready_ps = None
    if requested.ready_ps is not None:
        rows = np.split(requested.ready_ps, requested.source_ptr[1:-1])
        ready_ps = np.concatenate([row for row in rows for _ in range(times)])
    tenants = tuple(replace(share, chunks=share.chunks * times) for share in requested.tenants)
    return replace(found, group=requested.group, relays=requested.relays, ready_ps=ready_ps, tenants=tenants)


def delayed(schedule: Schedule) -> Schedule:
    """A schedule made without late data, delayed until all data is ready, then as early as its order allows."""
    last = int(schedule.demand.available_ps.max(initial=0))
    moved = replace(schedule, start_ps=schedule.start_ps + last)
    if schedule.topology.changes:
        return generate_serial(moved, sequence(schedule))
    kept, free = left_shift(moved), list_schedule(moved)
    return kept if free is None or kept.finish_ps <= free.finish_ps else free
