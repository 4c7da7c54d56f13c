"""Plans on the grid: transfers that start at epochs, built from sends or from an order of transfers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.papers.teccl.epochs import Grid, Ints

Links = tuple[int, ...]
Row = tuple[int, Links, int]
"""A transfer: chunk, links, and the epoch in which it starts."""
_Use = tuple[int, int, int, float]  # link or limit, epochs after the start, number of epochs, share


@dataclass(frozen=True, eq=False)
class GridPlan:
    """Transfers in the order of their epochs; all arrive by `epochs`."""

    grid: Grid
    demand: Demand
    rows: tuple[Row, ...]
    epochs: int

    @classmethod
    def of(cls, grid: Grid, demand: Demand, rows: Iterable[Row]) -> "GridPlan":
        """Create a plan from rows in any order."""
        ordered = tuple(sorted(rows, key=lambda row: row[2]))
        return cls(grid, demand, ordered, max((e + at for _, k, e in ordered for _, at in grid.ends_of(k)), default=0))

    @cached_property
    def sends(self) -> tuple[Ints, Ints, Ints]:
        """(chunk, arc, epoch) of every send."""
        rows = [
            (chunk, arc, epoch + shift) for chunk, links, epoch in self.rows for arc, shift in self.grid.sends_of(links)
        ]
        chunk, arc, epoch = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        return chunk, arc, epoch


def to_grid_plan(
    grid: Grid, demand: Demand, transfers: Iterable[tuple[int, Links]], most_epochs: int
) -> GridPlan | None:
    """Place transfers (chunk, links) in this order, each in the first epoch that its data and its links allow.

    None if they take more than `most_epochs`, or if a route is not an arc of the grid.
    """
    occupancy = _Occupancy(grid, most_epochs)
    ready = {(c, int(s)): 0 for c, s in enumerate(demand.source)}
    rows = []
    for chunk, links in transfers:
        try:
            epoch = occupancy.take(links, ready[chunk, int(grid.topology.link_src[links[0]])])
        except KeyError:
            return None
        for node, after in grid.ends_of(links):
            if epoch + after > most_epochs:
                return None
            ready[chunk, node] = min(ready.get((chunk, node), epoch + after), epoch + after)
        rows.append((chunk, links, epoch))
    return GridPlan.of(grid, demand, rows)


class _Occupancy:
    """The occupancy of every link and limit in every epoch."""

    def __init__(self, grid: Grid, most_epochs: int) -> None:
        self.grid, self.most_epochs, topology = grid, most_epochs, grid.topology
        count = most_epochs + 1 + int(grid.busy_epochs.max()) + int(grid.delay.max()) * len(topology.nodes)
        self.use = [[0.0] * count for _ in range(len(topology.links) + len(topology.limits))]
        self._known: dict[Links, list[_Use]] = {}

    def take(self, links: Links, ready: int) -> int:
        """Occupy the links in the first epoch from `ready` on in which all have capacity; return the epoch."""
        uses, epoch = self._uses(links), ready
        while epoch < self.most_epochs and (later := self._clash(uses, epoch)) > epoch:
            epoch = later
        for row, shift, busy_epochs, part in uses if epoch < self.most_epochs else ():
            use = self.use[row]
            for k in range(epoch + shift, epoch + shift + busy_epochs):
                use[k] += part
        return epoch

    def _clash(self, uses: list[_Use], epoch: int) -> int:
        """Return the next epoch to try: this one if everything fits, else the first epoch behind the conflict."""
        for row, shift, busy_epochs, part in uses:
            use, most = self.use[row], 1 + 1e-9 - part
            for k in range(epoch + shift + busy_epochs - 1, epoch + shift - 1, -1):
                if use[k] > most:
                    return k + 1 - shift
        return epoch

    def _uses(self, links: Links) -> list[_Use]:
        """What a transfer occupies, and for how long."""
        if links not in self._known:
            grid, topology = self.grid, self.grid.topology
            pointer, limits = topology.link_limits
            self._known[links] = uses = []
            for arc, after in grid.sends_of(links):
                busy_epochs, part = int(grid.busy_epochs[arc]), 1.0 / int(grid.capacity[arc])
                for hop in np.flatnonzero(grid.hop_arc == arc).tolist():
                    shift, link = after + int(grid.hop_shift[hop]), int(grid.hop_link[hop])
                    uses.append((link, shift, busy_epochs, part))
                    for limit in limits[pointer[link] : pointer[link + 1]].tolist():
                        share = min(float(grid.rate_GBps[arc] / topology.limit_GBps[limit]), 1.0)
                        uses.append((len(topology.links) + limit, shift, busy_epochs, part * share))
        return self._known[links]


def transfers_of(
    grid: Grid, chunk: NDArray[np.integer], arc: NDArray[np.integer], epoch: NDArray[np.integer]
) -> list[Row]:
    """Return the transfers of sends; a switch continues the transfer, and copies are part of it."""
    stores, copies = grid.topology.stores, grid.topology.copies
    waiting: dict[tuple[int, int, int], list[int]] = {}  # arcs that leave the switch in that epoch
    first: list[tuple[int, int, int]] = []
    for c, a, k in sorted(zip(chunk.tolist(), arc.tolist(), epoch.tolist(), strict=True), key=lambda row: row[2]):
        if stores[grid.tail[a]]:
            first.append((c, a, k))
        else:
            waiting.setdefault((c, int(grid.tail[a]), k), []).append(a)

    def followed(c: int, a: int, k: int) -> Iterator[int]:
        """The links of an arc, and those of the arcs that leave the switch at its end, up to storing nodes."""
        yield from grid.routes.links(a)
        node, at = int(grid.head[a]), k + int(grid.delay[a])
        leaving = [] if stores[node] else waiting.pop((c, node, at), [])
        if leaving and not copies[node]:
            waiting[c, node, at] = leaving[1:]
        for out in leaving if copies[node] else leaving[:1]:
            yield from followed(c, out, at)

    rows = [(c, tuple(followed(c, a, k)), k) for c, a, k in first]
    return [row for row in rows if stores[grid.topology.link_dst[row[1][-1]]]]
