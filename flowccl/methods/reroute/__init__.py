"""Rip-up and reroute, then job-shop scheduling.

1. Routing. Every chunk gets a tree through the machine (a path, if it has one destination). Then, sweep by sweep, each
   tree is ripped up and replaced by the cheapest tree under the current prices, which grow with the load of a link. The
   resulting trees balance the load of the links nearly as well as the fluid optimum.
2. Scheduling. The hops of the trees are the jobs of a job shop. Where several chunks wait for a link, the one with the
   longest tail goes first, with noise. Many runs follow, some of them with new trees.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.reroute.steiner_kernels import RoutingGraph, rip_up_and_reroute
from flowccl.portable import power_of_ten
from flowccl.problem import Problem
from flowccl.schedule.generation.chunk_trees import ChunkTrees
from flowccl.schedule.generation.job_shop import Jobs, jobs_from, jobs_on_trees
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.topology import Topology

_STEEPNESS = (0.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 64.0, 128.0)  # of the prices of loaded links, sweep by sweep
_RUNS_PER_TREES = 8
_JOBS, _MOST_RUNS = 30_000, 16  # a step schedules about this many jobs, in at most this many runs


def reroute(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Run again and again; after a few runs without improvement, with new trees."""
    topology, demand = problem.topology, problem.demand
    if demand.reduces:
        raise DemandError(f"method reroute needs chunks with one source each; {demand.collective} reduces several")
    search = RerouteSearch(topology, demand, context.seed)
    runs = 1  # report a first schedule early
    while True:
        adopted = search.adopt(context.incumbents.schedules.get(problem))
        found = next(
            (one for one in (search.step(context.incumbents.best_ps) for _ in range(runs)) if one is not None), None
        )
        if found is not None:
            context.incumbents.report(found)
        yield found if found is not None else adopted
        runs = search.runs


@dataclass
class RerouteSearch:
    """The state of the search: the current trees, the best trees, and the noise that led to the best order."""

    topology: Topology
    demand: Demand
    seed: int

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.copies = not self.demand.is_unicast
        self.best_ps: int = NEVER
        self.best: tuple[Jobs, float] | None = None
        self.jobs: Jobs | None = None
        self.idle = 0

    def adopt(self, other: Schedule | None) -> Schedule | None:
        """Continue with the trees of a better schedule of another search; return it if it is adopted.

        The search first routes trees of its own, since no other search balances the load of the links.
        """
        if other is None or self.best is None or other.finish_ps >= self.best_ps:
            return None
        if np.any(np.diff(other.shape.root_ptr) > 1) or other.rate_GBps.any():
            return None
        self.jobs = replace(jobs_from(other), method="reroute")
        self.best, self.best_ps, self.idle = (self.jobs, 0.0), other.finish_ps, 0
        return other

    def step(self, best_ps: float = float("inf")) -> Schedule | None:
        """Run once; return the schedule if it is the best so far. Another search has one that takes `best_ps`."""
        random = self.random
        if self.jobs is None or self.idle >= _RUNS_PER_TREES:
            again = self.best is not None and random.random() < 0.3
            self.jobs = self.best[0] if again and self.best is not None else self._new_jobs(best_ps)
            self.idle = 0
            if self.jobs is None:
                return None
        noise = 0.0 if self.idle == 0 else power_of_ten(float(random.uniform(-2.5, -0.3)))
        schedule = self.jobs.schedule(random, noise, self.best_ps)
        if schedule is None or schedule.finish_ps >= self.best_ps:
            self.idle += 1
            return None
        self.best_ps, self.best, self.idle = schedule.finish_ps, (self.jobs, noise), 0
        return schedule

    @property
    def runs(self) -> int:
        """Number of runs for a step that takes about as long as the steps of other searches."""
        jobs = len(self.best[0].chunk) if self.best is not None else len(self.demand.destination_rank)
        return min(max(_JOBS // jobs, 1), _MOST_RUNS)

    def _new_jobs(self, best_ps: float) -> Jobs | None:
        """New trees, from least cost to shortest paths, with random ties.

        None if they occupy a link for so long that no order can beat the best schedule.
        """
        random = self.random
        depth_weight = float(random.choice([0.0, 0.1, 0.3, 1.0])) if self.copies else 0.0
        trees = balanced_trees(self.topology, self.demand, random, depth_weight)
        most_ps = min(self.best_ps, best_ps) if self.best is not None else float("inf")
        carried = np.bincount(trees.link, np.repeat(self.demand.chunk_bytes, np.diff(trees.ptr)))
        busy_ps = carried * 1000.0 / self.topology.link_GBps[: len(carried)]
        return jobs_on_trees(self.topology, self.demand, trees) if busy_ps.max() < most_ps else None


def balanced_trees(topology: Topology, demand: Demand, random: np.random.Generator, depth_weight: float) -> ChunkTrees:
    """A tree per chunk by rip-up and reroute with ever steeper prices: the sweep with the smallest maximum load."""
    links, size = len(topology.links), demand.chunk_bytes
    busy = float(size.mean()) * 1000.0 / topology.link_GBps
    latency = topology.link_latency_ps.astype(np.float64)
    graph = RoutingGraph(
        *topology.out_links,
        topology.link_src,
        topology.link_dst,
        topology.link_GBps,
        busy,
        latency,
        topology.stores,
        topology.copies,
    )
    load = np.zeros(links)
    none = np.zeros(0, dtype=np.int32)
    trees = ChunkTrees(np.zeros(len(demand) + 1, dtype=np.int64), none, none)
    best, least = trees, np.inf
    full = negligible = _latency_scale_ps(topology, latency)  # smaller loads do not matter
    for steepness in _STEEPNESS:
        order = random.permutation(len(demand))
        noise = random.uniform(0.999, 1.001, links)  # breaks ties differently in every sweep
        graph = graph._replace(busy=busy * noise, latency=latency * noise)
        ranks = (demand.source, demand.destination_ptr, demand.destination_rank)
        trees = rip_up_and_reroute(graph, *ranks, size, order, steepness, depth_weight, full, load, trees)
        full = max(float(load.max()), negligible)
        if full < least:
            best, least = trees, full
    return best


def _latency_scale_ps(topology: Topology, latency: NDArray[np.float64]) -> float:
    """The largest latency from the first GPU to any node, and at least four times the largest latency of a link."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import dijkstra

    count = len(topology.nodes)
    graph = csr_matrix((latency + 1.0, (topology.link_src, topology.link_dst)), (count, count))
    away = np.asarray(dijkstra(graph, indices=[0]))
    return max(float(away[np.isfinite(away)].max()), float(latency.max()) * 4, 1.0)
