"""The transfers of GPU 0's data, and their expansion by the group."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.collectives import broadcast, scatter
from flowccl.demand.demand import Demand
from flowccl.methods.symmetric.routes import SourceRoutes
from flowccl.methods.symmetric.spread_kernels import RouteKinds, schedule_broadcast, schedule_jobs
from flowccl.portable import exponential
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.timing import spread as spread_rows
from flowccl.topology.routes import Routes

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

_ROUNDS = 24  # of price updates for the paths of an alltoall
_STEEPNESS = 8.0


@dataclass(frozen=True, eq=False)
class OneSource:
    """Transfers of GPU 0's data: GPU `root` sends `piece` of the block for GPU `to` (-1: for all) over `route`."""

    source_routes: SourceRoutes
    piece: I32
    to: I32
    root: I32
    route: I32
    start_ps: I64
    finish_ps: int

    def __len__(self) -> int:
        return len(self.piece)

    def expanded(self, demand: Demand, method: str) -> Schedule:
        """The schedule of all sources: the images of the transfers under every element of the group."""
        group, count = self.source_routes.group, len(self.source_routes.group)
        used, position = np.unique(self.route, return_inverse=True)
        element = np.arange(count, dtype=np.int32)[:, None]
        pieces = self.pieces
        route = position.reshape(-1)[None, :].astype(np.int64) * count + group.image(self.root[None, :], element)
        chunk = element.astype(np.int64) * pieces + self.piece[None, :]
        if self.to[0] >= 0:
            to = group.image(self.to[None, :], element)
            chunk = (element * np.int64(count - 1) + to - (to > element)) * pieces + self.piece[None, :]
        start = np.broadcast_to(self.start_ps[None, :], route.shape)
        flags = np.zeros(route.size, dtype=np.bool_)
        columns = (chunk.ravel().astype(np.int32), route.ravel().astype(np.int32), start.ravel())
        return Schedule(group.topology, demand, self._all_routes(used), *columns, flags, method)

    def compact(self, block_bytes: int, method: str = "symmetric") -> Schedule:
        """The schedule of GPU 0's data alone; with the group it represents the whole schedule (`verify_compact`).

        `block_bytes` is the data for all GPUs (allgather), or for each of them (alltoall).
        """
        count, pieces = len(self.source_routes.group), self.pieces
        if self.to[0] >= 0:
            demand = scatter(count, block_bytes * count, pieces)
            chunk = (self.to - 1) * pieces + self.piece
        else:
            demand, chunk = broadcast(count, block_bytes, pieces), self.piece
        size = np.diff(self.source_routes.routes.ptr)[self.route]
        hop, inside = spread_rows(self.source_routes.routes.ptr, self.route)
        links = self.source_routes.group.moved_links(self.source_routes.routes.link[inside], self.root[hop])
        routes = Routes(np.concatenate(([0], np.cumsum(size))).astype(np.int64), links)
        return Schedule.from_links(
            self.source_routes.group.topology, demand, chunk.astype(np.int32), routes, self.start_ps, method=method
        )

    @property
    def pieces(self) -> int:
        """Chunks of each block."""
        return int(self.piece.max()) + 1

    def _all_routes(self, used: I32) -> Routes:
        """The image of route w at GPU u is route (position of w in `used`) * GPUs + u."""
        group = self.source_routes.group
        every = np.arange(len(group), dtype=np.int32)[:, None]
        parts = [group.moved_links(np.array(self.source_routes.routes.links(w))[None, :], every) for w in used.tolist()]
        size = np.concatenate([np.full(len(part), part.shape[1]) for part in parts])
        ptr = np.concatenate(([0], np.cumsum(size))).astype(np.int64)
        return Routes(ptr, np.concatenate([part.ravel() for part in parts]))


def spread_one(
    source_routes: SourceRoutes, kinds: RouteKinds, pieces: int, random: np.random.Generator, deadline_ps: int
) -> OneSource | None:
    """Allgather: broadcast the data of GPU 0 to all GPUs; None if it takes longer than the deadline."""
    noise = float(random.choice([0.5, 0.9, 2.0]))
    late = float(random.choice([0.0, 0.05, 1.0])) if pieces > 1 else 0.0
    seed = int(random.integers(2**31))
    done, finish, piece, root, route, start = schedule_broadcast(kinds, pieces, noise, late, deadline_ps, seed)
    if not done:
        return None
    return OneSource(source_routes, piece, np.full(len(piece), -1, dtype=np.int32), root, route, start, finish)


def deliver_one(source_routes: SourceRoutes, kinds: RouteKinds, pieces: int, random: np.random.Generator) -> OneSource:
    """Alltoall: send every GPU its block of GPU 0's data, on paths that balance the load of the orbits of links."""
    last_route = _priced_paths(kinds, random)
    to, root, route, before = _chain(kinds, last_route, _balanced(kinds, last_route, random))
    count = len(to)
    job_kind = np.tile(kinds.route_kind[route], pieces)
    before = np.concatenate([np.where(before < 0, -1, before + p * count) for p in range(pieces)])
    fed = np.flatnonzero(before >= 0)
    following = fed[np.argsort(before[fed], kind="stable")].astype(np.int64)
    size = np.bincount(before[fed], minlength=len(before))
    next_ptr = np.concatenate(([0], np.cumsum(size))).astype(np.int64)
    tail = kinds.arrive[job_kind].astype(np.float64)
    for j in range(len(before) - 1, -1, -1):  # every job follows the job that feeds it
        if before[j] >= 0:
            tail[before[j]] = max(tail[before[j]], kinds.arrive[job_kind[before[j]]] + tail[j])
    order = np.lexsort((random.random(len(tail)), -tail))
    rank = np.empty(len(tail), dtype=np.int64)
    rank[order] = np.arange(len(tail))
    finish, start = schedule_jobs(kinds, job_kind, before, next_ptr, following, rank)
    piece = np.repeat(np.arange(pieces, dtype=np.int32), count)
    all_to, all_root, all_route = (np.tile(column, pieces).astype(np.int32) for column in (to, root, route))
    return OneSource(source_routes, piece, all_to, all_root, all_route, start, finish)


