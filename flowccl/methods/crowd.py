"""Any method for process groups and late data: GPUs that may not take part, and sources that start later."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from flowccl.demand.demand import Demand
from flowccl.methods.clock import Clock
from flowccl.methods.method import Method
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.settle import sequence, settle
from flowccl.schedule.transform import retime
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology
from flowccl.topology.view import without


def with_crowds(method: Method, *, knows_late: bool = False) -> Method:
    """The method, made to keep out of forbidden GPUs and to wait for late data.

    A method that knows late data (of chunks with one source) gets it; for any other, and for sums, everything starts
    when the last data is there, and then as early as each order allows.
    """

    def run(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
        machine, kept = (topology, None) if not demand.forbidden else without(topology, demand.forbidden)
        late = demand.ready_ps is not None and (demand.reduces or not knows_late)
        known = replace(demand, group=None, relays=None, ready_ps=None if late else demand.ready_ps)
        best_ps: int | None = None
        for found in method(machine, known, clock):
            if found is None:
                yield None
                continue
            if kept is not None:
                routes = Routes(found.routes.ptr, kept[found.routes.link].astype(np.int32))
                found = replace(found, topology=topology, routes=routes)
            found = replace(found, demand=demand)
            better = delayed(found) if late else found
            if best_ps is not None and better.finish_ps >= best_ps:
                yield None
                continue
            best_ps = better.finish_ps
            yield better

    return run


def delayed(schedule: Schedule) -> Schedule:
    """A schedule that knows nothing of late data, put so late that all is there, then as early as its order allows."""
    last = int(schedule.demand.available_ps.max(initial=0))
    moved = replace(schedule, start_ps=schedule.start_ps + last)
    if schedule.topology.changes:
        return settle(moved, sequence(schedule))
    return retime(moved)
