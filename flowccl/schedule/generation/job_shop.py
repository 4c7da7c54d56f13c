"""Job-shop scheduling of trees: each job is one chunk on one route, from one storing node to the next ones."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.demand.demand import Demand
from flowccl.schedule.generation.chunk_trees import ChunkTrees
from flowccl.schedule.generation.job_shop_kernels import Shop, dispatch, tails
from flowccl.schedule.generation.precedence import feeding
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift, prune
from flowccl.topology.routes import Routes, route_shape
from flowccl.topology.topology import Topology


@dataclass(frozen=True, eq=False)
class Jobs:
    """All jobs of a demand, which can be scheduled in any order in which every job is fed before it starts."""

    topology: Topology
    demand: Demand
    routes: Routes
    chunk: NDArray[np.int32]
    shop: Shop
    tail: NDArray[np.float64]
    method: str = "reroute"

    def schedule(self, random: np.random.Generator, noise: float, give_up_ps: int) -> Schedule | None:
        """Schedule the jobs, the longest tail first, with noise; None if the finish is not below `give_up_ps`."""
        key = self.tail * (1 + noise * random.uniform(-1, 1, len(self.tail))) if noise else self.tail
        return self.in_order(-key, give_up_ps)

    def in_order(self, key: NDArray[np.float64] | NDArray[np.int64], give_up_ps: int) -> Schedule | None:
        """Schedule the jobs: of the jobs that wait for a link, the one with the least key goes first."""
        raw = self.dispatched(key, give_up_ps)
        return None if raw is None else left_shift(prune(raw))

    def dispatched(self, key: NDArray[np.float64] | NDArray[np.int64], give_up_ps: int) -> Schedule | None:
        """The same without pruning and left-shifting."""
        rank = np.empty(len(key), dtype=np.int64)
        rank[np.argsort(key, kind="stable")] = np.arange(len(key))
        done, _, start = dispatch(self.shop, rank, len(self.topology.links), give_up_ps)
        if not done:
            return None
        flags = np.zeros(len(self.chunk), dtype=np.bool_)
        route = self.shop.job_route.astype(np.int32)
        return Schedule(self.topology, self.demand, self.routes, self.chunk, route, start, flags, self.method)


def jobs_of(topology: Topology, demand: Demand, trees: ChunkTrees) -> Jobs:
    """Return the jobs of trees: a job starts at a storing node and has all hops up to the next storing nodes."""
    hops = len(trees.link)
    chunk_of_hop = np.repeat(np.arange(len(demand)), np.diff(trees.ptr))
    parent = np.where(trees.parent < 0, -1, trees.parent + trees.ptr[:-1][chunk_of_hop])
    starts = topology.stores[topology.link_src[trees.link]]
    root = _roots(parent, starts)
    order = np.lexsort((np.arange(hops), root))  # hops job by job, in the order in which the tree was grown
    job_roots = np.flatnonzero(starts)
    job_of_hop = np.searchsorted(job_roots, root)
    size = np.bincount(job_of_hop, minlength=len(job_roots))
    first = pointers(size)
    place = np.empty(hops, dtype=np.int64)  # position of each hop in its job
    place[order] = np.arange(hops) - np.repeat(first[:-1], size)
    routes, job_route = Routes(first, trees.link[order]).distinct()

    feeder = parent[job_roots]
    parent_job = np.where(feeder < 0, -1, job_of_hop[np.maximum(feeder, 0)])
    feeding_hop = np.where(feeder < 0, -1, place[np.maximum(feeder, 0)])
    children = np.argsort(parent_job, kind="stable")
    children = children[parent_job[children] >= 0]
    fed = np.bincount(parent_job[parent_job >= 0], minlength=len(job_roots))
    child_ptr = pointers(fed)
    chunk = chunk_of_hop[job_roots].astype(np.int32)
    shop = _shop(topology, routes, job_route, demand.chunk_bytes[chunk], child_ptr, children, feeding_hop)
    later_first = np.arange(len(job_roots), dtype=np.int64)[::-1].copy()  # jobs come after the job that feeds them
    return Jobs(topology, demand, routes, chunk, shop, tails(shop, later_first))


def _roots(parent: NDArray[np.int64], starts: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each hop, the hop that leaves the storing node above it."""
    root = np.where(starts, np.arange(len(parent)), parent)
    while True:
        above = np.where(starts[root], root, root[root])
        if np.array_equal(above, root):
            return root
        root = above


def _shop(
    topology: Topology,
    routes: Routes,
    job_route: NDArray[np.int32],
    job_bytes: NDArray[np.int64],
    child_ptr: NDArray[np.int64],
    child: NDArray[np.int64],
    feeding_hop: NDArray[np.int64],
) -> Shop:
    shape = route_shape(topology, routes)
    segments = np.bincount(shape.segment_route, minlength=len(routes))
    segment_ptr = pointers(segments)
    route_of_hop = np.repeat(np.arange(len(routes)), np.diff(routes.ptr))
    waits = np.bincount(job_route, minlength=len(routes))
    return Shop(
        routes.ptr,
        routes.link,
        shape.hop_offset_ps,
        shape.hop_segment - segment_ptr[route_of_hop],
        topology.link_latency_ps[routes.link],
        segment_ptr,
        shape.segment_GBps,
        pointers(waits),
        job_route.astype(np.int64),
        job_bytes,
        child_ptr,
        child.astype(np.int64),
        feeding_hop.astype(np.int64),
    )


def can_be_jobs(schedule: Schedule) -> bool:
    """Whether the job shop can schedule this: one source per chunk, available from the start; a plain machine."""
    topology, demand = schedule.topology, schedule.demand
    known = not (topology.has_limits_or_changes or topology.has_overheads)
    known &= not topology.has_buffer_limits
    alone = not schedule.has_messages and not np.any(np.diff(schedule.shape.root_ptr) > 1)
    return known and alone and not demand.reduces and demand.ready_ps is None


def jobs_from(schedule: Schedule) -> Jobs:
    """Return the transfers of a schedule as jobs, which can be scheduled in another order.

    The first delivery of its chunk to the node where it starts feeds each job. Transfers with several roots cannot be
    jobs.
    """
    timing, jobs = schedule.timing, len(schedule)
    fed, end_of = feeding(schedule)
    parent_job = np.full(jobs, -1, dtype=np.int64)
    feeding_hop = np.full(jobs, -1, dtype=np.int64)
    parent_job[timing.root_transfer[fed]] = timing.end_transfer[end_of]
    ends_before = pointers(np.diff(schedule.shape.end_ptr)[schedule.route])
    route = schedule.route[timing.end_transfer[end_of]]
    which = schedule.shape.end_ptr[route] + end_of - ends_before[timing.end_transfer[end_of]]
    feeding_hop[timing.root_transfer[fed]] = schedule.shape.end_hop[which] - schedule.routes.ptr[route]

    children = np.argsort(parent_job, kind="stable")
    children = children[parent_job[children] >= 0]
    child_ptr = pointers(np.bincount(parent_job[parent_job >= 0], minlength=jobs))
    size = schedule.demand.chunk_bytes[schedule.chunk]
    shop = _shop(schedule.topology, schedule.routes, schedule.route, size, child_ptr, children, feeding_hop)
    later_first = np.argsort(-schedule.start_ps, kind="stable").astype(np.int64)
    tail = tails(shop, later_first)
    return Jobs(schedule.topology, schedule.demand, schedule.routes, schedule.chunk, shop, tail, schedule.method)
