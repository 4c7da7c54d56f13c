"""Lower bound on the epochs of any plan on a grid, with a witness: the longest shortest path, or a cut.

The cuts are those of the lower bounds in continuous time. The grid gives stronger bounds: every hop takes whole epochs,
and a link carries a limited number of chunks between the first epoch in which a chunk can reach it and the last epoch
from which a chunk still arrives in time.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from flowccl.bounds.commodities import Commodities
from flowccl.bounds.cut_families import cut_families
from flowccl.bounds.cuts import Cut, thresholds
from flowccl.demand.demand import Demand
from flowccl.papers.teccl.epochs import Grid, Ints

_THRESHOLDS = 6  # distinct distances before and behind a cut that are tried
_MOST_WORK = 40_000_000  # (chunk, link) entries over all cuts


@dataclass(frozen=True, slots=True)
class GridBound:
    """A lower bound on the number of epochs, and its witness in words."""

    epochs: int
    witness: str


@dataclass(frozen=True, eq=False)
class Distances:
    """Smallest numbers of epochs between nodes and on links; `between[n, m]` is inf if there is no path."""

    grid: Grid
    rates: bool
    link_delay: Ints
    link_busy_epochs: Ints
    link_chunks: NDArray[np.float64]
    between: NDArray[np.float64]

    @classmethod
    def of(cls, grid: Grid, *, rates: bool = False) -> "Distances":
        """For whole chunks, or for rates (section 4.1)."""
        delay = grid.rate_delay if rates else grid.delay
        busy_epochs = np.ones_like(delay) if rates else grid.busy_epochs
        chunks = grid.share if rates else grid.capacity.astype(np.float64)
        count = len(grid.topology.nodes)
        order = np.lexsort((delay, grid.head, grid.tail))
        tail, head, weight = grid.tail[order], grid.head[order], delay[order] + 2.0**-20
        least = np.ones(len(order), dtype=np.bool_)  # of parallel arcs, the fastest
        least[1:] = (tail[1:] != tail[:-1]) | (head[1:] != head[:-1])
        paths = csr_matrix((weight[least], (tail[least], head[least])), (count, count))
        return cls(grid, rates, delay, busy_epochs, chunks, np.floor(np.asarray(dijkstra(paths), dtype=np.float64)))


def grid_bound(grid: Grid, demand: Demand, *, copy: bool = True, rates: bool = False) -> GridBound:
    """Return the best lower bound; without copies, every destination of a chunk counts as a chunk of its own."""
    distances = Distances.of(grid, rates=rates)
    source, nodes = demand.source[demand.destination_chunk], grid.topology.nodes
    away = distances.between[source, demand.destination_rank]
    at = int(np.argmax(away))
    a, b = nodes[source[at]].name, nodes[demand.destination_rank[at]].name
    best = GridBound(int(away[at]), f"a chunk takes {int(away[at])} epochs from {a} to {b}")
    if not grid.by_links:
        return best  # arcs are routes: many arcs that share links cross a cut
    looked = 0
    for cut in cut_families(grid.topology, Commodities.of(demand, grid.topology)):
        found = _cut_bound(distances, demand, cut, copy, best.epochs)
        best = found if found is not None else best
        looked += len(demand) * len(cut.links)
        if looked > _MOST_WORK:
            break
    return best


def _cut_bound(distances: Distances, demand: Demand, cut: Cut, copy: bool, known: int) -> GridBound | None:
    """Return a bound above the known one, or None."""
    topology = distances.grid.topology
    rows = np.flatnonzero(~cut.far[demand.source[demand.destination_chunk]] & cut.far[demand.destination_rank])
    if not len(rows):
        return None
    src, dst = topology.link_src[cut.links], topology.link_dst[cut.links]
    chunk, wanted = demand.destination_chunk[rows], demand.destination_rank[rows]
    if copy:  # the destination farthest behind the cut represents the chunk
        behind = (distances.link_delay[cut.links][:, None] + distances.between[dst][:, wanted]).min(axis=0)
        order = np.lexsort((-behind, chunk))
        keep = order[np.flatnonzero(np.diff(chunk[order], prepend=-1))]
        chunk, wanted = chunk[keep], wanted[keep]
    heads = distances.between[demand.source[chunk]][:, src]
    tails = distances.link_delay[cut.links] + distances.between[dst][:, wanted].T
    nearest, shortest = heads.min(axis=1), tails.min(axis=1)
    size = demand.chunk_bytes[chunk] / distances.grid.chunk_bytes
    best = None
    for h in thresholds(nearest, _THRESHOLDS):
        for q in thresholds(shortest, _THRESHOLDS):
            chosen = np.flatnonzero((nearest >= h) & (shortest >= q))
            if not len(chosen):
                continue
            amount = float(size[chosen].sum()) if distances.rates else float(len(chosen))
            away = heads[chosen].min(axis=0) + tails[chosen].min(axis=0)
            epochs = _least(distances, cut.links, away, amount, known)
            if epochs is not None:
                known = epochs
                best = GridBound(epochs, _witness(distances, cut, amount, away, epochs))
    return best


def _fits(distances: Distances, links: Ints, away: NDArray[np.float64], epochs: int) -> float:
    """Number of chunks that the links of a cut can carry across within this many epochs."""
    starts = np.maximum(np.where(np.isfinite(away), epochs - away + 1, 0), 0)
    busy_epochs = distances.link_busy_epochs[links]
    per_link = np.where(busy_epochs > 1, np.ceil(starts / busy_epochs), starts * distances.link_chunks[links])
    return float(per_link.sum())


def _least(distances: Distances, links: Ints, away: NDArray[np.float64], amount: float, known: int) -> int | None:
    """The fewest epochs in which the amount fits, if more than the known ones; else None."""
    if not np.isfinite(away).any() or _fits(distances, links, away, known) >= amount - 1e-6:
        return None
    low, high = known, max(2 * known, 1)
    while _fits(distances, links, away, high) < amount - 1e-6:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _fits(distances, links, away, middle) >= amount - 1e-6 else (middle, high)
    return high


def _witness(distances: Distances, cut: Cut, amount: float, away: NDArray[np.float64], epochs: int) -> str:
    fits = _fits(distances, cut.links, away, epochs - 1)
    links = f"{len(cut.links)} link{'s' if len(cut.links) > 1 else ''}"
    return f"{amount:g} chunks must cross {cut.name} ({links}), and only {fits:g} fit in {epochs - 1} epochs"
