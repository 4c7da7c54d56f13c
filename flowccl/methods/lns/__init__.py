"""Large-neighbourhood search on a timetable of the links: remove chunks and insert them again.

Where the machine and the demand have a symmetry that fixes no GPU and no link, the search works on the quotient of the
problem by it (`quotient.py`): one timetable row per orbit of links, and one tree per orbit of chunks. The quotient is a
smaller problem, and on symmetric machines its good schedules are good schedules of the whole problem.

1. Construction. Chunk by chunk, a tree grows from the source to the destinations: the node that can receive the chunk
   first, given the bookings in the timetable, is added next. Routes that occupy links for long are penalized, so that
   a chunk crosses scarce links only once.
2. Search. The target is slightly below the current completion time. A chunk that misses the target, and chunks that
   precede it on its links, are removed from the timetable and inserted again in another order and with another weight.
   The change is kept unless the lateness increases.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER, pointers
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.lns.insertion_kernels import InsertedTrees, PlannedChunks
from flowccl.methods.lns.quotient import Quotient
from flowccl.methods.lns.search_kernels import build, improve, last_ps
from flowccl.methods.lns.timetable_kernels import RouteNetwork, Timetable, new_timetable
from flowccl.portable import exponential
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.timing import spread as spread_rows
from flowccl.schedule.transform import left_shift, prune
from flowccl.search.context import SearchContext
from flowccl.topology.neighbours import Neighbours, neighbours
from flowccl.topology.topology import Topology
from flowccl.units import busy_times_ps

_WEIGHTS = (3.0, 0.3, 10.0, 1.0)  # of the first constructions
_MANY_ROUTES = 3_000  # beyond, only the two best routes of each pair are used
_EXAMINED_ROUTES = 200_000  # routes that one step of the neighbourhood search examines, in 5 to 200 tries
_FEW_TO_BUILD = 200_000  # up to here, one step makes all first constructions
_IDLE_STEPS = 25  # steps without improvement before the search restarts
_LEAST_DROP, _MOST_DROP = 0.001, 0.1  # of the target, relative to the completion time
_MOST_TO_BUILD = 1_000_000  # chunks x routes: beyond, a construction takes long
_FIRST_STEPS = 16  # of a quotient search before its first report: its first constructions are slow and poor


def lns(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Constructions with several weights, then the neighbourhood search, on a quotient where there is one."""
    topology, demand = problem.topology, problem.demand
    _check(topology, demand)
    quotients = (Quotient.of(group, demand) for group in problem.free_groups)
    search = LnsSearch(topology, demand, context.seed, next((one for one in quotients if one is not None), None))
    found = [search.step() for _ in range(_FIRST_STEPS if search.quotient is not None else 1)]
    best = min((one for one in found if one is not None), key=lambda one: one.finish_ps, default=None)
    while True:
        yield best
        best = search.step(context.incumbents.bound_ps)


def _check(topology: Topology, demand: Demand) -> None:
    """Raise DemandError where the machine or the demand has something that the search does not support."""
    if demand.reduces:
        raise DemandError(f"method lns needs chunks with one source each; {demand.collective} reduces several")
    if any(node.crossing == "store-and-forward" for node in topology.nodes if not node.stores):
        raise DemandError("method lns does not support store-and-forward switches; use greedy or auto")


