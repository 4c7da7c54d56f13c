"""Method `tree-exchange`: the search over dimensions of cubes, trees, and orders of their transfers."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import DemandError
from flowccl.methods.hierarchical.scheduling import PlanScheduler
from flowccl.methods.tree_exchange.cubes import Cubes, NeighbourGraph
from flowccl.methods.tree_exchange.forest_kernels import balanced_forests
from flowccl.methods.tree_exchange.plan import exchange_plan
from flowccl.portable import power_of_ten
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.units import busy_times_ps

_SWEEPS, _TRIED = 4, 5  # sweeps of the balancing, and cubes that are tried for a chunk in each
_RUNS_PER_FOREST = 8  # without improvement, before new trees are taken
_CLOSE = 1.1  # dimensions whose best schedule is within this factor of the best are searched on


def tree_exchange(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """First the dimensions of the cubes that may be best, then the best ones in turn, with noise and other trees."""
    topology, ranks = problem.topology, problem.allreduce_ranks
    if ranks is None or len(ranks) < int(topology.stores.sum()):
        raise DemandError("method tree-exchange is for allreduce among all GPUs of a machine without host memory")
    graph = NeighbourGraph.of(problem)
    random = np.random.default_rng(context.seed)
    searches = [ForestSearch(problem, graph, cubes, random) for cubes in graph.cubes()]
    searches.sort(key=lambda search: search.path_ps + search.load_ps)
    best: Schedule | None = None
    best_ps = float("inf")
    while any(search.may_improve(best_ps) for search in searches):
        for search in searches:
            if search.may_improve(best_ps):
                found = search.step()
                if found is not None and found.finish_ps < best_ps:
                    best, best_ps = found, found.finish_ps
                yield best


class ForestSearch:
    """The search with cubes of one dimension: trees, and orders of their transfers."""

    def __init__(self, problem: Problem, graph: NeighbourGraph, cubes: Cubes, random: np.random.Generator) -> None:
        self.problem, self.graph, self.cubes, self.random = problem, graph, cubes, random
        self.forest: PlanScheduler | None = None
        self.best_ps, self.idle = float("inf"), 0
        self.path_ps = graph.longest_path_ps(cubes)
        """The time of the longest path of a chunk."""
        self.load_ps = self._mean_load_ps()
        """How long a link is busy if all are equally."""

    def may_improve(self, best_ps: float) -> bool:
        """Whether a schedule before this time is possible, and none with these cubes was much later so far."""
        close = self.best_ps == float("inf") or self.best_ps <= _CLOSE * best_ps
        return close and max(self.path_ps, self.load_ps) < best_ps

    def step(self) -> Schedule | None:
        """New trees, or another order of the last ones; the schedule if it is the best so far."""
        noise = 0.0
        if self.forest is None or self.idle >= _RUNS_PER_FOREST:
            self.forest, self.idle = self._new_forest(), 0
        else:
            noise = power_of_ten(float(self.random.uniform(-2.5, -0.5)))
        by_chunk = noise * self.random.uniform(-1, 1, len(self.problem.demand))
        found = self.forest.longest_first(by_chunk[self.forest.chunk])
        self.idle += 1
        if found is None or found.finish_ps >= self.best_ps:
            return None
        self.best_ps, self.idle = found.finish_ps, 1
        return found

    def _mean_load_ps(self) -> int:
        nodes, roots = len(self.graph.beside), self.cubes.members.shape[1]
        transfers = 2 * (nodes - roots) + self.cubes.dimension * roots
        total_ps = transfers * len(self.problem.demand) * self._chunk_ps().min()
        return int(total_ps) // len(self.problem.topology.links)

    def _chunk_ps(self) -> NDArray[np.int64]:
        """The time of a chunk on each link."""
        topology, size = self.problem.topology, int(self.problem.demand.chunk_bytes.max())
        return busy_times_ps(np.full(len(topology.links), size), topology.link_GBps)

    def _new_forest(self) -> PlanScheduler:
        """New trees of all chunks, to be scheduled in several orders."""
        shape = (_SWEEPS, len(self.problem.demand), _TRIED)
        tried = self.random.integers(len(self.cubes.members), size=shape)
        cubes = (self.cubes.up, self.cubes.exchange, self.cubes.down)
        hop_ps, chunk_ps = int(self.graph.pairs.time_ps.min()), self._chunk_ps()
        slack_ps = max(hop_ps, self.load_ps - self.path_ps)
        chosen = balanced_forests(self.graph.pairs, *cubes, hop_ps, slack_ps, chunk_ps, tried)
        plan = exchange_plan(self.graph.near, self.cubes, *chosen, self.problem.demand.pieces)
        return PlanScheduler(self.problem.topology, self.problem.demand, plan, "tree-exchange")
