"""Reductions by any method: a reduction is a distribution run backwards on the reversed machine."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from flowccl.demand.demand import Demand
from flowccl.methods.clock import Clock
from flowccl.methods.method import Method
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import join, reverse
from flowccl.topology.topology import Topology


def with_reductions(method: Method) -> Method:
    """The method, made to take reductions too: sums for one destination, and allreduce as two halves joined."""

    def run(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
        if not demand.reduces:
            return method(topology, demand, clock)
        if len(demand.destination_rank) == len(demand):
            return _reduced(method, topology, demand, clock)
        return _joined(method, topology, demand, clock)

    return run


def _reduced(method: Method, topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    for schedule in method(topology.reversed, demand.backward, clock):
        yield None if schedule is None else reverse(schedule, demand, reduce=True)


def _joined(method: Method, topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    """Both halves get better in turn; whenever one does, they are joined again."""
    (first, summed), (second, sent) = demand.halves
    searches = [_reduced(method, topology, first, clock), method(topology, second, clock)]
    best: list[Schedule | None] = [None, None]
    finish_ps = None
    while True:
        found = [next(search, "over") for search in searches]
        if found == ["over", "over"]:
            return
        for i, chunks in enumerate((summed, sent)):
            part = found[i]
            if isinstance(part, Schedule):
                best[i] = replace(part, demand=demand, chunk=chunks[part.chunk].astype(np.int32))
        both = None
        if best[0] is not None and best[1] is not None and any(isinstance(part, Schedule) for part in found):
            both = join(best[0], best[1], demand)
        if both is None or (finish_ps is not None and both.finish_ps >= finish_ps):
            yield None
        else:
            finish_ps = both.finish_ps
            yield both
