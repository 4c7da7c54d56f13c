"""Adapter for machines with trunks: the method sees a machine whose trunks are lanes side by side."""

from collections.abc import Iterator
from dataclasses import replace

from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import Method, SearchContext
from flowccl.topology.trunks import Lanes, split_trunks


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
    """A schedule on lanes as one on the machine itself: the same times, and the trunk in the place of its lanes."""
    return replace(schedule, topology=lanes.original, routes=schedule.routes.renamed(lanes.link))
