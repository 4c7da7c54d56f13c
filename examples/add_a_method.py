"""Add a synthesis method and let `auto` use it: CONTRIBUTING.md explains each step.

The method sends every chunk along the shortest paths from its source. Each step tries another random order of chunks.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from flowccl import Schedule, left_shift, machine, prune, synthesize, verify
from flowccl.methods.method_info import MethodInfo
from flowccl.methods.registry import register
from flowccl.problem import Problem
from flowccl.search.context import SearchContext
from flowccl.topology.neighbours import neighbours


def shortest_paths(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Yield one schedule per step; the caller keeps the best one."""
    topology, demand = problem.topology, problem.demand
    near = neighbours(topology, 1)  # pairs of GPUs that a link or a route through switches connects
    cost = csr_matrix((near.pair_cost_ps(float(demand.chunk_bytes.mean())), (near.src, near.end)))
    distance, before = dijkstra(cost, return_predecessors=True)
    pairs = zip(near.src.tolist(), near.end.tolist(), strict=True)
    links = {pair: near.routes.links(int(near.pair_ptr[i])) for i, pair in enumerate(pairs)}
    random = np.random.default_rng(context.seed)
    context.notes["shortest-paths"] = "ran"  # notes appear in `Result.details`
    while not context.budget.over():
        transfers = []
        for chunk in random.permutation(len(demand)).tolist():
            root = int(demand.source[chunk])
            for node in np.argsort(distance[root], kind="stable").tolist():  # nearest first
                if node != root and np.isfinite(distance[root, node]):
                    transfers.append((chunk, links[int(before[root, node]), node], 0))
        schedule = Schedule.from_transfers(topology, demand, transfers, "shortest-paths")
        duration = schedule.timing.end_arrival_ps  # one after the other is valid; left_shift then removes idle time
        yield left_shift(prune(replace(schedule, start_ps=np.cumsum(duration) - duration)))


register(
    MethodInfo(
        name="shortest-paths",
        load=shortest_paths,
        summary="every chunk takes the shortest paths from its source",
        in_auto=lambda problem: problem.is_plain,
    )
)


def main() -> None:
    for method in ("shortest-paths", "auto"):
        result = synthesize(machine("torus:3x3"), "allreduce", 900_000, method=method, steps=60)
        print(f"{method}: {result.schedule.finish_us:.2f} us by {result.schedule.method}, gap {result.gap:.1%}")
        assert verify(result.schedule) == []
        assert result.details["shortest-paths"] == "ran"  # `auto` ran it too


if __name__ == "__main__":
    main()
