"""Adapters for limits, overheads per message and GPUs that take time to reduce, for methods that do not know them.

The method plans on a machine without them; its transfers then get their times on the machine itself.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from flowccl.arrays import pointers
from flowccl.problem import Problem
from flowccl.schedule.generation.engine import LEAST_RATES, Engine, leaves_first
from flowccl.schedule.generation.list_scheduling import ListScheduler, can_list_schedule
from flowccl.schedule.generation.serial import fits, within_limits
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift
from flowccl.search.context import Method, SearchContext
from flowccl.search.incumbents import Incumbents
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology
from flowccl.topology.variants import with_limits_as_switches, without_overheads

_FEW, _MOST = 10_000, 200_000  # transfers that the engine is given in several ways, and at all


def with_limits(method: Method, is_valid: Callable[[Schedule], bool]) -> Method:
    """The method on machines with limits: routes and order of a machine with switches for them, times of the engine.

    Other times may break an exchange, in which two GPUs each send before they receive: such schedules are dropped.
    """

    def run(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
        if not problem.topology.limits:
            yield from method(problem, context)
            return
        separate = replace(context, budget=replace(context.budget, good_ps=0.0), incumbents=Incumbents())
        for found in method(limits_as_switches(problem), separate):
            separate.incumbents.publish()
            moved = None if found is None or len(found) > _MOST else _with_limits(found, problem.topology)
            yield moved if moved is not None and is_valid(moved) else None

    return run


def limits_as_switches(problem: Problem) -> Problem:
    """The problem on the machine with switches in the place of its limits, as far as that is the same."""
    return Problem(with_limits_as_switches(problem.topology), problem.demand) if problem.topology.limits else problem


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
            yield None if found is None else _with_overheads(found, topology)

    return run


def with_reduce_rate(method: Method) -> Method:
    """The method on machines whose GPUs take time to reduce what arrives, one message after the other."""

    def run(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
        topology, demand = problem.topology, problem.demand
        if not (topology.has_reduce_rate and demand.reduces):
            yield from method(problem, context)
            return
        nodes = tuple(replace(node, reduce_GBps=None) for node in topology.nodes)
        for found in method(Problem(replace(topology, nodes=nodes), demand), context):
            yield None if found is None else _with_reduce_rate(found, topology)

    return run


def only_improvements(method: Method) -> Method:
    """The method that yields each schedule that finishes earlier than all before it, and None in place of others."""

    def run(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
        best_ps: int | None = None
        for found in method(problem, context):
            is_better = found is not None and (best_ps is None or found.finish_ps < best_ps)
            best_ps = found.finish_ps if found is not None and is_better else best_ps
            yield found if is_better else None

    return run


def _with_limits(found: Schedule, topology: Topology) -> Schedule | None:
    """The transfers of a schedule on a machine with switches for limits, as early as the limits allow, in its order."""
    routes = _without_trunks(found.routes, topology)
    moved = replace(found, topology=replace(topology, limits=()), routes=routes, rate_GBps=np.zeros(0))
    if topology.changes:  # of which the engine does not know
        return within_limits(moved, topology)
    moved.cache["waits"], moved.cache["leaves first"] = Engine(found).waits, leaves_first(found)
    engine = Engine(moved, topology=topology)
    runs = (engine.run(least=least) for least in (LEAST_RATES if len(found) <= _FEW else LEAST_RATES[1:2]))
    return min(filter(None, runs), key=lambda one: one.finish_ps, default=None)


def _without_trunks(routes: Routes, topology: Topology) -> Routes:
    """The routes with only the links that a machine has."""
    own = routes.link < len(topology.links)
    return Routes(pointers(np.add.reduceat(own, routes.ptr[:-1])), routes.link[own])


def _with_overheads(found: Schedule, topology: Topology) -> Schedule:
    moved = replace(found, topology=topology)
    return left_shift(moved) if fits(moved) else within_limits(found, topology)


def _with_reduce_rate(found: Schedule, topology: Topology) -> Schedule:
    """In its own order or longest path first, whichever finishes earlier."""
    if can_list_schedule(found):
        paths = ListScheduler(found, topology)
        runs = (paths.in_order_of(found.start_ps), paths.in_order_of(-paths.tail_ps))
        if (best := min(filter(None, runs), key=lambda one: one.finish_ps, default=None)) is not None:
            return best
    return within_limits(found, topology)
