"""Plans on the grid: transfers that start at epochs, built from sends or from an order of transfers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.papers.teccl.epochs import Grid, Ints


@dataclass(frozen=True, eq=False)
class GridPlan:
    """Transfer i moves chunk `chunk[i]` over the links `links[i]` from epoch `epoch[i]` on; all arrive by `epochs`."""

    grid: Grid
    demand: Demand
    chunk: tuple[int, ...]
    links: tuple[tuple[int, ...], ...]
    epoch: tuple[int, ...]
    epochs: int

    @classmethod
    def of(cls, grid: Grid, demand: Demand, rows: Sequence[tuple[int, tuple[int, ...], int]]) -> "GridPlan":
        """Create a plan from (chunk, links, epoch) rows."""
        steps = RouteTimes(grid, max((row[2] for row in rows), default=0) + 2)
        epochs = max((at for _, links, epoch in rows for _, at in steps.ends(links, epoch)), default=0)
        chunk, links, epoch = zip(*rows, strict=True) if rows else ((), (), ())
        return cls(grid, demand, tuple(chunk), tuple(links), tuple(epoch), epochs)

    @cached_property
    def sends(self) -> tuple[Ints, Ints, Ints]:
        """(chunk, arc, epoch) of every send."""
        steps = RouteTimes(self.grid, self.epochs + 1)
        rows = [
            (chunk, arc, epoch + shift)
            for chunk, links, epoch in zip(self.chunk, self.links, self.epoch, strict=True)
            for arc, shift in steps.arcs(links, epoch)
        ]
        chunk, arc, epoch = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        return chunk, arc, epoch


class RouteTimes:
    """Times of routes on the grid: which arcs they use in which epochs, and when they arrive."""

    def __init__(self, grid: Grid, num_epochs: int) -> None:
        self.grid, self.num_epochs = grid, num_epochs
        self.delay, self.busy_epochs, self.capacity = (
            f(num_epochs) for f in (grid.delay, grid.busy_epochs, grid.capacity)
        )
        self._known: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        self._arc = {grid.routes.links(a): a for a in range(grid.num_arcs)}
        self._even = not grid.topology.changes

    def arcs(self, links: tuple[int, ...], epoch: int) -> list[tuple[int, int]]:
        """Return (arc, epochs after the start) of each send of a route that starts in an epoch."""
        if links in self._known:
            return self._known[links]
        if links in self._arc:
            result = [(self._arc[links], 0)]
        else:
            at: dict[int, int] = {}  # epoch in which a switch has the chunk
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
        """Return (node, epoch from which it can send the chunk on) of each end of a route."""
        stores = self.grid.topology.stores
        last = self.num_epochs - 1
        return [
            (int(self.grid.head[arc]), epoch + shift + int(self.delay[arc, min(epoch + shift, last)]))
            for arc, shift in self.arcs(links, epoch)
            if stores[self.grid.head[arc]]
        ]


def to_grid_plan(
    grid: Grid, demand: Demand, transfers: Iterable[tuple[int, tuple[int, ...]]], most_epochs: int
) -> GridPlan | None:
    """Place transfers (chunk, links) in this order, each in the first epoch that its data and its links allow.

    None if they take more than `most_epochs`, or if a route is not an arc of the grid.
    """
    steps = RouteTimes(grid, most_epochs + 1)
    occupancy = _Occupancy(steps)
    ready = {(c, int(s)): 0 for c, s in enumerate(demand.source)}
    chunks, routes, epochs = [], [], []
    finish = 0
    for chunk, links in transfers:
        root = int(grid.topology.link_src[links[0]])
        try:
            epoch = occupancy.take(links, ready[chunk, root], most_epochs)
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


class _Occupancy:
    """The occupancy of every link and limit in every epoch."""

    def __init__(self, steps: RouteTimes) -> None:
        self.steps, self.grid = steps, steps.grid
        topology = self.grid.topology
        count = steps.num_epochs + int(steps.busy_epochs.max()) + int(steps.delay.max()) * len(topology.nodes)
        self.use = [[0.0] * count for _ in range(len(topology.links) + len(topology.limits))]
        pointer, limit = topology.link_limits
        self.limits = [limit[pointer[i] : pointer[i + 1]].tolist() for i in range(len(topology.links))]
        self.rate = self.grid.rate_GBps(steps.num_epochs)
        self._known: dict[tuple[int, ...], list[tuple[int, int, int, float]]] = {}

    def take(self, links: tuple[int, ...], ready: int, end: int) -> int | None:
        """Return the first epoch from `ready` on in which all links have capacity, and occupy them."""
        epoch = ready
        while epoch < end:
            uses = self._uses(links, epoch)
            later = self._clash(uses, epoch)
            if later == epoch:
                for row, shift, busy_epochs, part in uses:
                    use = self.use[row]
                    for k in range(epoch + shift, epoch + shift + busy_epochs):
                        use[k] += part
                return epoch
            epoch = later
        return None

    def _clash(self, uses: list[tuple[int, int, int, float]], epoch: int) -> int:
        """Return the next epoch to try: this one if everything fits, else the first epoch behind the conflict."""
        for row, shift, busy_epochs, part in uses:
            use, most = self.use[row], 1 + 1e-9 - part
            for k in range(epoch + shift + busy_epochs - 1, epoch + shift - 1, -1):
                if use[k] > most:
                    return k + 1 - shift
        return epoch

    def _uses(self, links: tuple[int, ...], epoch: int) -> list[tuple[int, int, int, float]]:
        """(row of use, epochs after the start, number of epochs, share) for every link and limit."""
        if links in self._known:
            return self._known[links]
        uses, last = [], self.steps.num_epochs - 1
        topology = self.grid.topology
        for arc, after in self.steps.arcs(links, epoch):
            k = min(epoch + after, last)
            busy_epochs, part = int(self.steps.busy_epochs[arc, k]), 1.0 / int(self.steps.capacity[arc, k])
            for hop in range(int(self.grid.routes.ptr[arc]), int(self.grid.routes.ptr[arc + 1])):
                shift, link = after + int(self.grid.hop_shift[hop]), int(self.grid.hop_link[hop])
                uses.append((link, shift, busy_epochs, part))
                for limit in self.limits[link]:
                    share = min(float(self.rate[arc, k]) / float(topology.limit_GBps[limit]), 1.0)
                    uses.append((len(topology.links) + limit, shift, busy_epochs, part * share))
        if not topology.changes:
            self._known[links] = uses
        return uses


def transfers_of(
    grid: Grid, num_epochs: int, chunk: NDArray[np.integer], arc: NDArray[np.integer], epoch: NDArray[np.integer]
) -> list[tuple[int, tuple[int, ...], int]]:
    """Return (chunk, links, epoch) rows from sends; a switch continues the transfer, and copies are part of it."""
    steps = RouteTimes(grid, num_epochs + 1)
    stores = grid.topology.stores
    waiting: dict[tuple[int, int, int], list[int]] = {}  # arcs that leave the switch in that epoch
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
    steps: RouteTimes,
    waiting: dict[tuple[int, int, int], list[int]],
    chunk: int,
    arc: int,
    epoch: int,
    links: list[int],
) -> None:
    """Append the arcs that leave the switch at the end of an arc, up to storing nodes."""
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


def by_epoch(plan: GridPlan) -> list[int]:
    """Return the transfers in the order of their epochs."""
    return sorted(range(len(plan.chunk)), key=lambda i: plan.epoch[i])
