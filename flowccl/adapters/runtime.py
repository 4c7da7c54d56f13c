"""Adapter for runtimes: a method plans on a machine whose links stand for the costs, the engine carries the plan out."""

from collections.abc import Iterator

from flowccl.problem import Problem
from flowccl.runtimes.machine import with_costs_in_links
from flowccl.schedule.generation.carrying import Carrier
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import Method, SearchContext


def on_the_runtime(method: Method, carrier: Carrier, inner: SearchContext) -> Method:
    """The method for schedules that a runtime carries out.

    It plans with the context `inner` on a machine whose links have an overhead per message. What it finds is timed
    anew, with the costs where they occur.
    """

    def run(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
        planned = Problem(with_costs_in_links(problem.topology, carrier.profile), problem.demand)
        best_ps = float("inf")
        for found in method(planned, inner):
            carried = None if found is None else carrier(found)
            if carried is None or carried.finish_ps >= best_ps:
                yield None
            else:
                best_ps = carried.finish_ps
                yield carried

    return run
