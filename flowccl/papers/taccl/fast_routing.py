"""Stage 1 without a solver: chunks take shortest paths in turn, and the load of a link delays later chunks."""

import heapq
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import NothingFoundError
from flowccl.papers.taccl.choices import RouteChoices


def quick_routes(choices: RouteChoices) -> NDArray[np.bool_]:
    """Return pairs that bring every chunk to its destinations; pairs of one orbit are chosen together."""
    return _QuickRouter(choices).run()


class _QuickRouter:
    """Routes chunks in turn; the tree of a chunk grows by the cheapest path to its next destination."""

    def __init__(self, choices: RouteChoices) -> None:
        self.choices = choices
        self.orbit = choices.pair_orbits[0]
        self.chosen = np.zeros(len(choices.chunk), dtype=np.bool_)
        self.load = [0] * choices.resources
        pair, resource, busy = choices.loads
        self.hops: list[list[tuple[int, int]]] = [[] for _ in choices.chunk]
        for p, k, ps in zip(pair.tolist(), resource.tolist(), busy.tolist(), strict=True):
            self.hops[p].append((k, ps))
        order = np.argsort(self.orbit, kind="stable")
        bounds = np.searchsorted(self.orbit[order], np.arange(int(self.orbit.max(initial=-1)) + 2))
        self.members = [order[a:b] for a, b in pairwise(bounds)]
        src, dst = choices.logical.src[choices.arc].tolist(), choices.logical.dst[choices.arc].tolist()
        self.src, self.dst, self.takes = src, dst, choices.takes_ps.tolist()
        self.chunk_of = choices.chunk.tolist()
        self.out: dict[tuple[int, int], list[int]] = {}
        for p, (c, a) in enumerate(zip(self.chunk_of, src, strict=True)):
            self.out.setdefault((c, a), []).append(p)

    def run(self) -> NDArray[np.bool_]:
        demand = self.choices.demand
        left = [set(demand.destinations(chunk).tolist()) for chunk in range(len(demand))]
        arrival: list[dict[int, int]] = [{int(demand.source[chunk]): 0} for chunk in range(len(demand))]
        while any(left):
            for chunk in range(len(demand)):
                if left[chunk]:
                    self._reach_next(chunk, left, arrival)
        return self.chosen

    def _reach_next(self, chunk: int, left: list[set[int]], arrival: list[dict[int, int]]) -> None:
        """Route a chunk to one more destination, and its images under the symmetries with it."""
        for pair in self._cheapest_path(chunk, left[chunk], arrival[chunk]):
            for image in self.members[self.orbit[pair]].tolist():
                c = self.chunk_of[image]
                if self.dst[image] in arrival[c]:
                    continue
                self.chosen[image] = True
                arrival[c][self.dst[image]] = arrival[c].get(self.src[image], 0) + self.takes[image]
                left[c].discard(self.dst[image])
                for resource, ps in self.hops[image]:
                    self.load[resource] += ps

    def _cheapest_path(self, chunk: int, wanted: set[int], arrival: dict[int, int]) -> list[int]:
        """Pairs from the tree of the chunk to the destination that is cheapest to reach (Dijkstra)."""
        best = {node: float(at) for node, at in arrival.items()}
        by: dict[int, int] = {}
        heap = [(cost, node) for node, cost in best.items()]
        heapq.heapify(heap)
        done: set[int] = set()
        while heap:
            cost, node = heapq.heappop(heap)
            if node in done:
                continue
            done.add(node)
            if node in wanted:
                path = []
                while node in by:
                    path.append(by[node])
                    node = self.src[by[node]]
                return path[::-1]
            for pair in self.out.get((chunk, node), ()):
                end = self.dst[pair]
                if end in arrival:
                    continue
                busy = max(self.load[resource] for resource, _ in self.hops[pair])
                reach = max(cost, busy) + self.takes[pair]
                if reach < best.get(end, float("inf")):
                    best[end], by[end] = reach, pair
                    heapq.heappush(heap, (reach, end))
        raise NothingFoundError("quick routing found no path to a destination; try another reach in the sketch")