@dataclass
class LnsSearch:
    """The state of the search: the timetable, the trees of the chunks, and the drop of the next target."""

    topology: Topology
    demand: Demand
    seed: int
    quotient: Quotient | None = None

    def __post_init__(self) -> None:
        near = neighbours(self.topology)
        if len(near.routes) > _MANY_ROUTES:
            near = neighbours(self.topology, 2)
        if not self.demand.is_unicast:
            near = near.without(~self.topology.copies)
        self.routes = near.routes
        self.rows, self.net = self._network(near)
        self.planned = self._planned_chunks()
        self.random = np.random.default_rng(self.seed)
        self.best_ps: int = NEVER
        self.state: tuple[Timetable, InsertedTrees] | None = None
        self.state_ps: int = NEVER
        self.weight, self.target_drop, self.idle = 1.0, 0.03, 0
        self.bound_ps: float = 0.0
        chunk_routes = len(self.planned.source) * len(self.net.end)
        if chunk_routes > _MOST_TO_BUILD:
            raise DemandError(f"method lns supports up to {_MOST_TO_BUILD} chunks x routes; got {chunk_routes}")
        self.weights: tuple[float, ...] = _WEIGHTS
        self.builds_per_step = len(_WEIGHTS) if chunk_routes <= _FEW_TO_BUILD else 1

    def _network(self, near: Neighbours) -> tuple[int, RouteNetwork]:
        """The number of timetable rows, one per link or orbit of links, and the routes over them."""
        link_row = (
            self.quotient.group.link_orbits if self.quotient else np.arange(len(self.topology.links), dtype=np.int32)
        )
        shape, many = near.shape, np.diff(near.pair_ptr)
        start, end = np.repeat(near.src, many), np.repeat(near.end, many)
        latency = shape.hop_offset_ps[shape.end_hop] + self.topology.link_latency_ps[near.routes.link[shape.end_hop]]
        row = link_row[near.routes.link]
        usable = self._usable(near, row) if self.quotient else np.ones(len(start), dtype=np.bool_)
        into = np.argsort(end, kind="stable")
        nodes = np.arange(len(self.topology.nodes) + 1)
        net = RouteNetwork(
            np.searchsorted(start, nodes).astype(np.int64),
            start,
            end,
            shape.segment_GBps,
            latency,
            near.routes.ptr,
            row,
            shape.hop_offset_ps,
            np.searchsorted(end[into], nodes).astype(np.int64),
            into.astype(np.int64),
            near.distance_ps(float(self.demand.chunk_bytes.mean())),
            usable,
        )
        return int(link_row.max()) + 1, net

    def _usable(self, near: Neighbours, row: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Which routes never occupy two links of an orbit at the same time."""
        busy = busy_times_ps(np.full(len(near.routes), int(self.demand.chunk_bytes.max())), near.shape.segment_GBps)
        route = np.repeat(np.arange(len(near.routes)), np.diff(near.routes.ptr))
        order = np.lexsort((near.shape.hop_offset_ps, row, route))
        route, row, offset = route[order], row[order], near.shape.hop_offset_ps[order]
        again = (route[1:] == route[:-1]) & (row[1:] == row[:-1]) & (np.diff(offset) < busy[route[1:]])
        usable = np.ones(len(near.routes), dtype=np.bool_)
        usable[route[1:][again]] = False
        return usable

    def _planned_chunks(self) -> PlannedChunks:
        """The chunks to plan: all, or the first of each orbit."""
        demand = self.demand
        chunks = self.quotient.chunks if self.quotient else np.arange(len(demand))
        size = np.diff(demand.destination_ptr)[chunks]
        _, rows = spread_rows(demand.destination_ptr, chunks.astype(np.int32))
        ptr = pointers(size)
        wanted = demand.destination_rank[rows]
        return PlannedChunks(
            demand.chunk_bytes[chunks], demand.source[chunks], demand.available_ps[chunks], ptr, wanted
        )

    def step(self, bound_ps: float = 0.0) -> Schedule | None:
        """One construction or one round of the neighbourhood search; return the schedule if it is the best so far.

        `bound_ps` is a lower bound on the completion time.
        """
        self.bound_ps = bound_ps
        if self.weights:
            for weight in self.weights[: self.builds_per_step]:
                self._build(weight)
            self.weights = self.weights[self.builds_per_step :]
        elif self.state is not None:
            if self.idle >= _IDLE_STEPS:
                self._restart()
            self._improve()
        if self.state is None or self.state_ps >= self.best_ps:
            return None
        best = self._schedule(self.state[1])
        self.best_ps = best.finish_ps
        return best

    def _build(self, weight: float) -> None:
        order = self.random.permutation(len(self.planned.source))
        done, table, trees = build(self.net, self.planned, new_timetable(self.rows, 64), order, weight)
        last = int(last_ps(self.planned, trees).max()) if done else NEVER
        if last < self.state_ps:
            self.state, self.state_ps, self.weight = (table, trees), last, weight

    def _restart(self) -> None:
        """Restart from another construction."""
        self.state_ps, self.idle, self.target_drop = NEVER, 0, 0.03
        self._build(self._random_weight())

    def _improve(self) -> None:
        target, weight = self._target_ps(), self._random_weight()
        most = int(self.random.choice([2, 4, 8, 16]))
        better = self._remove_and_insert(target, weight, most)
        self.idle = 0 if better else self.idle + 1
        self.target_drop = (
            min(self.target_drop * 1.5, _MOST_DROP) if better else max(self.target_drop * 0.8, _LEAST_DROP)
        )

    def _target_ps(self) -> int:
        """Below the completion time by a part of it; near the lower bound, by a part of the gap."""
        left_ps = self.state_ps - self.bound_ps
        near = left_ps <= self.state_ps * _LEAST_DROP
        return int(
            self.state_ps - (left_ps * self.target_drop / _MOST_DROP if near else self.state_ps * self.target_drop)
        )

    def _remove_and_insert(self, target_ps: int, weight: float, most: int) -> bool:
        """Remove and insert chunks, a few at a time; return whether the completion time improved."""
        assert self.state is not None
        table, trees = self.state
        tries = min(max(_EXAMINED_ROUTES // (len(self.net.end) * min(most, len(self.planned.source))), 5), 200)
        table = improve(self.net, self.planned, table, trees, target_ps, weight, tries, most, self.random)
        before_ps, self.state = self.state_ps, (table, trees)
        self.state_ps = int(self._last_ps().max())
        return self.state_ps < before_ps

    def _last_ps(self) -> NDArray[np.int64]:
        """The time at which each chunk has reached all its destinations."""
        assert self.state is not None
        return last_ps(self.planned, self.state[1])

    def _random_weight(self) -> float:
        return self.weight * exponential(float(self.random.normal(0, 0.5)))

    def _schedule(self, trees: InsertedTrees) -> Schedule:
        chunk, node = np.nonzero(trees.route >= 0)
        start = trees.start_ps[chunk, node]
        route = trees.route[chunk, node]
        if self.quotient is not None:
            raw = self.quotient.expanded(self.demand, self.routes, self.quotient.chunks[chunk], route, start)
            return left_shift(prune(raw))
        flags = np.zeros(len(chunk), dtype=np.bool_)
        raw = Schedule(self.topology, self.demand, self.routes, chunk.astype(np.int32), route, start, flags, "lns")
        return left_shift(prune(raw))
