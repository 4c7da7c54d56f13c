"""Lower bounds from dual prices: what every byte must pay on its path, against what all links together can earn.

Give every link a price per byte. Each byte pays at least the price of the cheapest path from its source to its
destination. A link earns at most price times bandwidth while it can help: not before the first byte can arrive there,
and not when it is too late for the nearest destination. Any prices prove a lower bound; a cut is the case of price 1 on
its links. For demands without copies the best prices give the optimum of the multicommodity flow (linear programming
duality). Good prices are found by multiplicative weights: all bytes repeatedly take their cheapest paths, and the price
of a link grows exponentially with its load.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.bounds.commodities import Commodities
from flowccl.bounds.rounding import whole_ps
from flowccl.portable import exponential
from flowccl.topology.topology import Topology

_ROUNDS = 300
_CLOSE = 0.99999  # stop once the bound is this part of the time that the paths found so far take
_LARGEST = 150  # nodes of the largest machine for which prices are computed
_STEEP = 5.0  # logarithm of the price of the fullest link over that of an empty one, in the first round
_STEEPER = 2.995732273553991  # ln 20: in the last round it is 20 times as large


@dataclass(frozen=True, eq=False)
class DualPrices:
    """Prices per byte of the links, and the lower bound in ps that they prove."""

    price: NDArray[np.float64]
    ps: float


def best_dual_prices(commodities: Commodities, should_stop: Callable[[], bool] = lambda: False) -> DualPrices | None:
    """Return the best bound from dual prices; None for copies, reductions, limits, and large machines.

    When `should_stop` says so, the best prices of the rounds so far are returned, after at least one round.
    """
    topology = commodities.topology
    single = len(commodities.source) == len(commodities.bytes) == len(commodities.destination)
    if not single or topology.limits or len(topology.nodes) > _LARGEST or len(commodities.bytes) < 2:
        return None
    away = _away_ps(commodities)
    usable = np.isfinite(away)
    capacity = np.where(usable, topology.link_peak_GBps / 1000.0, 0.0)  # bytes per ps
    amount = np.zeros((len(topology.nodes), len(topology.nodes)))
    np.add.at(amount, (commodities.source, commodities.destination), commodities.bytes)
    best: DualPrices | None = None
    load = np.zeros(len(topology.links))
    for k in range(_ROUNDS):
        steep = _STEEP * exponential(_STEEPER * k / _ROUNDS)
        full = np.where(usable, load / np.where(usable, capacity, 1.0), 0.0)
        price = exponential(steep * (full / max(full.max(), 1.0) - 1)) / np.where(usable, capacity, 1.0)
        price = np.where(usable, price, np.inf)
        paid, taken = _cheapest_paths(topology, price, amount)
        earns = price[usable] * capacity[usable]
        found = DualPrices(price, _earliest_ps(earns, away[usable], paid))
        best = found if best is None or whole_ps(found.ps) > whole_ps(best.ps) else best
        if should_stop() or (k and paid / earns.sum() >= _CLOSE * full.max()):
            break
        load += (taken - load) * 2.0 / (k + 2)
    return best


def _away_ps(commodities: Commodities) -> NDArray[np.float64]:
    """The least latency before, on and behind each link; inf if no commodity can use it.

    The first bytes on a link may be of another commodity than the last ones, so the two minima are separate.
    """
    topology, latency = commodities.topology, commodities.latency_ps
    before = commodities.head_ps[commodities.source][:, topology.link_src] + commodities.ready_ps[:, None]
    behind = latency[topology.link_dst][:, commodities.destination].T + commodities.tail_ps[:, None]
    away = before.min(axis=0) + behind.min(axis=0) + topology.link_latency_ps
    return np.asarray(np.where(np.isfinite(before + behind).any(axis=0), away, np.inf), dtype=np.float64)


def _earliest_ps(earns: NDArray[np.float64], away_ps: NDArray[np.float64], paid: float) -> float:
    """Return when links that earn `earns` per ps, each from its `away_ps` on, have earned `paid`."""
    order = np.argsort(away_ps, kind="stable")
    rate, lost = np.cumsum(earns[order]), np.cumsum((earns * away_ps)[order])
    return float(((paid + lost) / rate).min())


def _cheapest_paths(
    topology: Topology, price: NDArray[np.float64], amount: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    """Return what all bytes pay on their cheapest paths, and the load of each link."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import dijkstra

    count = len(topology.nodes)
    order = np.lexsort((price, topology.link_dst, topology.link_src))
    src, dst = topology.link_src[order], topology.link_dst[order]
    least = np.isfinite(price[order])  # of parallel links, the cheapest
    least[1:] &= (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
    chosen = order[least]
    graph = csr_matrix((price[chosen], (topology.link_src[chosen], topology.link_dst[chosen])), (count, count))
    sources = np.flatnonzero(amount.any(axis=1))
    distance, before = dijkstra(graph, indices=sources, return_predecessors=True)
    wanted = amount[sources]
    paid = float((np.where(wanted > 0, distance, 0.0) * wanted).sum())
    link_of = np.full((count, count), -1, dtype=np.int64)
    link_of[topology.link_src[chosen], topology.link_dst[chosen]] = chosen
    load = np.zeros(len(topology.links))
    carried = wanted.copy()
    farthest_first = np.argsort(-np.where(np.isfinite(distance), distance, -1.0), axis=1, kind="stable")
    rows = np.arange(len(sources))
    for k in range(count):  # the k-th farthest node of every source passes its load to its predecessor
        node = farthest_first[:, k]
        at = before[rows, node]
        has = at >= 0
        load += np.bincount(link_of[at[has], node[has]], carried[rows[has], node[has]], len(load))
        carried[rows[has], at[has]] += carried[rows[has], node[has]]
    return paid, load
