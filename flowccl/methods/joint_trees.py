"""Joint reduce and broadcast trees: each chunk is reduced over one tree and broadcast over another.

1. Routing. A reduce tree is a broadcast tree of the reversed machine. The rip-up and reroute of method `reroute` grows
   the trees of both phases under one load: the price of a link that carries many reductions is high for broadcasts too.
   The owner of a chunk is the root of both trees. The choice hardly matters for the load, since any node of a tree can
   be its root: the owners are all ranks in turn, or only central ranks.
2. Scheduling. Longest tail first alone would run all reductions before all broadcasts and leave links idle, so the
   priority also includes the position of the chunk. Many runs with noise follow, some of them with new trees.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER
from flowccl.demand.demand import Demand
from flowccl.methods.reroute.steiner_kernels import RoutingGraph, rip_up_and_reroute
from flowccl.portable import power_of_ten
from flowccl.problem import Problem
from flowccl.schedule.generation.chunk_trees import ChunkTrees
from flowccl.schedule.generation.job_shop import jobs_of
from flowccl.schedule.generation.list_scheduling import ListScheduler
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import concatenate, reverse
from flowccl.search.context import SearchContext
from flowccl.topology.neighbours import neighbours
from flowccl.topology.topology import Topology

_STEEPNESS = (0.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 64.0, 128.0)  # of the prices of loaded links, sweep by sweep
_RUNS_PER_TREES = 6
_POSITION_WEIGHTS = (0.0, 0.25, 1.0)  # weights of the positions of chunks in the priority
_SHAPES = ((0.3, True), (1.0, False), (0.0, True), (1.0, True), (0.3, False), (0.1, True))  # depth weight, central


def joint_trees(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Run again and again; after a few runs without improvement, with new trees."""
    topology, demand = problem.topology, problem.demand
    search = JointTreesSearch(topology, demand, context.seed)
    while True:
        yield search.step()


