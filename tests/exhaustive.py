"""The optimal schedule of a tiny problem by exhaustive search: branch and bound over the order of transfers.

Time is continuous. In an optimal schedule every transfer starts as early as possible after its predecessors on its
links, so the search appends transfers one by one in the order of their starts. A node receives a chunk at most once,
because later deliveries are useless. For machines of GPUs, memories and plain cut-through switches. If there is a
switch, all latencies must be equal: only then the order of starts is the order on every link.
"""

import math
from dataclasses import dataclass

from flowccl.demand.demand import Demand
from flowccl.topology.topology import Topology


class TooManyError(Exception):
    """The search has reached its limit of states."""


@dataclass(frozen=True)
class Move:
    """A route from one storing node to the next: links with the latency before each, and their rate."""

    src: int
    dst: int
    links: tuple[tuple[int, int], ...]
    GBps: float
    latency_ps: int


def best_finish_ps(topology: Topology, demand: Demand, at_most_ps: int, most_states: int = 100_000) -> int:
    """Return the optimal finish, or `at_most_ps` if no schedule is better."""
    return _Search(topology, demand, at_most_ps, most_states).run()


def _moves(topology: Topology) -> list[Move]:
    assert not topology.limits
    assert not topology.changes
    switches = [i for i, node in enumerate(topology.nodes) if not node.stores]
    assert all(not topology.nodes[i].copies and topology.nodes[i].crossing == "cut-through" for i in switches)
    assert not switches or len({link.latency_us for link in topology.links}) == 1
    moves = []
    todo: list[tuple[int, ...]] = [(k,) for k, link in enumerate(topology.links) if topology.nodes[link.src].stores]
    while todo:
        route = todo.pop()
        at = topology.links[route[-1]].dst
        if topology.nodes[at].stores:
            offset, hops = 0, []
            for k in route:
                hops.append((k, offset))
                offset += round(topology.links[k].latency_us * 1_000_000)
            rate = min(topology.links[k].bandwidth_GBps for k in route)
            src = topology.links[route[0]].src
            if src != at:
                moves.append(Move(src, at, tuple(hops), rate, offset))
            continue
        passed = {topology.links[k].dst for k in route}
        todo += [(*route, k) for k, link in enumerate(topology.links) if link.src == at and link.dst not in passed]
    return moves


class _Search:
    def __init__(self, topology: Topology, demand: Demand, at_most_ps: int, most_states: int) -> None:
        self.moves = _moves(topology)
        self.nodes = len(topology.nodes)
        self.links = topology.links
        self.size = demand.chunk_bytes.tolist()
        self.source = demand.source.tolist()
        self.wanted = [tuple(demand.destinations(c).tolist()) for c in range(len(demand))]
        self.busy = [[math.ceil(size * 1000.0 / m.GBps) for m in self.moves] for size in self.size]
        self.away = [self._distances(c) for c in range(len(demand))]
        self.into = [[m for m in self.moves if m.dst == node] for node in range(self.nodes)]
        self.best = at_most_ps
        self.left = most_states
        self.seen: set[tuple[object, ...]] = set()

    def run(self) -> int:
        have = tuple({source: 0} for source in self.source)
        self._branch(have, [0] * len(self.links), (0, -1, -1))
        return self.best

    def _distances(self, chunk: int) -> list[list[float]]:
        """The time of one chunk between any two nodes on idle links (Floyd-Warshall)."""
        away = [[0.0 if a == b else math.inf for b in range(self.nodes)] for a in range(self.nodes)]
        for k, m in enumerate(self.moves):
            away[m.src][m.dst] = min(away[m.src][m.dst], self.busy[chunk][k] + m.latency_ps)
        for via in range(self.nodes):
            for a in range(self.nodes):
                for b in range(self.nodes):
                    away[a][b] = min(away[a][b], away[a][via] + away[via][b])
        return away

    def _branch(self, have: tuple[dict[int, int], ...], free: list[int], last: tuple[int, int, int]) -> None:
        missing = [(c, d) for c, wanted in enumerate(self.wanted) for d in wanted if d not in have[c]]
        if not missing:
            self.best = min(self.best, max(have[c][d] for c, wanted in enumerate(self.wanted) for d in wanted))
            return
        if self._is_pruned(have, free, last[0], missing):
            return
        state = (tuple(tuple(sorted(h.items())) for h in have), tuple(max(f, last[0]) for f in free), last)
        if state in self.seen:
            return
        self.seen.add(state)
        self.left -= 1
        if self.left < 0:
            raise TooManyError
        for start, chunk, k in sorted(self._next_transfers(have, free, last)):
            move = self.moves[k]
            busy = self.busy[chunk][k]
            then = free.copy()
            for link, offset in move.links:
                then[link] = start + offset + busy
            got = {**have[chunk], move.dst: start + busy + move.latency_ps}
            self._branch((*have[:chunk], got, *have[chunk + 1 :]), then, (start, chunk, k))

    def _next_transfers(
        self, have: tuple[dict[int, int], ...], free: list[int], last: tuple[int, int, int]
    ) -> list[tuple[int, int, int]]:
        """The transfers that can be next: not before the last one, and at equal starts in the order of indices."""
        result = []
        for chunk, nodes in enumerate(have):
            for k, move in enumerate(self.moves):
                if move.src in nodes and move.dst not in nodes:
                    start = max(nodes[move.src], *(free[link] - offset for link, offset in move.links))
                    if (start, chunk, k) > last:
                        result.append((start, chunk, k))
        return result

    def _is_pruned(
        self, have: tuple[dict[int, int], ...], free: list[int], now: int, missing: list[tuple[int, int]]
    ) -> bool:
        """Whether a chunk is too far away, or too many bytes must still enter a node."""
        for c, d in missing:
            soonest = min(max(at, now) + self.away[c][n][d] for n, at in have[c].items())
            if soonest >= self.best:
                return True
        for d in {d for _, d in missing}:
            work = sum(self.size[c] for c, end in missing if end == d) * 1000.0
            links = {m.links[-1][0]: m for m in self.into[d]}
            rows = sorted(
                (max(free[k], now + m.links[-1][1]) + m.latency_ps - m.links[-1][1], self.links[k].bandwidth_GBps)
                for k, m in links.items()
            )
            rate = filled = 0.0
            soonest = math.inf
            for at, GBps in rows:
                rate, filled = rate + GBps, filled + at * GBps
                soonest = min(soonest, (work + filled) / rate)
            if soonest * (1 - 1e-12) >= self.best:
                return True
        return False
