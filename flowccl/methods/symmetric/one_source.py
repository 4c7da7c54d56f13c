"""The transfers of GPU 0's data, and their expansion by the group."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.demand.collectives import broadcast, scatter
from flowccl.demand.demand import Demand
from flowccl.methods.symmetric.routes import SourceRoutes
from flowccl.methods.symmetric.spread_kernels import RouteKinds, balance, schedule_broadcast, schedule_jobs
from flowccl.portable import exponential
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.timing import spread as spread_rows
from flowccl.topology.routes import Routes

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

_ROUNDS = 24  # of price updates for the paths of an alltoall
_FEWEST_ROUNDS = 4  # on very large machines
_MOST_RELAXED = 50_000_000  # (route, GPU) pairs of all rounds, a few seconds
_STEEPNESS = 8.0
_SWEEPS = 3  # over the GPUs, to balance loads


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
        routes = Routes(pointers(size), links)
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
        ptr = pointers(size)
        return Routes(ptr, np.concatenate([part.ravel() for part in parts]))


def spread_one(
    source_routes: SourceRoutes, kinds: RouteKinds, pieces: int, random: np.random.Generator, deadline_ps: int
) -> OneSource | None:
    """Allgather: broadcast the data of GPU 0 to all GPUs; None if it takes longer than the deadline."""
    noise = float(random.choice([0.5, 0.9, 2.0]))
    late = float(random.choice([0.0, 0.05, 1.0])) if pieces > 1 else 0.0
    seed = int(random.integers(2**31))
    slow_first = np.argsort(-kinds.busy, kind="stable")
    found = schedule_broadcast(kinds, slow_first, pieces, noise, late, deadline_ps, seed)
    done, finish, piece, root, route, start = found
    if not done:
        return None
    return OneSource(source_routes, piece, np.full(len(piece), -1, dtype=np.int32), root, route, start, finish)


def deliver_one(source_routes: SourceRoutes, kinds: RouteKinds, pieces: int, random: np.random.Generator) -> OneSource:
    """Alltoall: send every GPU its block of GPU 0's data, on paths that balance the load of the orbits of links.

    The longest paths go first, from their first hop to their last: hops on one orbit feed those on others. If the
    longest remaining path went first instead, an orbit that few paths begin with would long be idle.
    """
    paths = _priced_paths(kinds, random)
    to, root, route, before, length = _chain(kinds, paths, _balanced(kinds, paths, random))
    count, gpus = len(to), len(length)
    turn = np.empty(pieces * gpus, dtype=np.int64)
    turn[np.lexsort((random.random(pieces * gpus), -np.tile(length, pieces)))] = np.arange(pieces * gpus)
    rank = np.concatenate([turn[p * gpus + to] for p in range(pieces)])
    before = np.concatenate([np.where(before < 0, -1, before + p * count) for p in range(pieces)])
    fed = np.flatnonzero(before >= 0)
    following = np.full(len(before), -1, dtype=np.int64)
    following[before[fed]] = fed  # each hop has at most one next hop
    job_kind = np.tile(kinds.route_kind[route], pieces)
    finish, start = schedule_jobs(kinds, job_kind, before, following, rank)
    piece = np.repeat(np.arange(pieces, dtype=np.int32), count)
    all_to, all_root, all_route = (np.tile(column, pieces).astype(np.int32) for column in (to, root, route))
    return OneSource(source_routes, piece, all_to, all_root, all_route, start, finish)


@dataclass(frozen=True, eq=False)
class _Paths:
    """Paths from GPU 0 to every GPU, in one row per round: the last route, and the GPU that it comes from."""

    route: I32
    sender: I32


def _priced_paths(kinds: RouteKinds, random: np.random.Generator) -> _Paths:
    """Cheapest paths for several rounds, with noise that breaks ties between equal paths in different ways.

    In every second round the orbits have prices that rise with their load, so paths avoid the loaded ones.
    """
    routes, count = kinds.end.shape
    rounds = int(np.clip(_MOST_RELAXED // (routes * count), _FEWEST_ROUNDS, _ROUNDS))
    load = np.zeros(kinds.orbits)
    hop_kind = np.repeat(np.arange(len(kinds.busy)), np.diff(kinds.hop_ptr))
    paths = _Paths(*(np.full((rounds, count), -1, dtype=np.int32) for _ in range(2)))
    for number in range(rounds):
        price = exponential(_STEEPNESS * (number % 2) * (load / max(load.max(), 1.0) - 1.0))
        kind_price = np.bincount(hop_kind, price[kinds.hop_orbit], len(kinds.busy)) * kinds.busy
        cost = np.asarray(kind_price[kinds.route_kind] * random.uniform(1.0, 1.02, routes), dtype=np.float64)
        paths.route[number], paths.sender[number] = _cheapest_paths(kinds.end, cost)
        load += _busy_ps(kinds, paths, number).sum(axis=0)
    return paths


def _cheapest_paths(end: I32, cost: NDArray[np.float64]) -> tuple[I32, I32]:
    """The last route and the sender of the cheapest path to each GPU; sweeps from the GPUs that became cheaper."""
    count = end.shape[1]
    total = np.full(count, np.inf)
    route, sender = np.full(count, -1, dtype=np.int32), np.zeros(count, dtype=np.int32)
    total[0], front = 0.0, np.zeros(1, dtype=np.int64)
    while len(front):
        changed = np.zeros(count, dtype=np.bool_)
        start = total[front]
        for w in range(len(cost)):
            ends, there = end[w, front], start + cost[w]
            better = there < total[ends]
            if better.any():
                ends = ends[better]
                total[ends], route[ends], sender[ends] = there[better], w, front[better]
                changed[ends] = True
        front = np.flatnonzero(changed)
    return route, sender


def _busy_ps(kinds: RouteKinds, paths: _Paths, number: int) -> NDArray[np.float64]:
    """For each GPU, how long its path in one round occupies each orbit; by jumping to ever earlier senders."""
    hop_kind = np.repeat(np.arange(len(kinds.busy)), np.diff(kinds.hop_ptr))
    of_kind = np.zeros((len(kinds.busy), kinds.orbits))
    np.add.at(of_kind, (hop_kind, kinds.hop_orbit), kinds.busy[hop_kind].astype(np.float64))
    busy: NDArray[np.float64] = of_kind[kinds.route_kind[paths.route[number]]]
    busy[0] = 0.0
    sender = paths.sender[number]
    while sender.any():
        busy += busy[sender]
        sender = sender[sender]
    return busy


def _balanced(kinds: RouteKinds, paths: _Paths, random: np.random.Generator) -> I64:
    """A round for each GPU, one after the other: the one with the least sum of the 8th powers of all loads.

    This keeps the largest load low, and takes a longer path only where it gains more than it costs. Last, the largest
    load alone is reduced further.
    """
    rounds, count = paths.route.shape
    busy_ps = np.stack([_busy_ps(kinds, paths, number) for number in range(rounds)])
    own_ps = busy_ps.mean(axis=0)  # at first a part of every round, which is even
    load = own_ps.sum(axis=0)
    scale, turn = max(float(load.max()), 1.0), np.zeros(count, dtype=np.int64)
    for sweep in range(_SWEEPS):  # every sweep may revise every choice
        order = 1 + random.permutation(count - 1)
        balance(order, busy_ps, own_ps, load, scale, turn, last=sweep == _SWEEPS - 1)
    return turn


def _chain(kinds: RouteKinds, paths: _Paths, turn_of: I64) -> tuple[I64, I64, I64, I64, I64]:
    """The hops of all paths (destination, sender, route, previous hop or -1), and the time of each path.

    Each hop comes after its previous one. Destination d takes its path from round turn_of[d].
    """
    count = paths.route.shape[1]
    at = np.arange(1, count, dtype=np.int64)
    to, turn, length = at.copy(), turn_of[at], np.zeros(count, dtype=np.int64)
    steps = []
    while len(at):
        route = paths.route[turn, at]
        at = paths.sender[turn, at].astype(np.int64)
        length[to] += kinds.arrive[kinds.route_kind[route]]
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
    return hop_to, hop_root, hop_route, before, length
