"""Adapter for machines whose links have an overhead per message."""

from collections.abc import Iterator
from dataclasses import replace

from flowccl.problem import Problem
from flowccl.schedule.generation.serial import fits, within_limits
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift
from flowccl.search.context import Method, SearchContext
from flowccl.topology.topology import Topology
from flowccl.topology.variants import without_overheads


def with_message_overheads(method: Method) -> Method:
    """The method on machines with an overhead per message: it sees links that are slower by the overhead.

    Every chunk is then a message of its own. For chunks of one size the slower machine is equivalent; where sizes
    differ, the larger chunks run at a higher rate on the machine itself.
    """

    def run(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
        topology, demand = problem.topology, problem.demand
        if not topology.has_overheads:
            yield from method(problem, context)
            return
        slower = without_overheads(topology, int(demand.chunk_bytes.min(initial=2**60)))
        for found in method(Problem(slower, demand), context):
            yield None if found is None else _on(topology, found)

    return run


def _on(topology: Topology, found: Schedule) -> Schedule:
    """The schedule on the machine itself."""
    moved = replace(found, topology=topology)
    return left_shift(moved) if fits(moved) else within_limits(found, topology)
