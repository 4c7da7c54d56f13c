"""The storing nodes that each storing node can send to directly or through switches, with the routes between them.

Routes through switches are found best first: by lowest latency, then highest bandwidth, then fewest links. The number
of routes per pair is bounded, so fat trees stay tractable. Ties are broken by a hash of the source and the switch,
which spreads the sources over equal routes; alike links side by side take turns, by the port of the source.
"""

import heapq
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.topology.routes import Routes, RouteShape, route_shape
from flowccl.topology.topology import Link, Topology

ROUTES_PER_PAIR = 4


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Pairs (src, end) of storing nodes, sorted by src; pair a has routes `pair_ptr[a]` to `pair_ptr[a + 1] - 1`."""

    topology: Topology
    src: NDArray[np.int32]
    end: NDArray[np.int32]
    pair_ptr: NDArray[np.int64]
    routes: Routes

    def without(self, nodes: NDArray[np.bool_]) -> "Neighbours":
        """Return the neighbours without the pairs that start at memories among `nodes`."""
        removed = nodes & (np.arange(len(nodes)) >= self.topology.num_gpus)
        keep = np.flatnonzero(~removed[self.src])
        if len(keep) == len(self.src):
            return self
        count = np.diff(self.pair_ptr)[keep]
        routes = np.repeat(self.pair_ptr[:-1][keep] - np.cumsum(count) + count, count) + np.arange(count.sum())
        lists = [self.routes.links(int(route)) for route in routes]
        pair_ptr = pointers(count)
        return Neighbours(self.topology, self.src[keep], self.end[keep], pair_ptr, Routes.from_lists(lists))

    @cached_property
    def shape(self) -> RouteShape:
        """Offsets and segments of the routes."""
        return route_shape(self.topology, self.routes)

    @cached_property
    def node_ptr(self) -> NDArray[np.int64]:
        """Pairs of each node: `node_ptr[n]` to `node_ptr[n + 1] - 1`."""
        return np.searchsorted(self.src, np.arange(len(self.topology.nodes) + 1)).astype(np.int64)

    def route_cost_ps(self, size_bytes: float) -> NDArray[np.float64]:
        """Time of one chunk of `size_bytes` bytes on each route when all links are idle."""
        shape = self.shape
        busy = np.bincount(shape.segment_route, size_bytes * 1000.0 / shape.segment_GBps, len(self.routes))
        ends = shape.end_hop
        return np.asarray(busy + shape.hop_offset_ps[ends] + self.topology.link_latency_ps[self.routes.link[ends]])

    def pair_cost_ps(self, size_bytes: float) -> NDArray[np.float64]:
        """Time of one chunk of `size_bytes` bytes from src to end on the fastest route of each pair."""
        cost = self.route_cost_ps(size_bytes)
        return np.minimum.reduceat(cost, self.pair_ptr[:-1]) if len(self.src) else cost

    def quickest_first(self, size_bytes: float) -> "Neighbours":
        """Return the neighbours with the routes of each pair sorted by their time for a chunk of `size_bytes` bytes."""
        pair = np.repeat(np.arange(len(self.src)), np.diff(self.pair_ptr))
        order = np.lexsort((self.route_cost_ps(size_bytes), pair))
        lists = [self.routes.links(int(route)) for route in order]
        return Neighbours(self.topology, self.src, self.end, self.pair_ptr, Routes.from_lists(lists))

    def distance_ps(self, size_bytes: float) -> NDArray[np.float64]:
        """Shortest time between any two nodes over any number of pairs; inf for switches and if there is no path."""
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import dijkstra

        count = len(self.topology.nodes)
        cost = np.maximum(self.pair_cost_ps(size_bytes), 1.0)
        return np.asarray(dijkstra(csr_matrix((cost, (self.src, self.end)), (count, count))), dtype=np.float64)


def neighbours(topology: Topology, routes_per_pair: int = ROUTES_PER_PAIR) -> Neighbours:
    """Return all pairs of storing nodes that a link or a route through switches connects."""
    return _neighbours(topology, routes_per_pair)


@lru_cache(maxsize=8)
def _neighbours(topology: Topology, routes_per_pair: int) -> Neighbours:
    rows: list[tuple[int, int, tuple[int, ...]]] = []
    ports = Ports(topology)
    for node in np.flatnonzero(topology.stores).tolist():
        found = routes_from(topology, node, routes_per_pair, ports)
        rows += [(node, end, links) for end in sorted(found) for links in found[end]]
    pair_of = [(src, end) for src, end, _ in rows]
    first = [i for i, pair in enumerate(pair_of) if i == 0 or pair != pair_of[i - 1]]
    return Neighbours(
        topology,
        np.array([pair_of[i][0] for i in first], dtype=np.int32),
        np.array([pair_of[i][1] for i in first], dtype=np.int32),
        np.array([*first, len(rows)], dtype=np.int64),
        Routes.from_lists([links for _, _, links in rows]),
    )


class Ports:
    """What searches for routes need to know of each link, in lists.

    `out` has for each node the links that leave it: link, end, whether that stores, latency, time per byte, a number
    that equal links side by side share, its place among these, and how many they are. `port` is the number of a link
    among the links into the same node.
    """

    def __init__(self, topology: Topology) -> None:
        groups: dict[Link, list[int]] = {}
        alike, self.port, into = list[list[int]](), list[int](), [0] * len(topology.nodes)
        place = list[int]()
        for index, link in enumerate(topology.links):
            alike.append(groups.setdefault(link, []))
            place.append(len(alike[-1]))
            alike[-1].append(index)
            self.port.append(into[link.dst])
            into[link.dst] += 1
        self.stores = topology.stores.tolist()
        slowness = (1.0 / topology.link_GBps).tolist()
        columns = (topology.link_dst.tolist(), topology.link_latency_ps.tolist(), slowness, alike, place)
        self.out: list[list[tuple[int, int, bool, int, float, int, int, int]]] = [[] for _ in topology.nodes]
        rows = zip(topology.link_src.tolist(), *columns, strict=True)
        for index, (src, end, latency, slow, same, at) in enumerate(rows):
            self.out[src].append((index, end, self.stores[end], latency, slow, same[0], at, len(same)))


def routes_from(
    topology: Topology, src: int, most: int, ports: Ports | None = None
) -> dict[int, list[tuple[int, ...]]]:
    """Return up to `most` routes to each end, best first; the search expands every switch at most `most` times."""
    ports = ports or Ports(topology)
    found: dict[int, list[tuple[int, ...]]] = {}
    expanded: dict[int, int] = {}
    queue: list[tuple[int, float, int, tuple[int, int], int, tuple[int, ...], frozenset[int]]]
    queue = [(0, 0.0, 0, (0, 0), src, (), frozenset())]
    while queue:
        far, slow, hops, _, node, links, passed = heapq.heappop(queue)
        if links and ports.stores[node]:
            routes = found.setdefault(node, [])
            if len(routes) < most:
                routes.append(links)
            continue
        times = expanded.get(node, 0)
        if times >= most:
            continue
        expanded[node] = times + 1
        port, salt = ports.port[links[0]] if links else 0, src * 40503 + node * 7919
        for link, end, stores, latency, slowness, first, place, alike in ports.out[node]:
            if end == src or end in passed or (stores and len(found.get(end, ())) >= most):
                continue
            tie = (first * 2654435761 + salt) & 0xFFFF, (place - port) % alike
            beyond = passed if stores else passed | {end}
            row = (far + latency, max(slow, slowness), hops + 1, tie, end, (*links, link), beyond)
            heapq.heappush(queue, row)
    return found


def reach(topology: Topology) -> NDArray[np.bool_] | None:
    """Return which nodes reach which nodes; None if every GPU reaches every GPU."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components, shortest_path

    count = len(topology.nodes)
    graph = csr_matrix((np.ones(len(topology.links)), (topology.link_src, topology.link_dst)), (count, count))
    _, label = connected_components(graph, directed=True, connection="strong")
    if np.all(label[: topology.num_gpus] == label[0]):
        return None
    return np.asarray(np.isfinite(shortest_path(graph, unweighted=True)))
