"""Trees: the cut optimum as trees that share the links exactly, then chunks one after the other along them.

packing.py   the least time for whole chunks, switches split off, trees packed (Edmonds; Bang-Jensen, Frank, Jackson)
kernels.py   maximum flows, splitting, growing
shop.py      the jobs along the trees worked off so that no link falls behind

For demands in which every chunk goes to all members: allgather, broadcast; reduce_scatter, reduce and allreduce by
running backwards.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.clock import Clock
from flowccl.methods.routed.jobs import Jobs, jobs_of
from flowccl.methods.routed.kernels import Trees
from flowccl.methods.trees.packing import Packing, packed
from flowccl.methods.trees.shop import worked_off
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology

_NEVER = int(np.iinfo(np.int64).max)


def trees(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    """One packing; then runs of the shop in the order of the longest ways to go, with noise."""
    members = _members(topology, demand)
    roots = np.bincount(demand.source, minlength=len(topology.nodes)).astype(np.int64)
    packing = packed(topology, roots, members, int(demand.chunk_bytes.max()))
    jobs = jobs_along(topology, demand, packing)
    yield from worked_off(jobs, clock)


def jobs_along(topology: Topology, demand: Demand, packing: Packing) -> Jobs:
    """Each chunk of a root on one of its trees."""
    hops: list[list[tuple[int, int]]] = [[] for _ in range(len(demand))]
    mine = {rank: iter(np.flatnonzero(demand.source == rank).tolist()) for rank in np.unique(demand.source).tolist()}
    for tree in packing.trees:
        for copy in range(tree.times):
            rows, feeder = hops[next(mine[tree.root])], {tree.root: -1}
            for a, b, ways in tree.edges:
                parent = feeder[a]
                for link in ways[copy]:
                    rows.append((link, parent))
                    parent = len(rows) - 1
                feeder[b] = parent
    ptr = np.concatenate(([0], np.cumsum([len(rows) for rows in hops]))).astype(np.int64)
    flat = np.array([row for rows in hops for row in rows], dtype=np.int32)
    found = jobs_of(topology, demand, Trees(ptr, flat[:, 0].copy(), flat[:, 1].copy()))
    return replace(found, method="trees")


def _members(topology: Topology, demand: Demand) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """All who get chunks; every chunk must go to all of them."""
    if demand.reduces:
        raise DemandError(f"trees moves chunks with one source each; {demand.collective} adds up several")
    if topology.limits or topology.changes or any(node.buffer_bytes is not None for node in topology.nodes):
        raise DemandError("trees knows no shared limits, buffer limits or changing bandwidth; use greedy or fluid")
    members = np.union1d(demand.source, demand.destination_rank).astype(np.int64)
    if np.any(np.diff(demand.destination_ptr) != len(members) - 1):
        raise DemandError(f"trees is for chunks that go to everybody, as in allgather; not for this {demand.collective}")
    return members
