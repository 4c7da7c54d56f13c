"""Large-neighbourhood search on a timetable of the links: remove chunks and insert them again.

Methods `lns` and `lns-quotient`. The second works on the quotient of the problem by a symmetry group (`quotient.py`):
one timetable row per orbit of links, and one tree per orbit of chunks. The quotient is a smaller problem, and on
symmetric machines its good schedules are good schedules of the whole problem.

1. Construction. Chunk by chunk, a tree grows from the source to the destinations: the node that can receive the chunk
   first, given the bookings in the timetable, is added next. Routes that occupy links for long are penalized, so that
   a chunk crosses scarce links only once.
2. Repair. A better schedule of another method is adopted. If only a few of its many chunks are late, they are
   improved first.
3. Search. The target is slightly below the current completion time. A chunk that misses the target, and chunks that
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
from flowccl.methods.lns.search_kernels import book_all, build, improve, last_ps
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
_MOST_TO_BUILD = 1_000_000  # chunks x routes: beyond, only schedules of other methods are improved
_FEW_TO_BUILD = 200_000  # up to here, one step makes all first constructions
_IDLE_STEPS = 25  # steps without improvement before the search restarts
_REPAIR_ROUNDS = 5  # rounds of repair without improvement before the repair ends
_DELIVERIES_PER_REPAIR = 5_000  # deliveries per additional round of repair in a step
_LATE_CHUNKS, _LEAST_REPAIR = (1, 2, 4, 8, 16, 32), 1e-5  # late chunks in a round of repair; least drop of its target
_LEAST_DROP, _MOST_DROP = 0.001, 0.1  # of the target, relative to the completion time
_RIGHT_SHIFT_RATE, _MOST_MOVED = 0.3, 3e7  # probability of right-shifting; most entries that it may move
_QUOTIENT = "lns-quotient"
_MOST_ENTRIES = 30_000_000  # chunks x nodes
_FIRST_STEPS = 16  # of a quotient search before its first report: its first constructions are slow and poor


def lns(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Constructions with several weights, then the neighbourhood search."""
    topology, demand = problem.topology, problem.demand
    _check(topology, demand, "lns")
    if len(demand) * len(topology.nodes) > _MOST_ENTRIES:
        raise DemandError(
            f"method lns supports up to {_MOST_ENTRIES} chunks x nodes; got {len(demand)} x {len(topology.nodes)}"
        )
    search = LnsSearch(topology, demand, context.seed)
    while True:
        other = context.incumbents.schedules.get(problem)
        if other is not None and (other.method == _QUOTIENT or other.rate_GBps.any()):
            other = None  # the quotient search improves its own schedules better, and here links are not shared by rate
        yield search.step(other, context.incumbents.bound_ps)


