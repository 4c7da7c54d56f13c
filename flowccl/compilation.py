"""Compiled loops: which methods have them, and loading them before a time limit starts to count."""

from collections.abc import Iterable
from itertools import islice

from flowccl.demand.collectives import allgather
from flowccl.methods.registry import REGISTRY, load_method
from flowccl.problem import Problem
from flowccl.schedule.generation.list_scheduling import list_schedule
from flowccl.search.context import SearchContext
from flowccl.topology.topology import Link, Node, Topology

_ALSO = {"lns-quotient": "lns", "phase-insertion": "lns"}  # methods that share the loops of another one


def warm_up(names: Iterable[str]) -> None:
    """Load the compiled loops of these methods by running each on two GPUs; a new installation compiles them first."""
    ends = (Node(name="a"), Node(name="b"))
    pair = [Link(src=0, dst=1, bandwidth_GBps=1.0), Link(src=1, dst=0, bandwidth_GBps=1.0)]
    problem = Problem(Topology("warm-up", ends, tuple(pair)), allgather(2, 8))
    wanted = {_ALSO.get(name, name) for name in names if REGISTRY[name].compiled}
    wanted |= {"greedy", "reroute"} if any(REGISTRY[name].epochs for name in wanted) else set()
    for name in sorted(wanted & {"greedy", "reroute", "lns", "taccl", "taccl-quick", "symmetric", "trees", "fluid"}):
        context = SearchContext.with_limit(1.0)
        for _ in range(2):  # lns builds and improves, then continues from what was found
            for found in filter(None, islice(load_method(name)(problem, context), 2)):
                list_schedule(found)
                context.incumbents.report(found)
            context.incumbents.publish()
