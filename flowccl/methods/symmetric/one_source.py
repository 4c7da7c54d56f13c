"""What one source does: the transfers of GPU 0's data, and what the group makes of them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.collectives import broadcast, scatter
from flowccl.demand.demand import Demand
from flowccl.methods.symmetric.paths import Ways
from flowccl.methods.symmetric.spread_kernels import Kinds, spread, work
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.timing import spread as spread_rows
from flowccl.topology.routes import Routes

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

_ROUNDS = 24  # of prices for the paths of an alltoall
_STEEP = 8.0


@dataclass(frozen=True, eq=False)
class OneSource:
    """Transfers of GPU 0's data: `piece` of the block for GPU `to` (-1: for all) goes from GPU `root` by `way`."""

    ways: Ways
    piece: I32
    to: I32
    root: I32
    way: I32
    start_ps: I64
    finish_ps: int

    def __len__(self) -> int:
        return len(self.piece)

    def expanded(self, demand: Demand, method: str) -> Schedule:
        """The schedule of all sources: every element of the group moves the one source's transfers."""
        group, count = self.ways.group, len(self.ways.group)
        used, way = np.unique(self.way, return_inverse=True)
        element = np.arange(count, dtype=np.int32)[:, None]
        pieces = self.pieces
        route = way.reshape(-1)[None, :].astype(np.int64) * count + group.image(self.root[None, :], element)
        chunk = element.astype(np.int64) * pieces + self.piece[None, :]
        if self.to[0] >= 0:
            to = group.image(self.to[None, :], element)
            chunk = (element * np.int64(count - 1) + to - (to > element)) * pieces + self.piece[None, :]
        start = np.broadcast_to(self.start_ps[None, :], route.shape)
        flags = np.zeros(route.size, dtype=np.bool_)
        columns = (chunk.ravel().astype(np.int32), route.ravel().astype(np.int32), start.ravel())
        return Schedule(group.topology, demand, self._all_routes(used), *columns, flags, method)

    def compact(self, block_bytes: int, method: str = "symmetric") -> Schedule:
        """The schedule of GPU 0's data alone; with the group it stands for the schedule of all (`verify_compact`).

        `block_bytes` is the data for all GPUs (allgather), or for each of them (alltoall).
        """
        count, pieces = len(self.ways.group), self.pieces
        if self.to[0] >= 0:
            demand = scatter(count, block_bytes * count, pieces)
            chunk = (self.to - 1) * pieces + self.piece
        else:
            demand, chunk = broadcast(count, block_bytes, pieces), self.piece
        size = np.diff(self.ways.routes.ptr)[self.way]
        hop, inside = spread_rows(self.ways.routes.ptr, self.way)
        links = self.ways.group.moved_links(self.ways.routes.link[inside], self.root[hop])
        routes = Routes(np.concatenate(([0], np.cumsum(size))).astype(np.int64), links)
        return Schedule.from_links(
            self.ways.group.topology, demand, chunk.astype(np.int32), routes, self.start_ps, method=method
        )

    @property
    def pieces(self) -> int:
        """Chunks of each block."""
        return int(self.piece.max()) + 1

    def _all_routes(self, used: I32) -> Routes:
        """Way w at GPU u is route (place of w in `used`) * GPUs + u."""
        group = self.ways.group
        every = np.arange(len(group), dtype=np.int32)[:, None]
        parts = [group.moved_links(np.array(self.ways.routes.links(w))[None, :], every) for w in used.tolist()]
        size = np.concatenate([np.full(len(part), part.shape[1]) for part in parts])
        ptr = np.concatenate(([0], np.cumsum(size))).astype(np.int64)
        return Routes(ptr, np.concatenate([part.ravel() for part in parts]))


def spread_one(
    ways: Ways, kinds: Kinds, pieces: int, random: np.random.Generator, deadline_ps: int
) -> OneSource | None:
    """Allgather: the data of GPU 0 spreads over all GPUs; None where that takes longer than the deadline."""
    noise = float(random.choice([0.5, 0.9, 2.0]))
    late = float(random.choice([0.0, 0.05, 1.0])) if pieces > 1 else 0.0
    seed = int(random.integers(2**31))
    done, finish, piece, root, way, start = spread(kinds, pieces, noise, late, deadline_ps, seed)
    if not done:
        return None
    return OneSource(ways, piece, np.full(len(piece), -1, dtype=np.int32), root, way, start, finish)


def deliver_one(ways: Ways, kinds: Kinds, pieces: int, random: np.random.Generator) -> OneSource:
    """Alltoall: every GPU gets its block of GPU 0's data, on paths that share the orbits of links evenly."""
    last_way = _paths(kinds, random)
    to, root, way, before = _chain(kinds, last_way, _balanced(kinds, last_way, random))
    count = len(to)
    job_kind = np.tile(kinds.way_kind[way], pieces)
    before = np.concatenate([np.where(before < 0, -1, before + p * count) for p in range(pieces)])
    fed = np.flatnonzero(before >= 0)
    following = fed[np.argsort(before[fed], kind="stable")].astype(np.int64)
    size = np.bincount(before[fed], minlength=len(before))
    next_ptr = np.concatenate(([0], np.cumsum(size))).astype(np.int64)
    tail = kinds.arrive[job_kind].astype(np.float64)
    for j in range(len(before) - 1, -1, -1):  # a job comes after the one that feeds it
        if before[j] >= 0:
            tail[before[j]] = max(tail[before[j]], kinds.arrive[job_kind[before[j]]] + tail[j])
    order = np.lexsort((random.random(len(tail)), -tail))
    rank = np.empty(len(tail), dtype=np.int64)
    rank[order] = np.arange(len(tail))
    finish, start = work(kinds, job_kind, before, next_ptr, following, rank)
    piece = np.repeat(np.arange(pieces, dtype=np.int32), count)
    all_to, all_root, all_way = (np.tile(column, pieces).astype(np.int32) for column in (to, root, way))
    return OneSource(ways, piece, all_to, all_root, all_way, start, finish)


