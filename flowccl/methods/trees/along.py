"""Chunks on their trees, equal in every round."""

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.demand.demand import Demand
from flowccl.methods.trees.packing import Packing
from flowccl.schedule.generation.chunk_trees import ChunkTrees
from flowccl.schedule.generation.job_shop import Jobs, jobs_of
from flowccl.topology.topology import Topology

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


def rounds_of_chunks(demand: Demand, rounds: int) -> tuple[I64, I64]:
    """Return for each chunk the chunk of the first round on the same tree, and its round."""
    template, round_number = np.zeros(len(demand), dtype=np.int64), np.zeros(len(demand), dtype=np.int64)
    for rank in np.unique(demand.source).tolist():
        of_rank = np.flatnonzero(demand.source == rank)
        round_number[of_rank], place = np.divmod(np.arange(len(of_rank)), len(of_rank) // rounds)
        template[of_rank] = of_rank[place]
    return template, round_number


def jobs_along(topology: Topology, demand: Demand, packing: Packing, rounds: int = 1) -> Jobs:
    """Return the jobs of all chunks, each on a tree of its root; every round uses the same trees."""
    template, round_number = rounds_of_chunks(demand, rounds)
    paths: dict[int, list[tuple[int, int]]] = {chunk: [] for chunk in np.flatnonzero(round_number == 0).tolist()}
    of_rank = {
        rank: iter(np.flatnonzero((demand.source == rank) & (round_number == 0)).tolist())
        for rank in np.unique(demand.source).tolist()
    }
    for tree in packing.trees:
        for copy in range(tree.times):
            rows, feeder = paths[next(of_rank[tree.root])], {tree.root: -1}
            for a, b, links in tree.edges:
                parent = feeder[a]
                for link in links[copy]:
                    rows.append((link, parent))
                    parent = len(rows) - 1
                feeder[b] = parent
    hops = [paths[chunk] for chunk in template.tolist()]
    ptr = pointers([len(rows) for rows in hops])
    flat = np.array([row for rows in hops for row in rows], dtype=np.int32)
    return jobs_of(topology, demand, ChunkTrees(ptr, flat[:, 0].copy(), flat[:, 1].copy()))


def link_work_ps(jobs: Jobs) -> F64:
    """Return how long each link is busy with all jobs."""
    shop = jobs.shop
    size = np.diff(shop.hop_ptr)[shop.job_route]
    hop = np.repeat(shop.hop_ptr[:-1][shop.job_route] - np.cumsum(size) + size, size) + np.arange(size.sum())
    busy = np.repeat(shop.job_bytes, size) * 1000.0 / jobs.topology.link_GBps[shop.hop_link[hop]]
    return np.bincount(shop.hop_link[hop], busy, len(jobs.topology.links)).astype(np.float64)
