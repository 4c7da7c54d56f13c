"""Adapter for limits: a method that does not know them plans without them, and the engine brings the times."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from flowccl.problem import Problem
from flowccl.schedule.generation.engine import LEAST_RATES, Engine
from flowccl.schedule.generation.serial import within_limits
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import Method, SearchContext
from flowccl.search.incumbents import Incumbents

_MOST = 50_000  # transfers that the engine is given


def with_limits(method: Method, is_valid: Callable[[Schedule], bool]) -> Method:
    """The method on machines with limits: routes and order of the machine without them, times of the engine.

    Other times may break an exchange, in which two GPUs each send before they receive: such schedules are dropped.
    """

    def run(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
        if not problem.topology.limits:
            yield from method(problem, context)
            return
        separate = replace(context, budget=replace(context.budget, good_ps=0.0), incumbents=Incumbents())
        for found in method(without_limits(problem), separate):
            separate.incumbents.publish()
            moved = None if found is None or len(found) > _MOST else _with_times(found, problem)
            yield moved if moved is not None and is_valid(moved) else None

    return run


def without_limits(problem: Problem) -> Problem:
    """The problem on the machine without its limits."""
    return Problem(replace(problem.topology, limits=()), problem.demand) if problem.topology.limits else problem


def _with_times(found: Schedule, problem: Problem) -> Schedule | None:
    """The transfers of a schedule as early as limits allow, in its order."""
    if problem.topology.changes:  # of which the engine does not know
        return within_limits(found, problem.topology)
    engine = Engine(replace(found, rate_GBps=np.zeros(0)), topology=problem.topology)
    runs = [one for one in (engine.run(least=least) for least in LEAST_RATES) if one is not None]
    return min(runs, key=lambda one: one.finish_ps, default=None)
