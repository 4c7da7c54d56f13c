"""Every chunk takes the earliest way that the timetable leaves it; then some are torn out and woven in again.

Methods `woven` and `folded`. The second does it on the machine folded by a symmetry (`fold.py`): a timetable for every
orbit of links, a tree for one chunk of every orbit of chunks. That is a smaller problem, and where all GPUs are alike
its good schedules are good ones for all.

1. Chunk by chunk: a tree from its source to all who want it, always the node next that can have it first, between all
   that is booked already. Ways that hold much of the links count as later, so that scarce links carry a chunk once.
2. What another method found and is better is taken over. Of many chunks a few are the last: they are repaired first.
3. A large-neighbourhood search: the finish shall come down by a little; a chunk that is late then and some that go
   before it on its way are torn out of the timetable and woven in again, in another order, with another weight. That
   stays unless they are later than before.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.lns.insertion_kernels import Ways, Work
from flowccl.methods.lns.quotient import Quotient
from flowccl.methods.lns.search_kernels import book_all, build, improve, last_ps
from flowccl.methods.lns.timetable_kernels import Net, Table, new_table
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.timing import spread as spread_rows
from flowccl.schedule.transform import left_shift, prune
from flowccl.search.context import SearchContext
from flowccl.topology.neighbours import Neighbours, neighbours
from flowccl.topology.topology import Topology
from flowccl.units import busy_times_ps

_NEVER = np.iinfo(np.int64).max
_WEIGHTS = (3.0, 0.3, 10.0, 1.0)  # of the first runs
_MANY_ROUTES = 3_000  # beyond, only the two best routes of each pair are taken
_OFFERS = 600_000  # about so many routes are looked at in one step of the neighbourhood search, in 5 to 200 tries
_MOST_OFFERS = 1_000_000  # chunks x routes: beyond, nothing is built here, but what others found is improved
_FEW_OFFERS = 200_000  # up to here, all first builds are made in one step
_IDLE = 25  # steps that may bring nothing before the search starts anew
_FRESH = 5  # rounds that may bring nothing before what others found is repaired
_REPAIRED = 5_000  # for so many deliveries, one more round of repair in a step
_FEW_LATE, _LEAST = (1, 2, 4, 8, 16, 32), 1e-5  # chunks that are late in such a round; by this part of the finish
_LEAST_BOLD, _MOST_BOLD = 0.001, 0.1  # parts of the finish by which it shall be earlier
_PARKS, _MOST_ASIDE = 0.3, 3e7  # how often the chunks that are early are parked, and holds that are moved for it
_QUOTIENT = "lns-quotient"
_MOST_ENTRIES = 30_000_000  # chunks x nodes
_FIRST_STEPS = 16  # of a folded search before it is compared with others: its first builds say little, and take long


def lns(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Builds with several weights, then the neighbourhood search, for ever."""
    topology, demand = problem.topology, problem.demand
    _check(topology, demand, "lns")
    if len(demand) * len(topology.nodes) > _MOST_ENTRIES:
        raise DemandError(f"woven keeps a table of chunks x nodes; {len(demand)} x {len(topology.nodes)} are too many")
    search = LnsSearch(topology, demand, context.seed)
    while True:
        other = context.incumbents.schedules.get(problem)
        if other is not None and other.method == _QUOTIENT:  # the quotient search improves its own schedules better
            other = None
        yield search.step(other, context.incumbents.bound_ps)


