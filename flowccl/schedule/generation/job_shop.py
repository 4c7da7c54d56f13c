"""Job-shop scheduling of trees: each job is one chunk on one route, from one storing node to the next ones."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER, pointers
from flowccl.demand.demand import Demand
from flowccl.schedule.generation.chunk_trees import ChunkTrees
from flowccl.schedule.generation.generation_kernels import longest_tails
from flowccl.schedule.generation.list_scheduling import in_order, jobs_of
from flowccl.schedule.generation.precedence import feeding
from flowccl.schedule.generation.queue_kernels import QueuedJobs
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.timing import replay
from flowccl.schedule.transform import left_shift, prune
from flowccl.topology.routes import Routes, shape_on
from flowccl.topology.topology import Topology

I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Jobs:
    """All jobs of a demand, which can be scheduled in any order in which every job is fed before it starts.

    Job i is fed when hop `feeding_hop[i]` of the route of job `parent[i]` has arrived; -1 at a source. `order` lists
    jobs after those that feed them.
    """

    topology: Topology
    demand: Demand
    routes: Routes
    chunk: NDArray[np.int32]
    route: NDArray[np.int32]
    size_bytes: I64
    parent: I64
    feeding_hop: I64
    order: I64
    method: str = "reroute"

    @cached_property
    def queued(self) -> QueuedJobs:
        """The jobs as transfers of the list scheduling; each link carries one of them at a time."""
        count, none = len(self.chunk), np.zeros(len(self.chunk), dtype=np.int64)
        timing = replay(self.topology, shape_on(self.topology, self.routes), self.size_bytes, self.route, none)
        hop_ptr = np.searchsorted(timing.hop_transfer, np.arange(count + 1)).astype(np.int64)
        fed = np.argsort(self.parent, kind="stable")
        fed = fed[self.parent[fed] >= 0]
        ptr = pointers(np.bincount(self.parent[fed], minlength=count))
        hop = hop_ptr[self.parent[fed]] + self.feeding_hop[fed]
        lag = timing.hop_to_ps[hop] + self.topology.link_latency_ps[timing.hop_link[hop]]
        hops = hop_ptr, timing.hop_link, timing.hop_from_ps, timing.hop_to_ps
        return jobs_of((ptr, fed.astype(np.int64), lag), hops, np.arange(len(self.topology.links) + 1))

    @cached_property
    def tail(self) -> I64:
        """The time from the start of each job until the last node behind it has the chunk, without waits."""
        jobs, takes = self.queued, np.zeros(len(self.chunk), dtype=np.int64)
        of = np.repeat(np.arange(len(takes)), np.diff(jobs.hop_ptr))
        np.maximum.at(takes, of, jobs.hop_to + self.topology.link_latency_ps[jobs.hop_link])
        return longest_tails(self.order[::-1].copy(), jobs.ptr, jobs.after, jobs.lag, takes)

    def schedule(self, random: np.random.Generator, noise: float, give_up_ps: int) -> Schedule | None:
        """Schedule the jobs, the longest tail first, with noise; None if the finish is not below `give_up_ps`."""
        key = self.tail * (1 + noise * random.uniform(-1, 1, len(self.tail))) if noise else self.tail
        return self.in_order(-key, give_up_ps)

    def in_order(self, key: NDArray[np.floating[Any]] | I64, give_up_ps: int) -> Schedule | None:
        """Schedule the jobs: of the jobs that wait for a link, the one with the least key goes first."""
        raw = self.dispatched(key, give_up_ps)
        return None if raw is None else left_shift(prune(raw))

    def dispatched(self, key: NDArray[np.floating[Any]] | I64, give_up_ps: int) -> Schedule | None:
        """The same without pruning and left-shifting."""
        jobs = self.queued if give_up_ps == NEVER else self.queued._replace(latest=give_up_ps - 1 - self.tail)
        start = in_order(np.argsort(key, kind="stable"), jobs)
        return None if start is None else self.at(start)

    def at(self, start_ps: I64) -> Schedule:
        """The schedule of the jobs with these starts."""
        flags = np.zeros(len(self.chunk), dtype=np.bool_)
        columns = self.chunk, self.route, start_ps, flags
        return Schedule(self.topology, self.demand, self.routes, *columns, self.method)


def jobs_on_trees(topology: Topology, demand: Demand, trees: ChunkTrees) -> Jobs:
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
    routes, route = Routes(first, trees.link[order]).distinct()
    feeder = parent[job_roots]
    parent_job, feeding_hop = (np.where(feeder < 0, -1, of[np.maximum(feeder, 0)]) for of in (job_of_hop, place))
    chunk = chunk_of_hop[job_roots].astype(np.int32)
    columns = chunk, route, demand.chunk_bytes[chunk], parent_job, feeding_hop
    return Jobs(topology, demand, routes, *columns, np.arange(len(chunk), dtype=np.int64))


def _roots(parent: I64, starts: NDArray[np.bool_]) -> I64:
    """For each hop, the hop that leaves the storing node above it."""
    root = np.where(starts, np.arange(len(parent)), parent)
    while True:
        above = np.where(starts[root], root, root[root])
        if np.array_equal(above, root):
            return root
        root = above


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
    parent, feeding_hop = np.full((2, jobs), -1, dtype=np.int64)
    parent[timing.root_transfer[fed]] = timing.end_transfer[end_of]
    ends_before = pointers(np.diff(schedule.shape.end_ptr)[schedule.route])
    route = schedule.route[timing.end_transfer[end_of]]
    which = schedule.shape.end_ptr[route] + end_of - ends_before[timing.end_transfer[end_of]]
    feeding_hop[timing.root_transfer[fed]] = schedule.shape.end_hop[which] - schedule.routes.ptr[route]
    columns = schedule.chunk, schedule.route, schedule.demand.chunk_bytes[schedule.chunk]
    order = np.argsort(schedule.start_ps, kind="stable")
    machine = schedule.topology, schedule.demand, schedule.routes
    return Jobs(*machine, *columns, parent, feeding_hop, order, schedule.method)