@dataclass
class JointTreesSearch:
    """The state of the search: the current trees, and the best completion time."""

    topology: Topology
    demand: Demand
    seed: int

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.best_ps: int = NEVER
        self.scheduler: ListScheduler | None = None
        self.turn = 0
        self.idle = 0

    def step(self) -> Schedule | None:
        """Run once, or with several position weights on new trees; return the schedule if it is the best so far."""
        fresh = self.scheduler is None or self.idle >= _RUNS_PER_TREES
        if self.scheduler is None or fresh:
            self.scheduler, self.idle = self._new_scheduler(), 0
        if fresh:
            runs = [self._run(self.scheduler, position_weight, 0.0) for position_weight in _POSITION_WEIGHTS]
        else:
            noise = power_of_ten(float(self.random.uniform(-2.5, -0.3)))
            runs = [self._run(self.scheduler, float(self.random.choice(_POSITION_WEIGHTS)), noise)]
        found = min((run for run in runs if run is not None), key=lambda run: run.finish_ps, default=None)
        if found is None or found.finish_ps >= self.best_ps:
            self.idle += 1
            return None
        self.best_ps, self.idle = found.finish_ps, 1
        return found

    def _run(self, scheduler: ListScheduler, position_weight: float, noise: float) -> Schedule | None:
        """Longest tail first, with noise; `position_weight` weighs the position of the chunk."""
        demand, chunk = self.demand, scheduler.schedule.chunk
        block, piece = np.divmod(np.arange(len(demand)), demand.pieces)
        turn = np.argsort(np.lexsort((block, piece)))
        step_ps = scheduler.busiest_ps * position_weight / len(demand)
        tail = scheduler.tail_ps * (1 + noise * self.random.uniform(-1, 1, len(scheduler.tail_ps)))
        return scheduler.in_order_of(turn[chunk] * step_ps - tail)

    def _new_scheduler(self) -> ListScheduler:
        """New trees: from least cost to shortest paths, with central owners or all ranks in turn."""
        depth_weight, central = _SHAPES[self.turn % len(_SHAPES)]
        self.turn += 1
        return ListScheduler(self._concatenated(self._owners(central=central), depth_weight))

    def _owners(self, *, central: bool) -> NDArray[np.int32]:
        """The owner of each chunk: all its destinations in turn, or only those nearest to its other ranks."""
        demand, distance = self.demand, neighbours(self.topology, 1).distance_ps(float(self.demand.chunk_bytes.mean()))
        owner = np.empty(len(demand), dtype=np.int32)
        for chunk in range(len(demand)):
            wants = demand.destinations(chunk)
            if central and len(wants) > 1:
                away = distance[np.ix_(demand.sources(chunk), wants)].max(axis=0)
                away = away + distance[np.ix_(wants, wants)].max(axis=1)
                wants = wants[away <= away.min() * 1.01]
            owner[chunk] = wants[(chunk // demand.pieces) % len(wants)]
        return owner

    def _concatenated(self, owners: NDArray[np.int32], depth_weight: float) -> Schedule:
        """Both halves, concatenated, over trees that share the links."""
        (first, reduced), (second, copied) = self.demand.halves_at(owners)
        backward = first.backward
        distribution, reduction = shared_trees(self.topology, second, backward, self.random, depth_weight)
        up = _scheduled(self.topology.reversed, backward, reduction, self.random)
        up = replace(reverse(up, first, reduce=True), topology=self.topology)
        up = replace(up, demand=self.demand, chunk=reduced[up.chunk].astype(np.int32), method="joint-trees")
        down = _scheduled(self.topology, second, distribution, self.random)
        down = replace(down, demand=self.demand, chunk=copied[down.chunk].astype(np.int32), method="joint-trees")
        return concatenate(up, down, self.demand)


def _scheduled(topology: Topology, demand: Demand, trees: ChunkTrees, random: np.random.Generator) -> Schedule:
    found = jobs_of(topology, demand, trees).schedule(random, 0.0, NEVER)
    assert found is not None  # without a cutoff there is always a schedule
    return found


def shared_trees(
    topology: Topology, distribution: Demand, reduction: Demand, random: np.random.Generator, depth_weight: float
) -> tuple[ChunkTrees, ChunkTrees]:
    """A tree per chunk of each demand, the second on the reversed machine: the sweep with the smallest maximum load."""
    machines, demands = (topology, topology.reversed), (distribution, reduction)
    noise = random.uniform(0.999, 1.001, len(topology.links))
    latency = topology.link_latency_ps.astype(np.float64)
    size = float(np.concatenate((distribution.chunk_bytes, reduction.chunk_bytes)).mean())
    graphs = [_graph(machine, size * 1000.0 / topology.link_GBps * noise, latency * noise) for machine in machines]
    none = np.zeros(0, dtype=np.int32)
    trees = [ChunkTrees(np.zeros(len(demand) + 1, dtype=np.int64), none, none) for demand in demands]
    load = np.zeros(len(topology.links))
    best, least = (trees[0], trees[1]), np.inf
    full = negligible = max(float(latency.max()) * 4, 1.0)  # smaller loads do not matter
    for steepness in _STEEPNESS:
        for i, (graph, demand) in enumerate(zip(graphs, demands, strict=True)):
            ranks = (demand.source, demand.destination_ptr, demand.destination_rank)
            order = random.permutation(len(demand))
            trees[i] = rip_up_and_reroute(
                graph, *ranks, demand.chunk_bytes, order, steepness, depth_weight, full, load, trees[i]
            )
        full = max(float(load.max()), negligible)
        if full < least:
            best, least = (trees[0], trees[1]), full
    return best


def _graph(topology: Topology, busy: NDArray[np.float64], latency: NDArray[np.float64]) -> RoutingGraph:
    return RoutingGraph(
        *topology.out_links,
        topology.link_src,
        topology.link_dst,
        topology.link_GBps,
        busy,
        latency,
        topology.stores,
        topology.copies,
    )