def _paths(kinds: Kinds, random: np.random.Generator) -> I32:
    """The last way to each GPU, for several rounds of prices: full orbits get dear, and paths avoid them."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    ways, count = kinds.end.shape
    load = np.zeros(kinds.orbits)
    hop_kind = np.repeat(np.arange(len(kinds.hold)), np.diff(kinds.hop_ptr))
    result = np.full((_ROUNDS, count), -1, dtype=np.int32)
    for number in range(_ROUNDS):
        price = np.exp(_STEEP * (load / max(load.max(), 1.0) - 1.0))
        kind_price = np.bincount(hop_kind, price[kinds.hop_orbit], len(kinds.hold)) * kinds.hold
        cost = np.asarray(kind_price[kinds.way_kind] * random.uniform(1.0, 1.02, ways), dtype=np.float64)
        way_at = _cheapest(kinds.end, cost)
        graph = csr_array((cost[way_at[2]], (way_at[0], way_at[1])), shape=(count, count))
        previous = dijkstra(graph, indices=[0], return_predecessors=True)[1][0]
        table = csr_array((way_at[2] + 1, (way_at[0], way_at[1])), shape=(count, count))
        nodes = np.arange(1, count)
        result[number, 1:] = np.asarray(table[previous[nodes], nodes]).ravel() - 1
        load += _load(kinds, result[number], hop_kind)
    return result


def _balanced(kinds: Kinds, last_way: I32, random: np.random.Generator) -> I64:
    """A round for each GPU, one GPU after the other: the one whose path leaves the fullest orbit least full."""
    rounds, count = last_way.shape
    hop_kind = np.repeat(np.arange(len(kinds.hold)), np.diff(kinds.hop_ptr))
    of_kind = np.zeros((len(kinds.hold), kinds.orbits))
    np.add.at(of_kind, (hop_kind, kinds.hop_orbit), kinds.hold[hop_kind].astype(np.float64))
    held = np.zeros((rounds, count, kinds.orbits))
    for number in range(rounds):
        to, _, way, _ = _chain(kinds, last_way, np.full(count, number))
        np.add.at(held[number], to, of_kind[kinds.way_kind[way]])
    load = np.zeros(kinds.orbits)
    turn = np.zeros(count, dtype=np.int64)
    for sweep in range(2):  # in the second each may think again
        for d in (1 + random.permutation(count - 1)).tolist():
            load -= held[turn[d], d] if sweep else 0.0
            after = load + held[:, d]
            turn[d] = np.lexsort((after.sum(axis=1), after.max(axis=1)))[0]
            load = after[turn[d]]
    return turn


def _cheapest(end: I32, cost: NDArray[np.float64]) -> tuple[I64, I64, I64]:
    """Triples (GPU, next GPU, way), only the cheapest way for each pair."""
    count = end.shape[1]
    order = np.argsort(cost, kind="stable")
    pair = (np.arange(count)[None, :] * np.int64(count) + end[order]).ravel()
    pair, first = np.unique(pair, return_index=True)
    return pair // count, pair % count, order[first // count]


def _load(kinds: Kinds, last: I32, hop_kind: I64) -> NDArray[np.float64]:
    """Time that each orbit is held by one block for every GPU."""
    way = _chain(kinds, last[None, :], np.zeros(len(last), dtype=np.int64))[2]
    uses = np.bincount(kinds.way_kind[way], minlength=len(kinds.hold)) * kinds.hold
    return np.bincount(kinds.hop_orbit, uses[hop_kind], kinds.orbits).astype(np.float64)


def _chain(kinds: Kinds, last_way: I32, turn_of: I64) -> tuple[I64, I64, I64, I64]:
    """The hops of all paths: (destination, GPU that sends, way, hop before or -1), each after the one before it.

    Destination d takes its path from round turn_of[d].
    """
    count = last_way.shape[1]
    back = _backward(kinds)
    at = np.arange(1, count, dtype=np.int32)
    to, turn = at.copy(), turn_of[at]
    steps = []
    while len(at):
        way = last_way[turn, at]
        at = back[way, at].astype(np.int64)
        steps.append((to, at, way))
        go = at != 0
        at, to, turn = at[go], to[go], turn[go]
    steps.reverse()
    hop_to, hop_root, hop_way = (np.concatenate([step[i] for step in steps]).astype(np.int64) for i in range(3))
    before, last = np.full(len(hop_to), -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    first = 0
    for step in steps:
        rows = np.arange(first, first + len(step[0]))
        before[rows] = last[step[0]]
        last[step[0]] = rows
        first += len(rows)
    return hop_to, hop_root, hop_way, before


def _backward(kinds: Kinds) -> I32:
    """The GPU from which each way leads to each GPU."""
    back = np.empty_like(kinds.end)
    rows = np.arange(len(kinds.end))[:, None]
    back[rows, kinds.end] = np.arange(kinds.end.shape[1], dtype=np.int32)[None, :]
    return back