def lns_quotient(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """The same on the quotient by the largest free symmetry group that leaves the demand unchanged."""
    topology, demand = problem.topology, problem.demand
    _check(topology, demand, _QUOTIENT)
    quotients = (Quotient.of(group, demand) for group in problem.free_groups)
    quotient = next((quotient for quotient in quotients if quotient is not None), None)
    if quotient is None:
        raise DemandError("method lns-quotient needs a symmetry of machine and demand that fixes no link; use lns")
    search = LnsSearch(topology, demand, context.seed, quotient)
    found = [search.step() for _ in range(_FIRST_STEPS)]
    best = min((one for one in found if one is not None), key=lambda one: one.finish_ps, default=None)
    while True:
        if best is not None:
            context.incumbents.report(best)
        yield best
        best = search.step(bound_ps=context.incumbents.bound_ps)


def _check(topology: Topology, demand: Demand, name: str) -> None:
    if demand.reduces:
        raise DemandError(f"method {name} needs chunks with one source each; {demand.collective} reduces several")
    if any(node.crossing == "store-and-forward" for node in topology.nodes if not node.stores):
        raise DemandError(f"method {name} does not support store-and-forward switches; use greedy or auto")


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
        self.route_of = {
            tuple(links): r for r, links in enumerate(near.routes.links(i) for i in range(len(near.routes)))
        }
        self.rows, self.net = self._network(near)
        self.planned = self._planned_chunks()
        self.random = np.random.default_rng(self.seed)
        self.best_ps: int = NEVER
        self.state: tuple[Timetable, InsertedTrees] | None = None
        self.state_ps: int = NEVER
        self.weight, self.target_drop, self.steps, self.idle = 1.0, 0.03, 0, 0
        self.bound_ps: float = 0.0
        chunk_routes = len(self.planned.source) * len(self.net.end)
        self.builds = chunk_routes <= _MOST_TO_BUILD
        self.weights: tuple[float, ...] = _WEIGHTS
        self.builds_per_step = len(_WEIGHTS) if chunk_routes <= _FEW_TO_BUILD else 1
        self.repairs_left = 0  # rounds of repair left without improvement
        self.seen: Schedule | None = None
        self.best: Schedule | None = None

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

    def step(self, other: Schedule | None = None, bound_ps: float = 0.0) -> Schedule | None:
        """One construction or one round of the neighbourhood search; return the schedule if it is the best so far.

        Adopts `other` if it is better than the current schedule; it is then returned if nothing better is found.
        `bound_ps` is a lower bound on the completion time.
        """
        self.steps += 1
        self.bound_ps = bound_ps
        before_ps = self.best_ps
        if other is not None and other.finish_ps < self.state_ps and other is not self.seen:
            self._adopt(other)
            if other.finish_ps < self.best_ps:
                self.best, self.best_ps = other, other.finish_ps
        if self.repairs_left:
            self._repair()
        elif self.builds and self.weights:
            for weight in self.weights[: self.builds_per_step]:
                self._build(weight)
            self.weights = self.weights[self.builds_per_step :]
        elif self.state is not None:
            if self.idle >= _IDLE_STEPS and (self.quotient is not None or self.builds):
                if self.quotient is None and self.best is not None and self.state_ps > self.best_ps:
                    self._adopt(self.best)
                    self.idle = 0
                else:
                    self._restart()
            self._improve()
        if self.state is None or self.state_ps >= self.best_ps:
            return self.best if self.best_ps < before_ps else None
        self.best = self._schedule(self.state[1])
        if self.quotient is None and self.best.finish_ps < self.state_ps:  # by the left-shift
            self._adopt(self.best)
        self.best_ps = self.best.finish_ps
        return self.best

    def _adopt(self, other: Schedule) -> None:
        """Adopt the transfers of a schedule, if each has one end and uses a known route."""
        self.seen = other
        known = [self.route_of.get(tuple(other.routes.links(r)), -1) for r in range(len(other.routes))]
        route = np.array(known, dtype=np.int32)[other.route]
        if (route < 0).any():
            return
        size = (len(self.demand), len(self.topology.nodes))
        trees = InsertedTrees(np.full(size, -1, np.int32), np.zeros(size, np.int64), np.zeros(size, np.int64))
        chunk, node = other.chunk, self.net.end[route]
        trees.route[chunk, node], trees.start_ps[chunk, node] = route, other.start_ps
        trees.at_ps[np.arange(size[0]), self.planned.source] = self.planned.ready_ps
        trees.at_ps[chunk, node] = other.timing.end_arrival_ps  # one end per transfer
        if np.count_nonzero(trees.route >= 0) < len(other):  # some node receives a chunk twice
            return
        order = np.argsort(other.start_ps, kind="stable")
        starts = (chunk[order], route[order], other.start_ps[order])
        self.state = (book_all(self.net, self.planned, new_timetable(self.rows, 64), *starts), trees)
        self.state_ps, self.repairs_left = other.finish_ps, _REPAIR_ROUNDS

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

    def _repair(self) -> None:
        """Improve the few chunks that determine the completion time of an adopted schedule.

        With many chunks this takes much less work than improving all of them.
        """
        for _ in range(1 + len(self.planned.wanted) // _DELIVERIES_PER_REPAIR):
            last = np.sort(self._last_ps())
            few = last[-1 - min(int(self.random.choice(_LATE_CHUNKS)), len(last) - 1)]
            most, weight = int(self.random.choice([2, 4])), self._random_weight()
            better = self._remove_and_insert(
                min(int(few), int(last[-1] * (1 - _LEAST_REPAIR))), weight, most, right_shift=False
            )
            self.repairs_left = _REPAIR_ROUNDS if better else self.repairs_left - 1
            if not self.repairs_left:
                break

    def _improve(self) -> None:
        target, weight = self._target_ps(), self._random_weight()
        most = int(self.random.choice([2, 4, 8, 16]))
        shifts = bool(self.random.random() < _RIGHT_SHIFT_RATE)
        better = self._remove_and_insert(target, weight, most, shifts and self._few_entries())
        self.idle = 0 if better else self.idle + 1
        self.target_drop = (
            min(self.target_drop * 1.5, _MOST_DROP) if better else max(self.target_drop * 0.8, _LEAST_DROP)
        )

    def _few_entries(self) -> bool:
        """Whether right-shifting all chunks is fast: each booking moves later entries of its links."""
        assert self.state is not None
        return float(np.square(self.state[0].entries.astype(np.float64)).sum()) <= _MOST_MOVED

    def _target_ps(self) -> int:
        """Below the completion time by a part of it; near the lower bound, by a part of the gap."""
        left_ps = self.state_ps - self.bound_ps
        near = left_ps <= self.state_ps * _LEAST_DROP
        return int(
            self.state_ps - (left_ps * self.target_drop / _MOST_DROP if near else self.state_ps * self.target_drop)
        )

    def _remove_and_insert(self, target_ps: int, weight: float, most: int, right_shift: bool) -> bool:
        """Remove and insert chunks, a few at a time; return whether the completion time improved."""
        assert self.state is not None
        table, trees = self.state
        tries = min(max(_EXAMINED_ROUTES // (len(self.net.end) * min(most, len(self.planned.source))), 5), 200)
        table = improve(self.net, self.planned, table, trees, target_ps, weight, tries, most, right_shift, self.random)
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
