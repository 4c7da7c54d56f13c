"""In-network allreduce (NVLS, SHARP): chunk by chunk, all GPUs send their contribution into a switch that reduces.

The sum comes out at one GPU, which sends it once into the switch; the switch copies it to all others. Every GPU sends
and gets each byte once, half of what it would without; while one chunk is copied, the next is added up.
"""

from collections.abc import Iterator

import numpy as np

from flowccl.errors import DemandError
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift
from flowccl.search.context import SearchContext
from flowccl.topology.reducing_switches import switch_ports
from flowccl.topology.routes import Routes


def in_network(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """The one schedule."""
    topology, demand = problem.topology, problem.demand
    ranks, switch = problem.allreduce_ranks, problem.reducing_switch
    if ranks is None or switch is None:
        raise DemandError(
            "in-network needs an allreduce whose ranks share a switch that reduces and copies; "
            f"{topology.name} has none for this {demand.collective}"
        )
    into, out = switch_ports(topology, switch)
    owner = max(ranks, key=lambda rank: (min(topology.link_GBps[into[rank]], topology.link_GBps[out[rank]]), -rank))
    others = [rank for rank in ranks if rank != owner]
    adds = [*(into[rank] for rank in others), out[owner]]
    copies = [into[owner], *(out[rank] for rank in others)]
    both = Routes.from_lists([adds, copies])
    slowest = topology.link_GBps[adds + copies].min()
    delay = 4 * int(topology.link_latency_ps[adds + copies].max())
    slot = np.ceil(demand.chunk_bytes * 1000.0 / slowest).astype(np.int64) + delay + 1
    begin = 2 * (np.cumsum(slot) - slot)
    count = len(demand)
    yield left_shift(
        Schedule(
            topology,
            demand,
            both,
            np.repeat(np.arange(count), 2),
            np.tile([0, 1], count),
            np.stack((begin, begin + slot), axis=1).reshape(-1),
            np.tile([True, False], count),
            method="in-network",
        )
    )
