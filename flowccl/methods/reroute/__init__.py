"""Ways first, order second.

1. Ways. Every chunk gets a tree through the machine (a path, where it has one destination); then, sweep by sweep, each
   gives its tree up and takes the one that is cheapest now, where full links are dear. What comes out shares the links
   nearly as well as the fluid optimum.
2. Order. A list scheduler works the trees off: where several chunks wait for links, the one with the longest way to go
   goes first, with noise; many runs follow, now and then with new trees.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.reroute.tree_kernels import Graph, Trees, rip_up_and_reroute
from flowccl.problem import Problem
from flowccl.schedule.generation.job_shop import Jobs, jobs_from, jobs_of
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.topology import Topology

_STEEP = (0.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 64.0, 128.0)  # how dear full links are, sweep by sweep
_RUNS_PER_WAYS = 8
_JOBS, _MOST_RUNS = 30_000, 16  # about so many jobs are worked off in a step, in at most so many runs
_NEVER = np.iinfo(np.int64).max


def reroute(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """One run after the other, for ever; new trees after every few runs that did not help."""
    topology, demand = problem.topology, problem.demand
    if demand.reduces:
        raise DemandError(f"routed moves chunks with one source each; {demand.collective} adds up several")
    search = RerouteSearch(topology, demand, context.seed)
    runs = 1  # the first answer comes at once
    while True:
        heard = search.hear(context.incumbents.schedules.get(problem))
        found = next(
            (one for one in (search.step(context.incumbents.best_ps) for _ in range(runs)) if one is not None), None
        )
        if found is not None:
            context.incumbents.report(found)
        yield found if found is not None else heard
        runs = search.runs


@dataclass
class RerouteSearch:
    """The state of the search: the best trees, and the noise that gave the best order."""

    topology: Topology
    demand: Demand
    seed: int

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.copies = not self.demand.is_unicast
        self.best_ps: int = _NEVER
        self.best: tuple[Jobs, float] | None = None
        self.jobs: Jobs | None = None
        self.idle = 0

    def hear(self, other: Schedule | None) -> Schedule | None:
        """Go on with the ways of a better schedule that another search found; it then counts as found here.

        Not before there are ways of its own: to share the links well is what only this search does.
        """
        if other is None or self.best is None or other.finish_ps >= self.best_ps:
            return None
        if np.any(np.diff(other.shape.root_ptr) > 1):
            return None
        self.jobs = replace(jobs_from(other), method="reroute")
        self.best, self.best_ps, self.idle = (self.jobs, 0.0), other.finish_ps, 0
        return other

    def step(self, best_ps: float = float("inf")) -> Schedule | None:
        """One run: a schedule if it is the best so far; others have one that takes `best_ps`."""
        random = self.random
        if self.jobs is None or self.idle >= _RUNS_PER_WAYS:
            again = self.best is not None and random.random() < 0.3
            self.jobs = self.best[0] if again and self.best is not None else self._new_jobs(best_ps)
            self.idle = 0
            if self.jobs is None:
                return None
        noise = 0.0 if self.idle == 0 else float(10 ** random.uniform(-2.5, -0.3))
        schedule = self.jobs.schedule(random, noise, self.best_ps)
        if schedule is None or schedule.finish_ps >= self.best_ps:
            self.idle += 1
            return None
        self.best_ps, self.best, self.idle = schedule.finish_ps, (self.jobs, noise), 0
        return schedule

    @property
    def runs(self) -> int:
        """How many runs make a step that takes about as long as those of other searches."""
        jobs = len(self.best[0].chunk) if self.best is not None else len(self.demand.destination_rank)
        return min(max(_JOBS // jobs, 1), _MOST_RUNS)

    def _new_jobs(self, best_ps: float) -> Jobs | None:
        """Trees of another shape each time: from least cost to shortest ways, and with other ties.

        None where they fill a link for so long that no order of them can be the best.
        """
        random = self.random
        deep = float(random.choice([0.0, 0.1, 0.3, 1.0])) if self.copies else 0.0
        trees = balanced_trees(self.topology, self.demand, random, deep)
        most_ps = min(self.best_ps, best_ps) if self.best is not None else float("inf")
        carried = np.bincount(trees.link, np.repeat(self.demand.chunk_bytes, np.diff(trees.ptr)))
        busy_ps = carried * 1000.0 / self.topology.link_GBps[: len(carried)]
        return jobs_of(self.topology, self.demand, trees) if busy_ps.max() < most_ps else None


def balanced_trees(topology: Topology, demand: Demand, random: np.random.Generator, deep: float) -> Trees:
    """A tree per chunk: rip up and reroute, with prices that get steeper; the sweep with the least full link counts."""
    links, size = len(topology.links), demand.chunk_bytes
    hold = float(size.mean()) * 1000.0 / topology.link_GBps
    latency = topology.link_latency_ps.astype(np.float64)
    graph = Graph(
        *topology.out_links,
        topology.link_src,
        topology.link_dst,
        topology.link_GBps,
        hold,
        latency,
        topology.stores,
        topology.copies,
    )
    load = np.zeros(links)
    none = np.zeros(0, dtype=np.int32)
    trees = Trees(np.zeros(len(demand) + 1, dtype=np.int64), none, none)
    best, least = trees, np.inf
    full = some_time = _while_it_takes(topology, latency)  # a load that is small beside that does not matter
    for steep in _STEEP:
        order = random.permutation(len(demand))
        noise = random.uniform(0.999, 1.001, links)  # other ties in every sweep
        graph = graph._replace(hold=hold * noise, latency=latency * noise)
        ranks = (demand.source, demand.destination_ptr, demand.destination_rank)
        trees = rip_up_and_reroute(graph, *ranks, size, order, steep, deep, full, load, trees)
        full = max(float(load.max()), some_time)
        if full < least:
            best, least = trees, full
    return best


def _while_it_takes(topology: Topology, latency: NDArray[np.float64]) -> float:
    """Time that passes anyhow: to the farthest node from the first GPU, and on several links of one node."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import dijkstra

    count = len(topology.nodes)
    graph = csr_matrix((latency + 1.0, (topology.link_src, topology.link_dst)), (count, count))
    away = np.asarray(dijkstra(graph, indices=[0]))
    return max(float(away[np.isfinite(away)].max()), float(latency.max()) * 4, 1.0)
