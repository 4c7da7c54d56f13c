"""Any method for machines whose GPUs take time to add up: the plan is made without, then put in time with it."""

from collections.abc import Iterator
from dataclasses import replace

from flowccl.adapters.improvements import improvements
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.clock import Clock
from flowccl.methods.method import Method
from flowccl.schedule.generation.list_scheduling import Relisting, can_relist
from flowccl.schedule.generation.serial import generate_serial, sequence
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology


def with_reduce_rate(method: Method, name: str) -> Method:
    """The method, made to take GPUs that take time to add up what arrives, one after the other.

    Not exchange: there all send what they have before they add up what comes, and it comes at once.
    """

    def run(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
        if not (topology.has_reduce_rate and demand.reduces):
            yield from method(topology, demand, clock)
            return
        if name == "staged-exchange":
            raise DemandError("exchange is for gpus that add up in no time; use greedy or paired")
        nodes = tuple(replace(node, reduce_GBps=None) for node in topology.nodes)
        found = method(replace(topology, nodes=nodes), demand, clock)
        yield from improvements(found, lambda schedule: _in_time(topology, schedule))

    return run


def _in_time(topology: Topology, found: Schedule) -> Schedule:
    """The schedule on the machine itself: in its own order, or the longest way first, whichever is over earlier."""
    if can_relist(found):
        ways = Relisting(found, topology)
        runs = [ways.in_order_of(found.start_ps), ways.in_order_of(-ways.way_ps)]
        right = [run for run in runs if run is not None]
        if right:
            return min(right, key=lambda run: run.finish_ps)
    return generate_serial(replace(found, topology=topology), sequence(found))
