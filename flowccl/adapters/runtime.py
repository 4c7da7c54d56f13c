"""Adapter for runtimes: a method plans on a machine whose links stand for the costs; the engine carries it out."""

from collections.abc import Iterator
from math import inf

from flowccl.problem import Problem
from flowccl.runtimes.machine import used_by, with_costs_in_links
from flowccl.runtimes.profiles import RuntimeProfile
from flowccl.schedule.generation.carrying import Carrier, is_small
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import Method, SearchContext


def planning_problem(
    problem: Problem, profile: RuntimeProfile, *, operations: bool = False, by_rate: bool = False
) -> Problem:
    """The problem on the machine on which a method plans for a runtime.

    Its links stand for the costs of messages, unless the method plans `by_rate`. Its switches only forward, unless the
    method knows the `operations` of switches that the runtime has.
    """
    machine = problem.topology if operations else used_by(problem.topology, profile)
    return Problem(machine if by_rate else with_costs_in_links(machine, profile), problem.demand)


def on_the_runtime(
    method: Method,
    carrier: Carrier,
    inner: SearchContext,
    *,
    operations: bool = False,
    by_rate: bool = False,
    variants: bool = False,
) -> Method:
    """The method for schedules that a runtime carries out.

    It plans with the context `inner` on the machine of `planning_problem`. What it finds is timed anew, with the costs
    where they occur. Its first two plans are one step where they are small: the second one may be better with loops.
    Where its schedules are `variants` of one plan, the best of them is its only one, and is carried out in as many ways
    as the first one.
    """

    def run(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
        planned = planning_problem(problem, carrier.profile, operations=operations, by_rate=by_rate)
        best: Schedule | None = None
        other: Schedule | None = None  # what was planned for the best, if it is not the first
        plans = method(planned, inner)
        for number, plan in enumerate(plans):
            before, two = best, best is None and not variants and is_small(plan)
            for found in (plan, next(plans, None)) if two else (plan,):
                is_late = context.incumbents.best_ps < inf and found is not None and not carrier.can_run(found)
                carried = None if found is None or is_late else carrier(found)
                carrier.note(carried)
                if carried is not None and (best is None or carried.finish_ps < best.finish_ps):
                    best, other = carried, found if number else None
            if not variants:
                yield None if best is before else best
            elif context.budget.over():
                break
        if variants:
            again = None if other is None else carrier(other, anew=True)
            yield again if again is not None and best is not None and again.finish_ps < best.finish_ps else best

    return run
