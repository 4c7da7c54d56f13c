"""Schedules for a runtime that use its operations of switches (NVLS), as further candidates beside the search."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from flowccl.demand.demand import Demand
from flowccl.methods.in_network import in_network
from flowccl.methods.suitability import suits_in_network
from flowccl.problem import Problem
from flowccl.runtimes.machine import on_runtime
from flowccl.runtimes.profiles import RuntimeProfile
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.topology import Topology
from flowccl.verifier.verify import verify

_CHUNKS = (1, 2, 4)  # per block: more of them only add messages, since data flows through switches in one step


def in_network_schedules(
    topology: Topology, profile: RuntimeProfile, demand_of: Callable[[int], Demand | None], context: SearchContext
) -> Iterator[Schedule]:
    """Yield verified in-network schedules of a collective on a machine, with the message costs of a runtime.

    `demand_of` returns the demand with a number of chunks per block, or None where that is not allowed. There is no
    schedule where the runtime or the machine has no such operations.
    """
    if not profile.nvls:
        return
    switched = on_runtime(topology, profile, in_network=True)
    for count in _CHUNKS:
        demand = demand_of(count)
        if demand is None or not suits_in_network(problem := Problem(switched, demand)):
            return
        for schedule in in_network(problem, context):
            if schedule is not None and not verify(schedule):
                yield replace(schedule, runtime=profile)
