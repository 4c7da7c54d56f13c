"""Baselines for comparisons: ring, recursive doubling, direct and tree.

Each baseline lists the sends between ranks and their steps, for any demand with one source per chunk. Ranks that are
not neighbours are connected by the quickest path through other nodes. Every link then carries its transfers in the
order of the steps, each as early as possible.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.problem import Problem
from flowccl.schedule.generation.job_shop import jobs_from
from flowccl.schedule.generation.serial import within_limits
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift, prune
from flowccl.search.context import Method, SearchContext
from flowccl.topology.neighbours import Neighbours, neighbours
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology
from flowccl.verifier.verify import verify

Send = tuple[int, int, int, int]  # step, chunk, from rank, to rank


def once(build: Callable[[Topology, Demand], Schedule]) -> Method:
    """The method that yields the one schedule of a baseline."""

    @wraps(build)
    def run(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
        yield build(problem.topology, problem.demand)

    return run


@once
def direct(topology: Topology, demand: Demand) -> Schedule:
    """Every source sends to every destination itself; rank r starts with r + 1, to spread the load of the receivers."""
    source, n = demand.source[demand.destination_chunk].astype(np.int64), demand.num_gpus
    step = (demand.destination_rank - source) % n
    rows = np.stack((step, demand.destination_chunk, source, demand.destination_rank), axis=1)
    return lay_out(topology, demand, [tuple(row) for row in rows.tolist()], "direct")


def ring(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Chunks travel around a ring of all GPUs: half of them in each direction, then all in the same direction.

    Where every GPU has one port, streams in two directions wait for each other there.
    """
    for directions in ((1, -1), (1,), (-1,)):
        yield _around(problem.topology, problem.demand, directions)


def _around(topology: Topology, demand: Demand, directions: tuple[int, ...]) -> Schedule:
    """Chunks travel around a ring of all GPUs, in these directions in turn."""
    paths = QuickestPaths(neighbours(topology, 1), float(demand.chunk_bytes.mean()))
    order = ring_order(paths.distance[: demand.num_gpus, : demand.num_gpus])
    place = {rank: i for i, rank in enumerate(order)}

    def sends() -> Iterator[Send]:
        for chunk in range(len(demand)):
            direction = directions[chunk % len(directions)]
            left = set(demand.destinations(chunk).tolist())
            at, step = int(demand.source[chunk]), 0
            while left:
                after = order[(place[at] + direction) % len(order)]
                yield step, chunk, at, after
                left.discard(after)
                at, step = after, step + 1

    return lay_out(topology, demand, list(sends()), "ring")


@once
def recursive_doubling(topology: Topology, demand: Demand) -> Schedule:
    """In step k, ranks that differ in bit k exchange their chunks; only for powers of two."""
    n = demand.num_gpus
    if n & (n - 1):
        raise DemandError(f"method recursive-doubling needs a power of two as the number of GPUs; got {n}")

    def sends() -> Iterator[Send]:
        for chunk in range(len(demand)):
            source, wanted = int(demand.source[chunk]), set(demand.destinations(chunk).tolist())
            have = [source]
            for bit in range(n.bit_length() - 1):
                for rank in list(have):
                    partner = rank ^ (1 << bit)
                    beyond = {d for d in wanted if (d ^ partner) & ((2 << bit) - 1) == 0}
                    if beyond:  # destinations that only the partner will serve
                        yield bit, chunk, rank, partner
                        have.append(partner)

    return lay_out(topology, demand, list(sends()), "recursive-doubling")


@once
def tree(topology: Topology, demand: Demand) -> Schedule:
    """Every chunk travels down a binary tree: its source is the root, and the other ranks follow in order."""
    n = demand.num_gpus

    def sends() -> Iterator[Send]:
        for chunk in range(len(demand)):
            source = int(demand.source[chunk])
            needed = set()
            for rank in demand.destinations(chunk).tolist():
                place = (rank - source) % n
                while place and place not in needed:
                    needed.add(place)
                    place = (place - 1) // 2
            for place in sorted(needed):
                parent = (place - 1) // 2
                yield (place + 1).bit_length(), chunk, (source + parent) % n, (source + place) % n

    return lay_out(topology, demand, list(sends()), "tree")


