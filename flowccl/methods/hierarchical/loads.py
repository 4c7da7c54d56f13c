"""What plans choose from: the routes between neighbours of a machine, and the load that each link has so far."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.topology.neighbours import neighbours
from flowccl.topology.topology import Topology

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


@dataclass(eq=False)
class LoadedRoutes:
    """Routes between neighbours; `load_ps` is the time that each link is busy, shared with the reversed network.

    The last entry of `load_ps` belongs to no link: it fills up rows of `links`.
    """

    topology: Topology
    load_ps: F64
    known: dict[tuple[int, int], I64] = field(default_factory=dict)

    def __post_init__(self) -> None:
        near = neighbours(self.topology)
        self.near, routes = near, near.routes
        pair = np.repeat(np.arange(len(near.src)), np.diff(near.pair_ptr))
        self.src, self.end = near.src[pair], near.end[pair]
        size = np.diff(routes.ptr)
        self.links = np.full((len(routes), int(size.max(initial=1))), len(self.topology.links), dtype=np.int64)
        row = np.repeat(np.arange(len(routes)), size)
        self.links[row, np.arange(len(routes.link)) - routes.ptr[row]] = routes.link
        self.per_byte_ps = np.append(1000.0 / self.topology.link_GBps, 0.0)
        self.latency_ps = np.append(self.topology.link_latency_ps, 0)[self.links].sum(axis=1)
        storing = len(self.topology.nodes)
        self.first = np.full((storing, storing), -1, dtype=np.int64)  # the first route of each pair; -1: none
        self.first[near.src, near.end] = near.pair_ptr[:-1]
        self.count = np.zeros((storing, storing), dtype=np.int64)
        self.count[near.src, near.end] = np.diff(near.pair_ptr)

    def routes(self, a: int, b: int) -> I64:
        """The routes from one node to another that is its neighbour."""
        return np.arange(self.first[a, b], self.first[a, b] + self.count[a, b])

    def between(self, key: tuple[int, int], senders: list[int], receivers: list[int]) -> I64:
        """The routes from any of some nodes to any of some others; `key` names the two sets."""
        if key not in self.known:
            self.known[key] = np.flatnonzero(np.isin(self.src, senders) & np.isin(self.end, receivers))
        return self.known[key]

    def busiest_ps(self, routes: I64, size: int | I64) -> F64:
        """For each route, the load of its busiest link once it has carried this many bytes more, and its latency."""
        links = self.links[routes]
        size = size if isinstance(size, int) else size[:, None]
        busiest = (self.load_ps[links] + size * self.per_byte_ps[links]).max(axis=1, initial=0.0)
        return np.asarray(busiest + self.latency_ps[routes])

    def hop_ps(self, src: I64, end: I64, size: int | I64) -> F64:
        """As `busiest_ps` of the first route of each pair; inf where there is none, 0 from a node to itself."""
        route = self.first[src, end]
        load = np.where(route >= 0, self.busiest_ps(route, size), np.inf)
        return np.where(src == end, 0.0, load)

    def add(self, links: list[int], size: int) -> None:
        """Count bytes on links."""
        self.load_ps[links] += size * self.per_byte_ps[links]

    def links_of(self, route: int) -> list[int]:
        """The links of a route."""
        return list(self.near.routes.links(route))

    def least_loaded(self, a: int, b: int, size: int) -> int:
        """The best route between neighbours."""
        routes = self.routes(a, b)
        return int(routes[np.argmin(self.busiest_ps(routes, size))]) if len(routes) > 1 else int(routes[0])

    @cached_property
    def quickest(self) -> NDArray[np.int32]:
        """The node before each node on the quickest path from each GPU, over neighbours."""
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import dijkstra

        count = len(self.topology.nodes)
        cost = np.maximum(self.near.pair_cost_ps(1000.0), 1.0)
        graph = csr_matrix((cost, (self.near.src, self.near.end)), (count, count))
        gpus = np.arange(self.topology.num_gpus)
        return np.asarray(dijkstra(graph, indices=gpus, return_predecessors=True)[1])

    def path(self, a: int, b: int) -> list[int]:
        """The nodes of the quickest path from one GPU to another."""
        nodes = [b]
        while nodes[-1] != a:
            nodes.append(int(self.quickest[a, nodes[-1]]))
        return nodes[::-1]

    @cached_property
    def multicasts(self) -> list[tuple[dict[int, int], dict[int, int]]]:
        """Switches that copy and reduce: the link from each GPU, and the link to each GPU."""
        from flowccl.topology.reducing_switches import switch_ports

        able = [
            n
            for n, node in enumerate(self.topology.nodes)
            if not node.stores and node.copies and node.reduces and node.crossing == "cut-through"
        ]
        return [switch_ports(self.topology, switch) for switch in able]
