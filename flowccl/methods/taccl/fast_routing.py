"""Stage 1 without a solver: each chunk takes the quickest ways, and what is already on the links makes them longer."""

import heapq
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import NothingFoundError
from flowccl.methods.taccl.choices import Ways


def quick_ways(ways: Ways) -> NDArray[np.bool_]:
    """Pairs that bring every chunk to its destinations, alike for all pairs of an orbit."""
    return _Search(ways).run()


class _Search:
    """Chunks in turn; a chunk's tree grows by the cheapest way to its next destination."""

    def __init__(self, ways: Ways) -> None:
        self.ways = ways
        self.orbit = ways.pair_orbits[0]
        self.chosen = np.zeros(len(ways.chunk), dtype=np.bool_)
        self.load = [0] * ways.resources
        pair, resource, held = ways.loads
        self.hops: list[list[tuple[int, int]]] = [[] for _ in ways.chunk]
        for p, k, ps in zip(pair.tolist(), resource.tolist(), held.tolist(), strict=True):
            self.hops[p].append((k, ps))
        order = np.argsort(self.orbit, kind="stable")
        bounds = np.searchsorted(self.orbit[order], np.arange(int(self.orbit.max(initial=-1)) + 2))
        self.members = [order[a:b] for a, b in pairwise(bounds)]
        src, dst = ways.logical.src[ways.arc].tolist(), ways.logical.dst[ways.arc].tolist()
        self.src, self.dst, self.takes = src, dst, ways.takes_ps.tolist()
        self.chunk_of = ways.chunk.tolist()
        self.out: dict[tuple[int, int], list[int]] = {}
        for p, (c, a) in enumerate(zip(self.chunk_of, src, strict=True)):
            self.out.setdefault((c, a), []).append(p)

    def run(self) -> NDArray[np.bool_]:
        demand = self.ways.demand
        left = [set(demand.destinations(chunk).tolist()) for chunk in range(len(demand))]
        arrival: list[dict[int, int]] = [{int(demand.source[chunk]): 0} for chunk in range(len(demand))]
        while any(left):
            for chunk in range(len(demand)):
                if left[chunk]:
                    self._reach_next(chunk, left, arrival)
        return self.chosen

    def _reach_next(self, chunk: int, left: list[set[int]], arrival: list[dict[int, int]]) -> None:
        """One more destination, and with it those of all chunks that go the same way."""
        for pair in self._cheapest_way(chunk, left[chunk], arrival[chunk]):
            for image in self.members[self.orbit[pair]].tolist():
                c = self.chunk_of[image]
                if self.dst[image] in arrival[c]:
                    continue
                self.chosen[image] = True
                arrival[c][self.dst[image]] = arrival[c].get(self.src[image], 0) + self.takes[image]
                left[c].discard(self.dst[image])
                for resource, ps in self.hops[image]:
                    self.load[resource] += ps

    def _cheapest_way(self, chunk: int, wanted: set[int], arrival: dict[int, int]) -> list[int]:
        """Pairs from the chunk's tree to the destination that is cheapest to reach (Dijkstra)."""
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
                way = []
                while node in by:
                    way.append(by[node])
                    node = self.src[by[node]]
                return way[::-1]
            for pair in self.out.get((chunk, node), ()):
                end = self.dst[pair]
                if end in arrival:
                    continue
                busy = max(self.load[resource] for resource, _ in self.hops[pair])
                reach = max(cost, busy) + self.takes[pair]
                if reach < best.get(end, float("inf")):
                    best[end], by[end] = reach, pair
                    heapq.heappush(heap, (reach, end))
        raise NothingFoundError("quick ways found none to a destination; another reach in the sketch may help")