def lay_out(topology: Topology, demand: Demand, sends: list[Send] | NDArray[np.int64], method: str) -> Schedule:
    """Turn sends between ranks into transfers, serially in the order of the steps, and left-shift them.

    Where bandwidths change over time, the order is determined with the lowest bandwidth of every link.
    """
    slow = _slowest(topology)
    near = neighbours(slow, 1)
    paths = QuickestPaths(near, float(demand.chunk_bytes.mean()))
    table = _hops(paths, np.array(sends, dtype=np.int64).reshape(-1, 4))
    # A node that stores but does not copy receives a chunk once for each time it sends it: the two must alternate.
    no_copies = bool(np.any(topology.stores & ~topology.copies))
    hop_by_hop = np.zeros(len(table)) if no_copies else table[:, 1]
    table = table[np.lexsort((hop_by_hop, table[:, 0]))]
    pairs, route = np.unique(table[:, 3], return_inverse=True)
    routes = Routes.from_lists([near.routes.links(int(first)) for first in near.pair_ptr[:-1][pairs]])
    unscheduled = Schedule(
        slow,
        demand,
        routes,
        table[:, 2].astype(np.int32),
        route.reshape(-1).astype(np.int32),
        np.zeros(len(table), dtype=np.int64),
        np.zeros(len(table), dtype=np.bool_),
        method,
    )
    takes = unscheduled.timing.end_arrival_ps  # of each transfer, since each has one end
    if float(takes.max()) * len(takes) >= 2.0**62:
        raise DemandError(f"method {method}: {demand.size_bytes} bytes take too long on {topology.name}")
    serialized = prune(replace(unscheduled, start_ps=np.cumsum(takes) - takes))
    schedule = left_shift(serialized)
    if not (topology.changes or no_copies):
        # A transfer later in the order may use a link that is free.
        schedule = jobs_from(serialized).in_order(serialized.start_ps, schedule.finish_ps) or schedule
    if topology.changes:
        schedule = within_limits(schedule, topology)
    if topology.has_buffer_limits:
        for violation in verify(schedule)[:1]:
            raise DemandError(f"method {method} exceeds a buffer limit: {violation.message}; use greedy")
    return schedule


def _hops(paths: "QuickestPaths", sends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sends (step, chunk, from, to) as rows (step, hop, chunk, pair of neighbours), one for each hop of a send."""
    ends, which = np.unique(sends[:, 2:], axis=0, return_inverse=True)
    lists = [paths.pairs(a, b) for a, b in ends.tolist()]
    pair = np.array([pair for path in lists for pair in path], dtype=np.int64)
    count = np.array([len(path) for path in lists], dtype=np.int64)
    first, hops = np.cumsum(count) - count, count[which.reshape(-1)]
    hop = np.arange(hops.sum()) - np.repeat(np.cumsum(hops) - hops, hops)
    step, chunk = (np.repeat(sends[:, column], hops) for column in (0, 1))
    return np.stack((step, hop, chunk, pair[np.repeat(first[which.reshape(-1)], hops) + hop]), axis=1)


def _slowest(topology: Topology) -> Topology:
    """The machine with every link at its lowest bandwidth over time."""
    if not topology.changes:
        return topology
    least = [min([link.bandwidth_GBps, *(b for _, b in link.changes)]) for link in topology.links]
    links = [replace(k, bandwidth_GBps=b, changes=()) for k, b in zip(topology.links, least, strict=True)]
    return replace(topology, links=tuple(links))


class QuickestPaths:
    """The quickest path between two ranks, as pairs of neighbours."""

    def __init__(self, near: Neighbours, size_bytes: float) -> None:
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import dijkstra

        count = len(near.topology.nodes)
        cost = np.maximum(near.pair_cost_ps(size_bytes), 1.0)
        graph = csr_matrix((cost, (near.src, near.end)), (count, count))
        ranks = np.arange(near.topology.num_gpus)
        self.distance, self.before = dijkstra(graph, indices=ranks, return_predecessors=True)
        ends = zip(near.src.tolist(), near.end.tolist(), strict=True)
        self.pair = {ends: i for i, ends in enumerate(ends)}
        self.known: dict[tuple[int, int], list[int]] = {}

    def pairs(self, a: int, b: int) -> list[int]:
        """The pairs of neighbours on the path from rank a to rank b."""
        if (a, b) not in self.known:
            path, at = [], b
            while at != a:
                before = int(self.before[a, at])
                path.append(self.pair[before, at])
                at = before
            self.known[a, b] = path[::-1]
        return self.known[a, b]


def ring_order(distance: NDArray[np.float64]) -> list[int]:
    """A ring of ranks with these distances by the nearest-neighbour heuristic, improved by 2-opt."""
    count = len(distance)
    order, left = [0], set(range(1, count))
    while left:
        at = order[-1]
        after = min(left, key=lambda rank: (distance[at, rank], rank))
        order.append(after)
        left.discard(after)
    return _two_opt(order, distance) if count <= 128 else order


def _two_opt(order: list[int], distance: NDArray[np.float64]) -> list[int]:
    """Reverse segments of the ring while it gets shorter; both directions count, since both are used."""
    both = distance + distance.T
    n = len(order)
    better = True
    while better:
        better = False
        for i in range(n - 1):
            for j in range(i + 2, n - (i == 0)):
                a, b, c, d = order[i], order[i + 1], order[j], order[(j + 1) % n]
                if both[a, c] + both[b, d] < both[a, b] + both[c, d] - 1e-6:
                    order[i + 1 : j + 1] = order[i + 1 : j + 1][::-1]
                    better = True
    return order
