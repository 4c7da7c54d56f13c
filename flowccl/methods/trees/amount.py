"""The number of chunks for a gap: trees that fill the links, times rounds that keep the pipeline full.

b is the smallest number of chunks per block for which trees fill the links up to half of the gap. The trees repeat in k
rounds, such that the filling of the pipeline fits the other half: at most (D - 1) (2 P + L) + L by the bound of
`stagger`, with D the depth of the trees, L the latency of a route, and P = T / k the period for the time T. The number
of chunks is b k, or less if that is very large.
"""

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.methods.trees.packing import cached_packing, least_time_us
from flowccl.problem import Problem
from flowccl.search.context import SearchContext
from flowccl.topology.topology import Topology

I64 = NDArray[np.int64]

_MOST_GPUS = 64  # beyond, packing takes long: one tree per block
_MOST_BASE = 16  # trees per GPU
_MOST_TREES = 512  # trees of one packing
_MOST_TRANSFERS = 20_000  # transfers of a schedule; the formula may give more


def chunks_for_gap(problem: Problem, gap: float, context: SearchContext) -> int:
    """Return the number of chunks per block for a gap; 1 with limits, or if chunks do not go to all GPUs."""
    topology, demand = problem.topology, problem.demand
    to_all = bool(np.all(np.diff(demand.destination_ptr) == demand.num_gpus - 1))
    if topology.limits or not (to_all or demand.reduces):
        return 1
    count, rounds = trees_and_rounds(topology, demand, gap, context.incumbents.hints)
    return count * rounds


def trees_and_rounds(topology: Topology, demand: Demand, gap: float, known: dict[str, object]) -> tuple[int, int]:
    """Return the number of trees per block and of rounds for a gap; the demand has one chunk per block.

    For reductions, the machine is reversed, with the destinations as roots. `known` caches packings.
    """
    machine = topology.reversed if demand.reduces else topology
    ranks = np.unique(demand.destination_rank if demand.reduces else demand.source_rank).astype(np.int64)
    members = np.union1d(demand.source_rank, demand.destination_rank).astype(np.int64)
    if len(members) > _MOST_GPUS:
        return 1, 1
    roots = np.bincount(ranks, minlength=len(machine.nodes)).astype(np.int64)
    size = int(demand.chunk_bytes.max())
    base, time_us = _base(machine, roots, members, size, gap / 2)
    depth = cached_packing(machine, roots * base, members, max(size // base, 1), known).depth
    hops = 1 + int(np.any(~machine.stores))  # most routes cross at most one switch
    latency_us = hops * float(machine.link_latency_ps.max(initial=0)) / 1e6
    fill_us = gap / 2 * time_us - depth * latency_us
    rounds = 2 * (depth - 1) * time_us / fill_us if fill_us > 0 else np.inf
    most = _MOST_TRANSFERS // len(ranks) // len(members) // base
    return base, int(max(1, min(np.ceil(rounds), most)))


def _base(topology: Topology, roots: I64, members: I64, size: int, gap: float) -> tuple[int, float]:
    """The fewest chunks per block within the gap of the best, and the time of the busiest link."""
    most = max(1, min(_MOST_BASE, _MOST_TREES // int(roots.sum())))
    times = [
        least_time_us(topology, roots * count, members, topology.link_GBps * 1000 * count / size)
        for count in range(1, most + 1)
    ]
    base = next(count for count, time in enumerate(times, 1) if time <= min(times) * (1 + gap))
    return base, times[base - 1]
