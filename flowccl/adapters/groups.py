"""Any method for process groups and late data: GPUs that may not take part, and sources that start later."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from flowccl.adapters.improvements import improvements
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.clock import Clock
from flowccl.methods.method import Method
from flowccl.schedule.generation.list_scheduling import relist
from flowccl.schedule.generation.serial import generate_serial, sequence
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift
from flowccl.topology.topology import Topology
from flowccl.topology.variants import without


def with_crowds(method: Method, name: str, *, knows_late: bool = False, knows_groups: bool = True) -> Method:
    """The method, made to keep out of forbidden GPUs and to wait for late data; some cannot have groups.

    A method that knows late data (of chunks with one source) gets it; for any other, and for sums, everything starts
    when the last data is there, and then as early as each order allows.
    """

    def run(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
        if demand.group is not None and not knows_groups:
            raise DemandError(f"{name} is for all gpus of a machine; for a group use greedy, routed or auto")
        machine, kept = (topology, None) if not demand.forbidden else without(topology, demand.forbidden)
        late = demand.ready_ps is not None and (demand.reduces or not knows_late)
        tell = demand.ready_ps is not None and (not late or (demand.reduces and knows_groups))
        known = replace(demand, group=None, relays=None, tenants=(), ready_ps=demand.ready_ps if tell else None)

        def on_all(found: Schedule) -> Schedule:
            routes = found.routes if kept is None else found.routes.renamed(kept)
            asked = _as_asked(found.demand, demand)
            whole = replace(found, topology=topology, routes=routes, demand=asked)
            return delayed(whole) if late else whole

        yield from improvements(method(machine, known, clock), on_all)

    return run


def _as_asked(found: Demand, asked: Demand) -> Demand:
    """What was asked for; a method may have cut its chunks into more pieces, each block's pieces one after another."""
    if len(found) == len(asked):
        return asked
    times = len(found) // len(asked)
    ready_ps = None
    if asked.ready_ps is not None:
        rows = np.split(asked.ready_ps, asked.source_ptr[1:-1])
        ready_ps = np.concatenate([row for row in rows for _ in range(times)])
    tenants = tuple(replace(share, chunks=share.chunks * times) for share in asked.tenants)
    return replace(found, group=asked.group, relays=asked.relays, ready_ps=ready_ps, tenants=tenants)


def delayed(schedule: Schedule) -> Schedule:
    """A schedule that knows nothing of late data, put so late that all is there, then as early as its order allows."""
    last = int(schedule.demand.available_ps.max(initial=0))
    moved = replace(schedule, start_ps=schedule.start_ps + last)
    if schedule.topology.changes:
        return generate_serial(moved, sequence(schedule))
    kept, free = left_shift(moved), relist(moved)
    return kept if free is None or kept.finish_ps <= free.finish_ps else free
