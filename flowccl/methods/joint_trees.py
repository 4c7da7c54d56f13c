"""Sums and copies planned together: each chunk is added up over one tree and copied over another, and all share links.

1. Ways. The tree that adds a chunk up is a tree that spreads it on the reversed machine, so both are grown by the same
   rip-up and reroute as in `routed`, with one load for both: a link that is full of sums is dear for copies. Where a
   chunk is added up (its owner) hardly matters for the load, since any node of a tree can be its root; owners are all
   ranks in turn, or those in the middle of the machine.
2. Order. What has the longest way to go goes first, but then all sums would go before all copies and leave links idle;
   so chunks also go in turn, more or less. Many runs follow, with noise, now and then with new trees.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.methods.reroute.tree_kernels import Graph, Trees, rip_up_and_reroute
from flowccl.problem import Problem
from flowccl.schedule.generation.job_shop import jobs_of
from flowccl.schedule.generation.list_scheduling import ListScheduler
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import concatenate, reverse
from flowccl.search.context import SearchContext
from flowccl.topology.neighbours import neighbours
from flowccl.topology.topology import Topology

_STEEP = (0.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 64.0, 128.0)  # how dear full links are, sweep by sweep
_RUNS_PER_WAYS = 6
_TURNS = (0.0, 0.25, 1.0)  # weights of the turns of chunks
_SHAPES = ((0.3, True), (1.0, False), (0.0, True), (1.0, True), (0.3, False), (0.1, True))  # depth of trees, owners
_NEVER = np.iinfo(np.int64).max


def joint_trees(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """One run after the other, for ever; new trees after every few runs that did not help."""
    topology, demand = problem.topology, problem.demand
    search = JointTreesSearch(topology, demand, context.seed)
    while True:
        yield search.step()


@dataclass
class JointTreesSearch:
    """The state of the search: the trees now in use, and the best finish."""

    topology: Topology
    demand: Demand
    seed: int

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.best_ps: int = _NEVER
        self.ways: ListScheduler | None = None
        self.turn = 0
        self.idle = 0

    def step(self) -> Schedule | None:
        """One run: a schedule if it is the best so far. The first on new trees tries several weights of the turns."""
        fresh = self.ways is None or self.idle >= _RUNS_PER_WAYS
        if self.ways is None or fresh:
            self.ways, self.idle = self._new_ways(), 0
        if fresh:
            runs = [self._run(self.ways, turns, 0.0) for turns in _TURNS]
        else:
            noise = float(10 ** self.random.uniform(-2.5, -0.3))
            runs = [self._run(self.ways, float(self.random.choice(_TURNS)), noise)]
        found = min((run for run in runs if run is not None), key=lambda run: run.finish_ps, default=None)
        if found is None or found.finish_ps >= self.best_ps:
            self.idle += 1
            return None
        self.best_ps, self.idle = found.finish_ps, 1
        return found

    def _run(self, ways: ListScheduler, turns: float, noise: float) -> Schedule | None:
        """The longest way first, with noise; `turns` weighs when a chunk would go if all went one after the other."""
        demand, chunk = self.demand, ways.schedule.chunk
        block, piece = np.divmod(np.arange(len(demand)), demand.pieces)
        turn = np.argsort(np.lexsort((block, piece)))
        whole_ps = ways.busiest_ps * turns / len(demand)
        way = ways.tail_ps * (1 + noise * self.random.uniform(-1, 1, len(ways.tail_ps)))
        return ways.in_order_of(turn[chunk] * whole_ps - way)

    def _new_ways(self) -> ListScheduler:
        """Trees of another shape each time: from least cost to shortest ways, owners in the middle or all in turn."""
        deep, middle = _SHAPES[self.turn % len(_SHAPES)]
        self.turn += 1
        return ListScheduler(self._joined(self._owners(middle=middle), deep))

    def _owners(self, *, middle: bool) -> NDArray[np.int32]:
        """A destination of each chunk: all of them in turn, or only those nearest to all sources and destinations."""
        demand, distance = self.demand, neighbours(self.topology, 1).distance_ps(float(self.demand.chunk_bytes.mean()))
        owner = np.empty(len(demand), dtype=np.int32)
        for chunk in range(len(demand)):
            wants = demand.destinations(chunk)
            if middle and len(wants) > 1:
                away = distance[np.ix_(demand.sources(chunk), wants)].max(axis=0)
                away = away + distance[np.ix_(wants, wants)].max(axis=1)
                wants = wants[away <= away.min() * 1.01]
            owner[chunk] = wants[(chunk // demand.pieces) % len(wants)]
        return owner

    def _joined(self, owners: NDArray[np.int32], deep: float) -> Schedule:
        """Both halves over trees that share the links, one after the other."""
        (first, summed), (second, sent) = self.demand.halves_at(owners)
        backward = first.backward
        there, back = shared_trees(self.topology, second, backward, self.random, deep)
        up = _dispatched(self.topology.reversed, backward, back, self.random)
        up = replace(reverse(up, first, reduce=True), topology=self.topology)
        up = replace(up, demand=self.demand, chunk=summed[up.chunk].astype(np.int32), method="joint-trees")
        down = _dispatched(self.topology, second, there, self.random)
        down = replace(down, demand=self.demand, chunk=sent[down.chunk].astype(np.int32), method="joint-trees")
        return concatenate(up, down, self.demand)


def _dispatched(topology: Topology, demand: Demand, trees: Trees, random: np.random.Generator) -> Schedule:
    found = jobs_of(topology, demand, trees).schedule(random, 0.0, _NEVER)
    assert found is not None  # there is no finish at which to give up
    return found


def shared_trees(
    topology: Topology, there: Demand, back: Demand, random: np.random.Generator, deep: float
) -> tuple[Trees, Trees]:
    """A tree per chunk of each demand, the second's on the reversed machine; of all sweeps, the least full links."""
    machines, demands = (topology, topology.reversed), (there, back)
    noise = random.uniform(0.999, 1.001, len(topology.links))
    latency = topology.link_latency_ps.astype(np.float64)
    size = float(np.concatenate((there.chunk_bytes, back.chunk_bytes)).mean())
    graphs = [_graph(machine, size * 1000.0 / topology.link_GBps * noise, latency * noise) for machine in machines]
    none = np.zeros(0, dtype=np.int32)
    trees = [Trees(np.zeros(len(demand) + 1, dtype=np.int64), none, none) for demand in demands]
    load = np.zeros(len(topology.links))
    best, least = (trees[0], trees[1]), np.inf
    full = some_time = max(float(latency.max()) * 4, 1.0)  # a load that is small beside the latencies does not matter
    for steep in _STEEP:
        for i, (graph, demand) in enumerate(zip(graphs, demands, strict=True)):
            ranks = (demand.source, demand.destination_ptr, demand.destination_rank)
            order = random.permutation(len(demand))
            trees[i] = rip_up_and_reroute(graph, *ranks, demand.chunk_bytes, order, steep, deep, full, load, trees[i])
        full = max(float(load.max()), some_time)
        if full < least:
            best, least = (trees[0], trees[1]), full
    return best


def _graph(topology: Topology, hold: NDArray[np.float64], latency: NDArray[np.float64]) -> Graph:
    return Graph(
        *topology.out_links,
        topology.link_src,
        topology.link_dst,
        topology.link_GBps,
        hold,
        latency,
        topology.stores,
        topology.copies,
    )
