"""In-network allreduce (NVLS, SHARP): chunk by chunk, all GPUs send their contribution into a switch that reduces.

The sum comes out at one GPU, which sends it once into the switch; the switch copies it to all others. Every GPU sends
and gets each byte once, half of what it would without; while one chunk is copied, the next is added up.
"""

from collections.abc import Iterator

import numpy as np

from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.clock import Clock
from flowccl.methods.staged_exchange import allreduce_ranks
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology


def in_network(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    """The one schedule."""
    ranks = allreduce_ranks(demand)
    switch = None if ranks is None else reducing_switch(topology, ranks)
    if ranks is None or switch is None:
        raise DemandError(
            "in-switch is for an allreduce of gpus that share a switch that copies and reduces; "
            f"{demand.collective} on {topology.name} is not so"
        )
    if topology.limits or topology.changes:
        raise DemandError("in-switch knows no shared limits or changing bandwidth; use greedy")
    into, out = _ports(topology, switch)
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


def reducing_switch(topology: Topology, ranks: list[int]) -> int | None:
    """A switch that copies and reduces, with a link from and to each of these GPUs; None if there is none."""
    for node in range(topology.num_gpus, len(topology.nodes)):
        what = topology.nodes[node]
        if what.stores or not (what.copies and what.reduces) or what.crossing != "cut-through":
            continue
        into, out = _ports(topology, node)
        if all(rank in into and rank in out for rank in ranks):
            return node
    return None


def _ports(topology: Topology, switch: int) -> tuple[dict[int, int], dict[int, int]]:
    """The link from each node into the switch, and from the switch to each node."""
    into = {int(topology.link_src[k]): int(k) for k in np.flatnonzero(topology.link_dst == switch)}
    out = {int(topology.link_dst[k]): int(k) for k in np.flatnonzero(topology.link_src == switch)}
    return into, out