def lns_quotient(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """The same on the machine folded by its largest free group that leaves the demand unchanged."""
    topology, demand = problem.topology, problem.demand
    _check(topology, demand, _QUOTIENT)
    folds = (Quotient.of(group, demand) for group in problem.free_groups)
    quotient = next((quotient for quotient in folds if quotient is not None), None)
    if quotient is None:
        raise DemandError("folded needs a symmetry of machine and demand that leaves no link in place; use woven")
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
        raise DemandError(f"{name} moves chunks with one source each; {demand.collective} adds up several")
    if any(node.crossing == "store-and-forward" for node in topology.nodes if not node.stores):
        raise DemandError(f"{name} knows no store-and-forward switches; use greedy")


@dataclass
class LnsSearch:
    """The state of the search: the timetable, its ways, and how bold the next target is.

    `taken` is what others hold of the links: the chunks go between it, and schedules are not put earlier.
    """

    topology: Topology
    demand: Demand
    seed: int
    quotient: Quotient | None = None
    taken: Table | None = None

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
        self.work = self._planned()
        self.random = np.random.default_rng(self.seed)
        self.best_ps: int = _NEVER
        self.state: tuple[Table, Ways] | None = None
        self.state_ps: int = _NEVER
        self.weight, self.bold, self.steps, self.idle = 1.0, 0.03, 0, 0
        self.bound_ps: float = 0.0
        offers = len(self.work.source) * len(self.net.end)
        self.builds = offers <= _MOST_OFFERS
        self.weights: tuple[float, ...] = _WEIGHTS
        self.builds_per_step = len(_WEIGHTS) if offers <= _FEW_OFFERS else 1
        self.fresh = 0  # rounds of repair to come, if they bring nothing
        self.seen: Schedule | None = None
        self.best: Schedule | None = None

    def _network(self, near: Neighbours) -> tuple[int, Net]:
        """How many timetables there are, and the routes over them; of a folded machine, one for each orbit of links."""
        link_row = (
            self.quotient.group.link_orbits if self.quotient else np.arange(len(self.topology.links), dtype=np.int32)
        )
        shape, many = near.shape, np.diff(near.pair_ptr)
        start, end = np.repeat(near.src, many), np.repeat(near.end, many)
        away = shape.hop_offset_ps[shape.end_hop] + self.topology.link_latency_ps[near.routes.link[shape.end_hop]]
        row = link_row[near.routes.link]
        usable = self._once_at_a_time(near, row) if self.quotient else np.ones(len(start), dtype=np.bool_)
        into = np.argsort(end, kind="stable")
        nodes = np.arange(len(self.topology.nodes) + 1)
        net = Net(
            np.searchsorted(start, nodes).astype(np.int64),
            start,
            end,
            shape.segment_GBps,
            away,
            near.routes.ptr,
            row,
            shape.hop_offset_ps,
            np.searchsorted(end[into], nodes).astype(np.int64),
            into.astype(np.int64),
            near.distance_ps(float(self.demand.chunk_bytes.mean())),
            usable,
        )
        return int(link_row.max()) + 1, net

    def _once_at_a_time(self, near: Neighbours, row: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Routes that do not hold two links of an orbit at once."""
        hold = busy_times_ps(np.full(len(near.routes), int(self.demand.chunk_bytes.max())), near.shape.segment_GBps)
        route = np.repeat(np.arange(len(near.routes)), np.diff(near.routes.ptr))
        order = np.lexsort((near.shape.hop_offset_ps, row, route))
        route, row, offset = route[order], row[order], near.shape.hop_offset_ps[order]
        again = (route[1:] == route[:-1]) & (row[1:] == row[:-1]) & (np.diff(offset) < hold[route[1:]])
        usable = np.ones(len(near.routes), dtype=np.bool_)
        usable[route[1:][again]] = False
        return usable

    def _planned(self) -> Work:
        """The chunks that are planned: all, or the first of each orbit."""
        demand = self.demand
        chunks = self.quotient.chunks if self.quotient else np.arange(len(demand))
        size = np.diff(demand.destination_ptr)[chunks]
        _, rows = spread_rows(demand.destination_ptr, chunks.astype(np.int32))
        ptr = np.concatenate(([0], np.cumsum(size))).astype(np.int64)
        wanted = demand.destination_rank[rows]
        return Work(demand.chunk_bytes[chunks], demand.source[chunks], demand.available_ps[chunks], ptr, wanted)

    def step(self, other: Schedule | None = None, bound_ps: float = 0.0) -> Schedule | None:
        """One build or one round of the neighbourhood search: a schedule if it is the best so far.

        Goes on from `other` where that is better than what is here; it then counts as found. Nothing can be earlier
        than `floor_ps`.
        """
        self.steps += 1
        self.bound_ps = bound_ps
        before_ps = self.best_ps
        if other is not None and other.finish_ps < self.state_ps and other is not self.seen:
            self._start_from(other)
            if other.finish_ps < self.best_ps:
                self.best, self.best_ps = other, other.finish_ps
        if self.fresh:
            self._repair()
        elif self.builds and self.weights:
            for weight in self.weights[: self.builds_per_step]:
                self._build(weight)
            self.weights = self.weights[self.builds_per_step :]
        elif self.state is not None:
            if self.idle >= _IDLE and (self.quotient is not None or self.builds):
                if self.quotient is None and self.best is not None and self.state_ps > self.best_ps:
                    self._start_from(self.best)
                    self.idle = 0
                else:
                    self._start_anew()
            self._improve()
        if self.state is None or self.state_ps >= self.best_ps:
            return self.best if self.best_ps < before_ps else None
        self.best = self._schedule(self.state[1])
        if self.quotient is None and self.best.finish_ps < self.state_ps:  # retimed
            self._start_from(self.best)
        self.best_ps = self.best.finish_ps
        return self.best

    def _table(self) -> Table:
        """A new timetable in which only others hold links."""
        if self.taken is None:
            return new_table(self.rows, 64)
        held = self.taken
        return Table(held.holds.copy(), held.begin_ps.copy(), held.until_ps.copy(), held.chunk.copy())

    def _start_from(self, other: Schedule) -> None:
        """Take over the transfers of a schedule, if all of them go from one node to one over routes known here."""
        self.seen = other
        known = [self.route_of.get(tuple(other.routes.links(r)), -1) for r in range(len(other.routes))]
        route = np.array(known, dtype=np.int32)[other.route]
        if (route < 0).any():
            return
        size = (len(self.demand), len(self.topology.nodes))
        ways = Ways(np.full(size, -1, np.int32), np.zeros(size, np.int64), np.zeros(size, np.int64))
        chunk, node = other.chunk, self.net.end[route]
        ways.route[chunk, node], ways.start_ps[chunk, node] = route, other.start_ps
        ways.at_ps[np.arange(size[0]), self.work.source] = self.work.ready_ps
        ways.at_ps[chunk, node] = other.timing.end_arrival_ps  # one end each
        if np.count_nonzero(ways.route >= 0) < len(other):  # a chunk comes twice to a node
            return
        order = np.argsort(other.start_ps, kind="stable")
        starts = (chunk[order], route[order], other.start_ps[order])
        self.state = (book_all(self.net, self.work, self._table(), *starts), ways)
        self.state_ps, self.fresh = other.finish_ps, _FRESH

    def _build(self, weight: float) -> None:
        order = self.random.permutation(len(self.work.source))
        done, table, ways = build(self.net, self.work, self._table(), order, weight)
        last = int(last_ps(self.work, ways).max()) if done else _NEVER
        if last < self.state_ps:
            self.state, self.state_ps, self.weight = (table, ways), last, weight

    def _start_anew(self) -> None:
        """Another build, from which the search may come to another end."""
        self.state_ps, self.idle, self.bold = _NEVER, 0, 0.03
        self._build(self._other_weight())

    def _repair(self) -> None:
        """What is new here may be late for a few chunks only: they shall come a little earlier, then others.

        Of many chunks that asks for much less work than to improve all of them.
        """
        for _ in range(1 + len(self.work.wanted) // _REPAIRED):
            last = np.sort(self._last_ps())
            few = last[-1 - min(int(self.random.choice(_FEW_LATE)), len(last) - 1)]
            most, weight = int(self.random.choice([2, 4])), self._other_weight()
            better = self._tear(min(int(few), int(last[-1] * (1 - _LEAST))), weight, most, park=False)
            self.fresh = _FRESH if better else self.fresh - 1
            if not self.fresh:
                break

    def _improve(self) -> None:
        target, weight = self._target_ps(), self._other_weight()
        most = int(self.random.choice([2, 4, 8, 16]))
        parks = bool(self.random.random() < _PARKS)
        better = self._tear(target, weight, most, parks and self._few_holds())
        self.idle = 0 if better else self.idle + 1
        self.bold = min(self.bold * 1.5, _MOST_BOLD) if better else max(self.bold * 0.8, _LEAST_BOLD)

    def _few_holds(self) -> bool:
        """Whether all chunks can be parked in a moment: each moves the holds of its links aside."""
        assert self.state is not None
        return float(np.square(self.state[0].holds.astype(np.float64)).sum()) <= _MOST_ASIDE

    def _target_ps(self) -> int:
        """Earlier by a part of the finish; near the floor by a part of what is left, for else all would be late."""
        left_ps = self.state_ps - self.bound_ps
        near = left_ps <= self.state_ps * _LEAST_BOLD
        return int(self.state_ps - (left_ps * self.bold / _MOST_BOLD if near else self.state_ps * self.bold))

    def _tear(self, target_ps: int, weight: float, most: int, park: bool) -> bool:
        """Tear chunks out and weave them in again, some at a time; whether the finish is earlier then."""
        assert self.state is not None
        table, ways = self.state
        tries = min(max(_OFFERS // (len(self.net.end) * min(most, len(self.work.source))), 5), 200)
        table = improve(self.net, self.work, table, ways, target_ps, weight, tries, most, park, self.random)
        before_ps, self.state = self.state_ps, (table, ways)
        self.state_ps = int(self._last_ps().max())
        return self.state_ps < before_ps

    def _last_ps(self) -> NDArray[np.int64]:
        """When each chunk is everywhere."""
        assert self.state is not None
        return last_ps(self.work, self.state[1])

    def _other_weight(self) -> float:
        return self.weight * float(np.exp(self.random.normal(0, 0.5)))

    def _schedule(self, ways: Ways) -> Schedule:
        chunk, node = np.nonzero(ways.route >= 0)
        start = ways.start_ps[chunk, node]
        route = ways.route[chunk, node]
        if self.quotient is not None:
            raw = self.quotient.unfolded(self.demand, self.routes, self.quotient.chunks[chunk], route, start)
            return left_shift(prune(raw))
        flags = np.zeros(len(chunk), dtype=np.bool_)
        raw = Schedule(self.topology, self.demand, self.routes, chunk.astype(np.int32), route, start, flags, "lns")
        return left_shift(prune(raw)) if self.taken is None else raw
