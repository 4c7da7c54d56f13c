"""Floors from prices: what every byte must pay on its way, against what all links together can earn.

Give every link a price per byte. Each byte pays at least the cheapest way from its source to its destination, and a
link earns at most price times bandwidth for every second in which it can help: not before the first byte can be there,
and not when it is too late for the nearest destination. Any prices prove a floor; a cut is the case of price 1 on its
links. For demands without copies good prices give the optimum of the fluid (linear programming duality). They are found
by letting all bytes take their cheapest ways again and again, where links get dearer the fuller they are.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.bounds.commodities import Commodities
from flowccl.topology.topology import Topology

_ROUNDS = 300
_CLOSE = 0.99999  # of the time that the ways found so far would take: no better prices are sought then
_LARGEST = 150  # nodes of a machine for which prices are sought
_STEEP = (5.0, 100.0)  # how much dearer the fullest links get, from the first round to the last


@dataclass(frozen=True, eq=False)
class DualPrices:
    """Prices per byte of the links, and the floor in ps that they prove."""

    price: NDArray[np.float64]
    ps: float


def best_dual_prices(commodities: Commodities) -> DualPrices | None:
    """The best floor from prices; None for copies and sums, limits, and large machines."""
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
        steep = _STEEP[0] * (_STEEP[1] / _STEEP[0]) ** (k / _ROUNDS)
        full = np.where(usable, load / np.where(usable, capacity, 1.0), 0.0)
        price = np.exp(steep * (full / max(full.max(), 1.0) - 1)) / np.where(usable, capacity, 1.0)
        price = np.where(usable, price, np.inf)
        paid, taken = _cheapest_ways(topology, price, amount)
        earns = price[usable] * capacity[usable]
        found = DualPrices(price, _earliest_ps(earns, away[usable], paid))
        best = found if best is None or found.ps > best.ps else best
        if k and paid / earns.sum() >= _CLOSE * full.max():
            break
        load += (taken - load) * 2.0 / (k + 2)
    return best


def _away_ps(commodities: Commodities) -> NDArray[np.float64]:
    """Of each link: the least latency of any need that goes over it, before, on and behind it; inf if none can."""
    topology, latency = commodities.topology, commodities.latency_ps
    before = latency[commodities.source][:, topology.link_src] + commodities.ready_ps[:, None]
    behind = latency[topology.link_dst][:, commodities.destination].T + commodities.rest_ps[:, None]
    return np.asarray((before + behind).min(axis=0) + topology.link_latency_ps, dtype=np.float64)


def _earliest_ps(earns: NDArray[np.float64], away_ps: NDArray[np.float64], paid: float) -> float:
    """When links that earn so much per ps, each from its `away_ps` on, have earned what must be paid."""
    order = np.argsort(away_ps)
    rate, lost = np.cumsum(earns[order]), np.cumsum((earns * away_ps)[order])
    return float(((paid + lost) / rate).min())


def _cheapest_ways(
    topology: Topology, price: NDArray[np.float64], amount: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    """What all pay on their cheapest ways, and what each link then carries."""
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
    for k in range(count):  # the k-th farthest node of every source hands what it carries to the node before it
        node = farthest_first[:, k]
        at = before[rows, node]
        has = at >= 0
        np.add.at(load, link_of[at[has], node[has]], carried[rows[has], node[has]])
        carried[rows[has], at[has]] += carried[rows[has], node[has]]
    return paid, load
