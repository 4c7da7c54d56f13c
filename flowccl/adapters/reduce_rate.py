"""Adapter for machines whose GPUs take time to reduce: the schedule is made without that time, then regenerated."""

from collections.abc import Iterator
from dataclasses import replace

from flowccl.problem import Problem
from flowccl.schedule.generation.list_scheduling import ListScheduler, can_list_schedule
from flowccl.schedule.generation.serial import within_limits
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import Method, SearchContext
from flowccl.topology.topology import Topology


def with_reduce_rate(method: Method) -> Method:
    """The method on machines whose GPUs take time to reduce what arrives, one message after the other."""

    def run(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
        topology, demand = problem.topology, problem.demand
        if not (topology.has_reduce_rate and demand.reduces):
            yield from method(problem, context)
            return
        nodes = tuple(replace(node, reduce_GBps=None) for node in topology.nodes)
        for found in method(Problem(replace(topology, nodes=nodes), demand), context):
            yield None if found is None else _on(topology, found)

    return run


def _on(topology: Topology, found: Schedule) -> Schedule:
    """The schedule on the machine itself: in its own order or longest path first, whichever finishes earlier."""
    if can_list_schedule(found):
        paths = ListScheduler(found, topology)
        runs = [paths.in_order_of(found.start_ps), paths.in_order_of(-paths.tail_ps)]
        valid = [run for run in runs if run is not None]
        if valid:
            return min(valid, key=lambda run: run.finish_ps)
    return within_limits(found, topology)
