"""The transfers of a one-shot allreduce: every contribution goes to every destination, directly or by `greedy`."""

from collections.abc import Iterator

from flowccl.methods.baselines import direct
from flowccl.methods.greedy import greedy
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext


def contributions_to_all(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """The direct schedule, which a runtime sends in one message per pair of GPUs; then those of `greedy`."""
    yield from direct(problem, context)
    yield from greedy(problem, context)