def _priced_paths(kinds: RouteKinds, random: np.random.Generator) -> I32:
    """The last route of the path to each GPU, for several rounds: prices of loaded orbits rise, so paths avoid them."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    routes, count = kinds.end.shape
    load = np.zeros(kinds.orbits)
    hop_kind = np.repeat(np.arange(len(kinds.busy)), np.diff(kinds.hop_ptr))
    result = np.full((_ROUNDS, count), -1, dtype=np.int32)
    for number in range(_ROUNDS):
        price = exponential(_STEEPNESS * (load / max(load.max(), 1.0) - 1.0))
        kind_price = np.bincount(hop_kind, price[kinds.hop_orbit], len(kinds.busy)) * kinds.busy
        cost = np.asarray(kind_price[kinds.route_kind] * random.uniform(1.0, 1.02, routes), dtype=np.float64)
        cheapest = _cheapest(kinds.end, cost)
        graph = csr_array((cost[cheapest[2]], (cheapest[0], cheapest[1])), shape=(count, count))
        previous = dijkstra(graph, indices=[0], return_predecessors=True)[1][0]
        table = csr_array((cheapest[2] + 1, (cheapest[0], cheapest[1])), shape=(count, count))
        nodes = np.arange(1, count)
        result[number, 1:] = np.asarray(table[previous[nodes], nodes]).ravel() - 1
        load += _load(kinds, result[number], hop_kind)
    return result


def _balanced(kinds: RouteKinds, last_route: I32, random: np.random.Generator) -> I64:
    """A round for each GPU: greedily, the one whose path minimizes the maximum load of the orbits."""
    rounds, count = last_route.shape
    hop_kind = np.repeat(np.arange(len(kinds.busy)), np.diff(kinds.hop_ptr))
    of_kind = np.zeros((len(kinds.busy), kinds.orbits))
    np.add.at(of_kind, (hop_kind, kinds.hop_orbit), kinds.busy[hop_kind].astype(np.float64))
    busy_ps = np.zeros((rounds, count, kinds.orbits))
    for number in range(rounds):
        to, _, route, _ = _chain(kinds, last_route, np.full(count, number))
        np.add.at(busy_ps[number], to, of_kind[kinds.route_kind[route]])
    load = np.zeros(kinds.orbits)
    turn = np.zeros(count, dtype=np.int64)
    for sweep in range(2):  # the second sweep may revise every choice
        for d in (1 + random.permutation(count - 1)).tolist():
            load -= busy_ps[turn[d], d] if sweep else 0.0
            after = load + busy_ps[:, d]
            turn[d] = np.lexsort((after.sum(axis=1), after.max(axis=1)))[0]
            load = after[turn[d]]
    return turn


def _cheapest(end: I32, cost: NDArray[np.float64]) -> tuple[I64, I64, I64]:
    """Triples (GPU, next GPU, route) with the cheapest route of each pair."""
    count = end.shape[1]
    order = np.argsort(cost, kind="stable")
    pair = (np.arange(count)[None, :] * np.int64(count) + end[order]).ravel()
    pair, first = np.unique(pair, return_index=True)
    return pair // count, pair % count, order[first // count]


def _load(kinds: RouteKinds, last: I32, hop_kind: I64) -> NDArray[np.float64]:
    """Time that each orbit is busy with one block for every GPU."""
    route = _chain(kinds, last[None, :], np.zeros(len(last), dtype=np.int64))[2]
    uses = np.bincount(kinds.route_kind[route], minlength=len(kinds.busy)) * kinds.busy
    return np.bincount(kinds.hop_orbit, uses[hop_kind], kinds.orbits).astype(np.float64)


def _chain(kinds: RouteKinds, last_route: I32, turn_of: I64) -> tuple[I64, I64, I64, I64]:
    """The hops of all paths: (destination, sending GPU, route, previous hop or -1), each after its previous hop.

    Destination d takes its path from round turn_of[d].
    """
    count = last_route.shape[1]
    back = _backward(kinds)
    at = np.arange(1, count, dtype=np.int32)
    to, turn = at.copy(), turn_of[at]
    steps = []
    while len(at):
        route = last_route[turn, at]
        at = back[route, at].astype(np.int64)
        steps.append((to, at, route))
        go = at != 0
        at, to, turn = at[go], to[go], turn[go]
    steps.reverse()
    hop_to, hop_root, hop_route = (np.concatenate([step[i] for step in steps]).astype(np.int64) for i in range(3))
    before, last = np.full(len(hop_to), -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    first = 0
    for step in steps:
        rows = np.arange(first, first + len(step[0]))
        before[rows] = last[step[0]]
        last[step[0]] = rows
        first += len(rows)
    return hop_to, hop_root, hop_route, before


def _backward(kinds: RouteKinds) -> I32:
    """The GPU from which each route leads to each GPU."""
    back = np.empty_like(kinds.end)
    rows = np.arange(len(kinds.end))[:, None]
    back[rows, kinds.end] = np.arange(kinds.end.shape[1], dtype=np.int32)[None, :]
    return back
