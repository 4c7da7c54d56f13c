"""The storing nodes that each storing node can send to directly or through switches, with the routes between them.

Routes through switches are found best first: by lowest latency, then highest bandwidth, then fewest links. The number
of routes per pair is bounded, so fat trees stay tractable. Ties are broken by a hash of the source and the switch,
which spreads the sources over equal routes; alike links side by side take turns, by the port of the source.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import components, pointers
from flowccl.topology.routes import Routes, RouteShape, route_shape
from flowccl.topology.topology import Link, Topology

if TYPE_CHECKING:
    from flowccl.topology.route_search_kernels import Ports

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
        return Neighbours(self.topology, self.src[keep], self.end[keep], pointers(count), self.routes.only(routes))

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
        return Neighbours(self.topology, self.src, self.end, self.pair_ptr, self.routes.only(order))

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
    return _found(topology, np.flatnonzero(topology.stores), routes_per_pair)


def routes_from(topology: Topology, src: int, most: int) -> dict[int, list[tuple[int, ...]]]:
    """Return up to `most` routes to each end, best first; the search expands every switch at most `most` times."""
    near = _found(topology, np.array([src]), most)
    ends = zip(near.end.tolist(), pairwise(near.pair_ptr.tolist()), strict=True)
    return {end: [near.routes.links(route) for route in range(low, high)] for end, (low, high) in ends}


def _found(topology: Topology, sources: NDArray[np.int64], most: int) -> Neighbours:
    """The pairs that start at some nodes."""
    from flowccl.topology.route_search_kernels import find_routes

    found = find_routes(sources.astype(np.int64), most, _ports(topology))
    return Neighbours(topology, found.src, found.end, pointers(found.routes), Routes(pointers(found.hops), found.link))


@lru_cache(maxsize=8)
def _ports(topology: Topology) -> "Ports":
    """What the search for routes needs to know of each link and node."""
    from flowccl.topology.route_search_kernels import Ports

    groups: dict[Link, list[int]] = {}
    alike, place, port, into = list[list[int]](), list[int](), list[int](), [0] * len(topology.nodes)
    for index, link in enumerate(topology.links):
        alike.append(groups.setdefault(link, []))
        place.append(len(alike[-1]))
        alike[-1].append(index)
        port.append(into[link.dst])
        into[link.dst] += 1
    ptr, out = topology.out_links
    return Ports(
        np.ascontiguousarray(topology.stores),
        ptr,
        out.astype(np.int64),
        topology.link_dst.astype(np.int64),
        topology.link_latency_ps.astype(np.int64),
        1.0 / topology.link_GBps,
        np.array([same[0] for same in alike], dtype=np.int64),
        np.array(place, dtype=np.int64),
        np.array([len(same) for same in alike], dtype=np.int64),
        np.array(port, dtype=np.int64),
    )


def reach(topology: Topology) -> NDArray[np.bool_] | None:
    """Return which nodes reach which nodes; None if every GPU reaches every GPU."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import shortest_path

    count, ends = len(topology.nodes), (topology.link_src, topology.link_dst)
    label = components(count, *ends, strong=True)
    if np.all(label[: topology.num_gpus] == label[0]):
        return None
    graph = csr_matrix((np.ones(len(topology.links)), ends), (count, count))
    return np.asarray(np.isfinite(shortest_path(graph, unweighted=True)))
