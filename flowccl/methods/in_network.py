"""In-network allreduce (NVLS, SHARP): chunk by chunk, all GPUs send their contributions to a switch that reduces them.

The switch sends the result to one GPU, the owner, which sends it back once; the switch multicasts it to all other GPUs.
Every GPU sends and receives each byte once, about half of the traffic of other algorithms. While the switch multicasts
one chunk, it reduces the next.
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
    """Yield the one schedule."""
    topology, demand = problem.topology, problem.demand
    ranks, switch = problem.allreduce_ranks, problem.reducing_switch
    if ranks is None or switch is None:
        raise DemandError(
            "method in-network needs an allreduce whose ranks share a switch that reduces and copies; "
            f"{topology.name} has none for this {demand.collective}"
        )
    into, out = switch_ports(topology, switch)
    owner = max(ranks, key=lambda rank: (min(topology.link_GBps[into[rank]], topology.link_GBps[out[rank]]), -rank))
    others = [rank for rank in ranks if rank != owner]
    reduces = [*(into[rank] for rank in others), out[owner]]
    copies = [into[owner], *(out[rank] for rank in others)]
    both = Routes.from_lists([reduces, copies])
    slowest = topology.link_GBps[reduces + copies].min()
    delay = 4 * int(topology.link_latency_ps[reduces + copies].max())
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
