"""From rates to whole chunks: chunks are divided into pieces, such that each path of the flow carries whole ones."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from flowccl.demand.demand import Demand
from flowccl.demand.division import divided
from flowccl.papers.teccl.epochs import Grid
from flowccl.papers.teccl.paths import EpochPath
from flowccl.papers.teccl.plan import GridPlan, Links

_PIECES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
_ROUNDED = (1, 2, 4, 8, 16)  # numbers of pieces to choose from where none is without rounding
_MOST_TRANSFERS = 60_000


@dataclass(frozen=True, eq=False)
class FlowPlan:
    """Paths on a grid; with `whole`, every path carries whole chunks."""

    grid: Grid
    demand: Demand
    paths: tuple[EpochPath, ...]
    epochs: int
    whole: bool

    def in_pieces(self) -> Iterator[tuple[GridPlan, bool]]:
        """Plans of whole pieces, each with whether it is exact: first that of fewest pieces without rounding."""
        if self.whole:
            yield _in_pieces(self, 1), True
            return
        sends = (
            sum(len(path.sends) for path in self.paths) / max(len(self.paths), 1) * len(self.demand.destination_rank)
        )
        most = most_pieces(self.demand)
        possible = [n for n in _PIECES if n <= most and (n == 1 or n * sends <= _MOST_TRANSFERS)]
        exact = [n for n in possible if self._is_exact(n)]
        for pieces in exact[:1] or [n for n in _ROUNDED if n in possible]:
            yield _in_pieces(self, pieces), bool(exact)

    def _is_exact(self, pieces: int) -> bool:
        parts = np.array([path.amount * pieces for path in self.paths])
        return bool(np.abs(parts - np.round(parts)).max(initial=0.0) < 1e-4)


def most_pieces(demand: Demand) -> int:
    """The largest number of pieces of each chunk; those of tenants stay as they are."""
    return 1 if demand.tenants else int(demand.chunk_bytes.min())


def _in_pieces(plan: FlowPlan, pieces: int) -> GridPlan:
    """Whole pieces along the paths, distributed over those of each pair by largest remainder."""
    demand, grid = divided(plan.demand, pieces), plan.grid
    members: dict[tuple[int, int], list[int]] = {}
    for chunk, rank in zip(demand.destination_chunk.tolist(), demand.destination_rank.tolist(), strict=True):
        members.setdefault((int(demand.source[chunk]), rank), []).append(chunk)
    by_pair: dict[tuple[int, int], list[EpochPath]] = {}
    for path in plan.paths:
        by_pair.setdefault((path.source, path.destination), []).append(path)
    rows: list[tuple[int, Links, int]] = []
    for pair, chunks in members.items():
        paths = sorted(by_pair[pair], key=lambda path: path.sends[-1][1])
        amount = np.array([path.amount for path in paths])
        ideal = amount / amount.sum() * len(chunks)
        count = np.floor(ideal + 1e-6).astype(int)
        for extra in np.argsort(count - ideal, kind="stable")[: len(chunks) - int(count.sum())].tolist():
            count[extra] += 1
        owner = np.repeat(np.arange(len(paths)), count)
        for chunk, which in zip(chunks, owner.tolist(), strict=True):
            rows += [(chunk, links, epoch) for links, epoch in _transfers(grid, paths[which])]
    return replace(GridPlan.of(grid, demand, rows), epochs=plan.epochs)


def _transfers(grid: Grid, path: EpochPath) -> list[tuple[Links, int]]:
    """(links, epoch) of a path without cycles: sends that meet in a switch become one transfer."""
    sends: list[tuple[int, int]] = []
    been = [path.source]
    for arc, epoch in path.sends:
        node = int(grid.head[arc])
        if node in been:
            place = been.index(node)
            been, sends = been[: place + 1], sends[:place]
        else:
            been.append(node)
            sends.append((arc, epoch))
    stores = grid.topology.stores
    starts = [i for i, (arc, _) in enumerate(sends) if stores[grid.tail[arc]]] + [len(sends)]
    return [
        (tuple(link for arc, _ in sends[a:b] for link in grid.routes.links(arc)), sends[a][1])
        for a, b in pairwise(starts)
    ]
