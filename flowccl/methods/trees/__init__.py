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
from numpy.typing import NDArray

from flowccl.check.cut_optimum import cut_optimum
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.clock import Clock
from flowccl.methods.routed.jobs import Jobs, jobs_of
from flowccl.methods.routed.kernels import Trees
from flowccl.methods.trees.packing import Packing, packed
from flowccl.methods.trees.shop import worked_off
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


def trees(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    """One packing; then runs of the shop."""
    if topology.limits:
        raise DemandError("trees knows no shared limits; use fluid or greedy")
    everybody(topology, demand, "trees")
    _note_optimum(topology, demand, clock)
    yield from worked_off(packed_jobs(topology, demand, "trees"), clock)


def packed_jobs(topology: Topology, demand: Demand, method: str, link_GBps: F64 | None = None) -> Jobs:
    """The chunks on trees that are packed into so much of each link."""
    roots = np.bincount(demand.source, minlength=len(topology.nodes)).astype(np.int64)
    packing = packed(topology, roots, _members(demand), int(demand.chunk_bytes.max()), link_GBps)
    return replace(jobs_along(topology, demand, packing), method=method)


def _note_optimum(topology: Topology, demand: Demand, clock: Clock) -> None:
    """The cut optimum, for the reader of the result; of an allgather, once."""
    whole = demand.collective in ("allgather", "reduce_scatter") and len(_members(demand)) == topology.num_gpus
    if whole and "optimum_us" not in clock.notes:
        clock.notes["optimum_us"] = cut_optimum(topology).seconds_per_GB * demand.size_bytes / topology.num_gpus / 1000


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
    return jobs_of(topology, demand, Trees(ptr, flat[:, 0].copy(), flat[:, 1].copy()))


def everybody(topology: Topology, demand: Demand, method: str) -> None:
    """Raise DemandError unless every chunk goes to all who get any, on a machine whose bandwidth stays as it is."""
    if demand.reduces:
        raise DemandError(f"{method} moves chunks with one source each; {demand.collective} adds up several")
    if topology.changes or any(node.buffer_bytes is not None for node in topology.nodes):
        raise DemandError(f"{method} knows no buffer limits and no changing bandwidth; use greedy")
    if np.any(np.diff(demand.destination_ptr) != len(_members(demand)) - 1):
        raise DemandError(f"{method} is for chunks that go to everybody, as in allgather; use greedy or routed")


def _members(demand: Demand) -> I64:
    return np.union1d(demand.source, demand.destination_rank).astype(np.int64)
