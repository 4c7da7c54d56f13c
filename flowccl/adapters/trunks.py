"""Adapter for machines with trunks: the method sees a machine whose trunks are lanes side by side."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from flowccl.arrays import pointers
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import Method, SearchContext
from flowccl.topology.routes import Routes
from flowccl.topology.trunks import Lanes, merge_lanes, split_trunks


def with_trunks(method: Method) -> Method:
    """The method on machines with trunks."""

    def run(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
        lanes = split_trunks(problem.topology)
        if lanes is None:
            yield from method(problem, context)
            return
        for found in method(Problem(lanes.topology, problem.demand), context):
            yield None if found is None else on_trunks(found, lanes)

    return run


def on_trunks(schedule: Schedule, lanes: Lanes) -> Schedule:
    """A schedule on lanes as one on the machine itself: the same times, and the trunk in the place of its lanes.

    A schedule on the machine itself stays as it is.
    """
    if schedule.topology is lanes.original:
        return schedule
    return replace(schedule, topology=lanes.original, routes=schedule.routes.renamed(lanes.link))


def with_merged_lanes(method: Method) -> Method:
    """The method on a machine whose lanes are merged to trunks; the lane of every transfer is chosen at the end."""

    def run(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
        lanes = merge_lanes(problem.topology)
        if lanes is None:
            yield from method(problem, context)
            return
        for found in method(Problem(lanes.original, problem.demand), context):
            yield None if found is None else on_lanes(found, lanes)

    return run


def on_lanes(schedule: Schedule, lanes: Lanes) -> Schedule | None:
    """A schedule on trunks as one on their lanes: each transfer takes a lane that is free; None where none is."""
    from flowccl.schedule.free_lane_kernels import free_lanes

    timing = schedule.timing
    order = np.argsort(timing.hop_transfer, kind="stable")
    trunk, start_ps = timing.hop_link[order].astype(np.int64), timing.hop_from_ps[order]
    lane, lane_ptr = np.argsort(lanes.link, kind="stable"), pointers(np.bincount(lanes.link))
    first = np.argsort(start_ps, kind="stable")
    chosen = free_lanes(first, trunk, start_ps, timing.hop_to_ps[order], lane_ptr, lane)
    if chosen.min(initial=0) < 0:
        return None
    ptr = np.searchsorted(timing.hop_transfer[order], np.arange(len(schedule) + 1)).astype(np.int64)
    routes = Routes(ptr, chosen.astype(np.int32))
    rows = (schedule.chunk, routes, schedule.start_ps, schedule.reduce, schedule.method)
    return Schedule.from_links(lanes.topology, schedule.demand, *rows)
