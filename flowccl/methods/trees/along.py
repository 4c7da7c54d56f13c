"""Chunks on their trees, round by round the same."""

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.methods.reroute.tree_kernels import Trees
from flowccl.methods.trees.packing import Packing
from flowccl.schedule.generation.job_shop import Jobs, jobs_of
from flowccl.topology.topology import Topology

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


def rounds_of(demand: Demand, rounds: int) -> tuple[I64, I64]:
    """The chunk of the first round that goes the same way as each chunk, and the round of each."""
    same, turn = np.zeros(len(demand), dtype=np.int64), np.zeros(len(demand), dtype=np.int64)
    for rank in np.unique(demand.source).tolist():
        mine = np.flatnonzero(demand.source == rank)
        turn[mine], place = np.divmod(np.arange(len(mine)), len(mine) // rounds)
        same[mine] = mine[place]
    return same, turn


def jobs_along(topology: Topology, demand: Demand, packing: Packing, rounds: int = 1) -> Jobs:
    """Each chunk of a root on one of its trees, in every round the same."""
    same, turn = rounds_of(demand, rounds)
    ways: dict[int, list[tuple[int, int]]] = {chunk: [] for chunk in np.flatnonzero(turn == 0).tolist()}
    mine = {
        rank: iter(np.flatnonzero((demand.source == rank) & (turn == 0)).tolist())
        for rank in np.unique(demand.source).tolist()
    }
    for tree in packing.trees:
        for copy in range(tree.times):
            rows, feeder = ways[next(mine[tree.root])], {tree.root: -1}
            for a, b, links in tree.edges:
                parent = feeder[a]
                for link in links[copy]:
                    rows.append((link, parent))
                    parent = len(rows) - 1
                feeder[b] = parent
    hops = [ways[chunk] for chunk in same.tolist()]
    ptr = np.concatenate(([0], np.cumsum([len(rows) for rows in hops]))).astype(np.int64)
    flat = np.array([row for rows in hops for row in rows], dtype=np.int32)
    return jobs_of(topology, demand, Trees(ptr, flat[:, 0].copy(), flat[:, 1].copy()))


def link_work_ps(jobs: Jobs) -> F64:
    """How long each link is busy with all jobs."""
    shop = jobs.shop
    size = np.diff(shop.hop_ptr)[shop.job_route]
    hop = np.repeat(shop.hop_ptr[:-1][shop.job_route] - np.cumsum(size) + size, size) + np.arange(size.sum())
    hold = np.repeat(shop.job_bytes, size) * 1000.0 / jobs.topology.link_GBps[shop.hop_link[hop]]
    return np.bincount(shop.hop_link[hop], hold, len(jobs.topology.links)).astype(np.float64)
