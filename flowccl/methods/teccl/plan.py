"""Transfers that start at epochs, and plans of the list scheduler moved onto the grid to start from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.check.bounds import lower_bound
from flowccl.demand.demand import Demand
from flowccl.methods.clock import Clock
from flowccl.methods.teccl.epochs import Grid, Ints
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology


@dataclass(frozen=True, eq=False)
class GridPlan:
    """Transfer i moves chunk `chunk[i]` over the links `links[i]` from epoch `epoch[i]` on; done after `epochs`."""

    grid: Grid
    demand: Demand
    chunk: tuple[int, ...]
    links: tuple[tuple[int, ...], ...]
    epoch: tuple[int, ...]
    epochs: int

    @classmethod
    def of(cls, grid: Grid, demand: Demand, rows: Sequence[tuple[int, tuple[int, ...], int]]) -> "GridPlan":
        """From (chunk, links, epoch) rows."""
        steps = Steps(grid, max((row[2] for row in rows), default=0) + 2)
        epochs = max((at for _, links, epoch in rows for _, at in steps.ends(links, epoch)), default=0)
        chunk, links, epoch = zip(*rows, strict=True) if rows else ((), (), ())
        return cls(grid, demand, tuple(chunk), tuple(links), tuple(epoch), epochs)

    @cached_property
    def sends(self) -> tuple[Ints, Ints, Ints]:
        """(chunk, arc, epoch) of every send."""
        steps = Steps(self.grid, self.epochs + 1)
        rows = [
            (chunk, arc, epoch + shift)
            for chunk, links, epoch in zip(self.chunk, self.links, self.epoch, strict=True)
            for arc, shift in steps.arcs(links, epoch)
        ]
        chunk, arc, epoch = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        return chunk, arc, epoch


class Steps:
    """Routes on the grid: which arcs they use when, and when they arrive."""

    def __init__(self, grid: Grid, num_epochs: int) -> None:
        self.grid, self.num_epochs = grid, num_epochs
        self.delay, self.hold, self.capacity = (f(num_epochs) for f in (grid.delay, grid.hold, grid.capacity))
        self._known: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        self._arc = {grid.routes.links(a): a for a in range(grid.num_arcs)}
        self._even = not grid.topology.changes

    def arcs(self, links: tuple[int, ...], epoch: int) -> list[tuple[int, int]]:
        """(arc, epochs after the start) of each send of a route that starts with an epoch."""
        if links in self._known:
            return self._known[links]
        if links in self._arc:
            result = [(self._arc[links], 0)]
        else:
            at: dict[int, int] = {}  # when a switch has the chunk
            result = []
            for link in links:  # each after the one that feeds it
                arc, head = self._arc[(link,)], int(self.grid.topology.link_dst[link])
                shift = at.get(int(self.grid.topology.link_src[link]), 0)
                result.append((arc, shift))
                at[head] = shift + int(self.delay[arc, min(epoch + shift, self.num_epochs - 1)])
        if self._even:
            self._known[links] = result
        return result

    def ends(self, links: tuple[int, ...], epoch: int) -> list[tuple[int, int]]:
        """(node, epoch from which it can send the chunk on) of each end of a route."""
        stores = self.grid.topology.stores
        last = self.num_epochs - 1
        return [
            (int(self.grid.head[arc]), epoch + shift + int(self.delay[arc, min(epoch + shift, last)]))
            for arc, shift in self.arcs(links, epoch)
            if stores[self.grid.head[arc]]
        ]


def snap(
    grid: Grid, demand: Demand, transfers: Iterable[tuple[int, tuple[int, ...]]], most_epochs: int
) -> GridPlan | None:
    """Transfers (chunk, links), in this order, each from the first epoch that its data and its links allow.

    None where they take more than `most_epochs`, or a route is no arc of the grid.
    """
    steps = Steps(grid, most_epochs + 1)
    room = _Room(steps)
    ready = {(c, int(s)): 0 for c, s in enumerate(demand.source)}
    chunks, routes, epochs = [], [], []
    finish = 0
    for chunk, links in transfers:
        root = int(grid.topology.link_src[links[0]])
        try:
            epoch = room.take(links, ready[chunk, root], most_epochs)
        except KeyError:
            return None
        if epoch is None:
            return None
        for node, at in steps.ends(links, epoch):
            finish = max(finish, at)
            ready[chunk, node] = min(ready.get((chunk, node), at), at)
        if finish > most_epochs:
            return None
        chunks.append(chunk)
        routes.append(links)
        epochs.append(epoch)
    return GridPlan(grid, demand, tuple(chunks), tuple(routes), tuple(epochs), finish)


class _Room:
    """How full every link and limit is in every epoch."""

    def __init__(self, steps: Steps) -> None:
        self.steps, self.grid = steps, steps.grid
        topology = self.grid.topology
        count = steps.num_epochs + int(steps.hold.max()) + int(steps.delay.max()) * len(topology.nodes)
        self.use = [[0.0] * count for _ in range(len(topology.links) + len(topology.limits))]
        pointer, limit = topology.link_limits
        self.limits = [limit[pointer[i] : pointer[i + 1]].tolist() for i in range(len(topology.links))]
        self.rate = self.grid.rate_GBps(steps.num_epochs)
        self._known: dict[tuple[int, ...], list[tuple[int, int, int, float]]] = {}

    def take(self, links: tuple[int, ...], ready: int, end: int) -> int | None:
        """The first epoch from `ready` on with room on all links, which is then taken."""
        epoch = ready
        while epoch < end:
            needs = self._needs(links, epoch)
            later = self._clash(needs, epoch)
            if later == epoch:
                for row, shift, hold, part in needs:
                    use = self.use[row]
                    for k in range(epoch + shift, epoch + shift + hold):
                        use[k] += part
                return epoch
            epoch = later
        return None

    def _clash(self, needs: list[tuple[int, int, int, float]], epoch: int) -> int:
        """The next epoch to try: this one if all fits, else behind what is in the way."""
        for row, shift, hold, part in needs:
            use, most = self.use[row], 1 + 1e-9 - part
            for k in range(epoch + shift + hold - 1, epoch + shift - 1, -1):
                if use[k] > most:
                    return k + 1 - shift
        return epoch

    def _needs(self, links: tuple[int, ...], epoch: int) -> list[tuple[int, int, int, float]]:
        """(row of use, epochs after the start, epochs, share) for every link and limit."""
        if links in self._known:
            return self._known[links]
        needs, last = [], self.steps.num_epochs - 1
        topology = self.grid.topology
        for arc, after in self.steps.arcs(links, epoch):
            k = min(epoch + after, last)
            hold, part = int(self.steps.hold[arc, k]), 1.0 / int(self.steps.capacity[arc, k])
            for hop in range(int(self.grid.routes.ptr[arc]), int(self.grid.routes.ptr[arc + 1])):
                shift, link = after + int(self.grid.hop_shift[hop]), int(self.grid.hop_link[hop])
                needs.append((link, shift, hold, part))
                for limit in self.limits[link]:
                    share = min(float(self.rate[arc, k]) / float(topology.limit_GBps[limit]), 1.0)
                    needs.append((len(topology.links) + limit, shift, hold, part * share))
        if not topology.changes:
            self._known[links] = needs
        return needs


@dataclass
class Start:
    """What the list scheduler gives: a plan of few epochs and, apart from it, the earliest schedule.

    `schedules` has what plans that came from schedules were before they were moved onto the grid.
    """

    plan: GridPlan | None = None
    schedule: Schedule | None = None
    schedules: dict[GridPlan, Schedule] = field(default_factory=dict)


def greedy_start(grid: Grid, demand: Demand, floor: int, clock: Clock, share: float = 0.3) -> Start:
    """Plans and schedules of the list scheduler.

    Two searches take turns: one sees the machine as it is, one as the grid rounds it. They end when `floor` epochs are
    met and the real finish is good or no longer gets better, or after their share of the time.
    """
    from flowccl.methods.greedy import GreedySearch

    until = clock.elapsed_s + share * max(clock.left_s, 0.0)
    good_ps = clock.good_ps or lower_bound(grid.topology, demand).ps * (1 + _GOOD)
    searches = [GreedySearch(grid.topology, demand, clock.seed)]
    rounded = rounded_topology(grid)
    if rounded is not None:
        searches.append(GreedySearch(rounded, even(demand), clock.seed))
    start, idle = Start(), 0
    limited = any(node.buffer_bytes is not None for node in grid.topology.nodes)
    while idle < _IDLE_STEPS:
        for search in searches:
            idle += 1
            if not search.step() or search.best is None:
                continue
            if search is searches[0]:
                start.schedule, idle = search.best, 0
            if limited:  # a plan in this order may need more room
                continue
            most = start.plan.epochs if start.plan is not None else _horizon(grid, search.best)
            plan = snap(grid, demand, in_order(search.best), most)
            if plan is None or (start.plan is not None and plan.epochs == most and search is not searches[0]):
                continue
            idle = 0 if start.plan is None or plan.epochs < most else idle
            start.plan = plan
            if search is searches[0]:
                start.schedules[plan] = search.best
        met = limited or (start.plan is not None and start.plan.epochs <= floor)
        good = start.schedule is not None and (start.schedule.finish_ps <= good_ps or idle >= _IDLE_STEPS // 4)
        if (met and good) or clock.elapsed_s > until or clock.should_stop():
            break
    return start


_GOOD = 1e-4  # a finish so near the lower bound is good enough
_IDLE_STEPS = 400  # runs without a better plan after which the searches end


def _horizon(grid: Grid, schedule: Schedule) -> int:
    """So many epochs that a plan in this order is sure to fit."""
    longest = int(grid.delay(1).max()) + int(grid.hold(1).max())
    return 4 * (schedule.finish_ps // grid.epoch_ps + 1) + 8 * longest


def in_order(schedule: Schedule) -> list[tuple[int, tuple[int, ...]]]:
    """(chunk, links) of all transfers by their start."""
    order = np.argsort(schedule.start_ps, kind="stable")
    routes = [schedule.routes.links(r) for r in range(len(schedule.routes))]
    return [(int(schedule.chunk[i]), routes[schedule.route[i]]) for i in order.tolist()]


def even(demand: Demand) -> Demand:
    """The demand with chunks of equal size: on the grid they take the same time."""
    return replace(demand, chunk_bytes=np.full(len(demand), _ROUND_BYTES, dtype=np.int64))


_ROUND_BYTES = 1_000_000  # any size: on the rounded machine, bandwidths are made for it


def rounded_topology(grid: Grid) -> Topology | None:
    """The machine with every time rounded to epochs; None where routes or changing bandwidths make that impossible."""
    topology = grid.topology
    if topology.changes or len(grid.routes.link) != grid.num_arcs or topology.limits:
        return None
    hold, capacity, delay = grid.hold(1)[:, 0], grid.capacity(1)[:, 0], grid.delay(1)[:, 0]
    busy_ps = hold * grid.epoch_ps // capacity
    late_ps = delay * grid.epoch_ps - np.where(topology.cuts_through[grid.head], 0, busy_ps)
    if busy_ps.min() < 1:
        return None
    GBps = _ROUND_BYTES * 1000.0 / busy_ps * (1 + 1e-13)
    links = [
        replace(link, bandwidth_GBps=float(b), latency_us=int(late) / 1e6)
        for link, b, late in zip(topology.links, GBps, late_ps, strict=True)
    ]
    return replace(topology, name=f"{topology.name} in epochs", links=tuple(links))


def transfers_of(
    grid: Grid, num_epochs: int, chunk: NDArray[np.integer], arc: NDArray[np.integer], epoch: NDArray[np.integer]
) -> list[tuple[int, tuple[int, ...], int]]:
    """(chunk, links, epoch) from sends: what a switch passes on joins what it got, copies as one transfer."""
    steps = Steps(grid, num_epochs + 1)
    stores = grid.topology.stores
    waiting: dict[tuple[int, int, int], list[int]] = {}  # (chunk, switch, epoch) -> arcs that leave it then
    first: list[tuple[int, int, int]] = []
    for c, a, k in sorted(zip(chunk.tolist(), arc.tolist(), epoch.tolist(), strict=True), key=lambda row: row[2]):
        if stores[grid.tail[a]]:
            first.append((c, a, k))
        else:
            waiting.setdefault((c, int(grid.tail[a]), k), []).append(a)
    result = []
    for c, a, k in first:
        links = list(grid.routes.links(a))
        _follow(grid, steps, waiting, c, a, k, links)
        if stores[grid.topology.link_dst[links[-1]]]:
            result.append((c, tuple(links), k))
    return result


def _follow(
    grid: Grid,
    steps: Steps,
    waiting: dict[tuple[int, int, int], list[int]],
    chunk: int,
    arc: int,
    epoch: int,
    links: list[int],
) -> None:
    """Add what leaves the switch at the end of an arc, and so on to storing nodes."""
    node = int(grid.head[arc])
    if grid.topology.stores[node]:
        return
    at = epoch + int(steps.delay[arc, min(epoch, steps.num_epochs - 1)])
    leaving = waiting.get((chunk, node, at), [])
    copies = grid.topology.copies[node]
    taken, left = (leaving, []) if copies else (leaving[:1], leaving[1:])
    waiting[chunk, node, at] = left
    for out in taken:
        links += grid.routes.links(out)
        _follow(grid, steps, waiting, chunk, out, at, links)


def sequence(plan: GridPlan) -> list[int]:
    """Transfers by epoch."""
    return sorted(range(len(plan.chunk)), key=lambda i: plan.epoch[i])
