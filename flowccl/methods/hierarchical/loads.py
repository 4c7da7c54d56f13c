"""What plans choose from: the routes between neighbours of a machine, and the load that each link has so far."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.topology.hierarchy import FASTER
from flowccl.topology.neighbours import Neighbours, neighbours
from flowccl.topology.topology import Topology
from flowccl.topology.trunks import lane_counts

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
POWER = 4  # of loads: the higher, the nearer to the load of the busiest link alone


@dataclass(frozen=True, eq=False)
class _RouteTable:
    """What `LoadedRoutes` has for every machine: routes, their ends and links (filled up).

    `busy_ps` is the time for which a byte on a route occupies each of its links, over the transfers that the link
    carries side by side: on cut-through routes a transfer holds all links for the time of the slowest.
    """

    near: Neighbours
    src: NDArray[np.int32]
    end: NDArray[np.int32]
    links: I64
    first: I64  # the first route of each pair of nodes; -1: none
    count: I64
    per_byte_ps: F64
    busy_ps: F64


@lru_cache(maxsize=8)
def _route_table(topology: Topology) -> _RouteTable:
    near = _only_best(neighbours(topology))
    routes, nodes = near.routes, len(topology.nodes)
    pair = np.repeat(np.arange(len(near.src)), np.diff(near.pair_ptr))
    size = np.diff(routes.ptr)
    links = np.full((len(routes), int(size.max(initial=1))), len(topology.links), dtype=np.int64)
    row = np.repeat(np.arange(len(routes)), size)
    links[row, np.arange(len(routes.link)) - routes.ptr[row]] = routes.link
    first, count = np.full((nodes, nodes), -1, dtype=np.int64), np.zeros((nodes, nodes), dtype=np.int64)
    first[near.src, near.end], count[near.src, near.end] = near.pair_ptr[:-1], np.diff(near.pair_ptr)
    per_byte_ps = np.append(1000.0 / topology.link_GBps, 0.0)
    busy_ps = _busy_times(topology, links, per_byte_ps)
    return _RouteTable(near, near.src[pair], near.end[pair], links, first, count, per_byte_ps, busy_ps)


def _busy_times(topology: Topology, links: I64, per_byte_ps: F64) -> F64:
    """See `_RouteTable.busy_ps`."""
    forwards = np.array([node.crossing != "cut-through" for node in topology.nodes])
    inner = links[:, 1:]
    entered = np.append(topology.link_src, 0)[inner]
    stored = (forwards[entered] & (inner < len(topology.links))).any(axis=1)
    slowest = per_byte_ps[links].max(axis=1, keepdims=True) / np.append(lane_counts(topology), 1)[links]
    busy_ps = np.where(stored[:, None], per_byte_ps[links], slowest)
    return np.where(links < len(topology.links), busy_ps, 0.0)


def _only_best(near: Neighbours) -> Neighbours:
    """The neighbours with only the best routes of each pair, for small and for large chunks; else for large ones."""
    pair = np.repeat(np.arange(len(near.src)), np.diff(near.pair_ptr))
    small, large = (near.route_cost_ps(size) <= near.pair_cost_ps(size)[pair] * (1 + 1e-9) for size in (1.0, 1e6))
    keep = small & large
    keep |= large & (np.bincount(pair, keep, len(near.src))[pair] == 0)  # none is best for both
    pair_ptr = pointers(np.bincount(pair[keep], minlength=len(near.src)))
    return Neighbours(near.topology, near.src, near.end, pair_ptr, near.routes.only(np.flatnonzero(keep)))


class LoadedRoutes:
    """Routes between neighbours; `load_ps` is the time that each link is busy, shared with the reversed machine.

    Links that are shared `by_rate` are busy with the bytes that they carry: a slow transfer leaves the rest to others.
    The last entry of `load_ps` belongs to no link: it fills up rows of `links`. Of several routes between two nodes,
    only those count that are as fast and as near as the best one.
    """

    def __init__(self, topology: Topology, load_ps: F64, *, by_rate: bool = False) -> None:
        self.topology, self.load_ps = topology, load_ps
        self.table = table = _route_table(topology)
        self.near, self.src, self.end, self.links = table.near, table.src, table.end, table.links
        self.first, self.count = table.first, table.count
        self.per_byte_ps = table.per_byte_ps
        self.busy_ps = table.per_byte_ps[table.links] if by_rate else table.busy_ps
        self.uneven: dict[tuple[int, ...], bool] = {}
        self.overloaded = np.zeros(len(load_ps), dtype=np.bool_)  # links that would carry more than their share

    def joins_groups(self, label: I64) -> NDArray[np.bool_]:
        """Whether each route leads from a GPU of one group to a GPU of another; `label` is the group of every GPU."""
        result = (self.src < len(label)) & (self.end < len(label))
        result[result] = label[self.src[result]] != label[self.end[result]]
        return result

    def hop_cost(self, src: I64, end: I64, size: int) -> F64:
        """What bytes more on the first route of each pair cost; inf where there is none, 0 from a node to itself.

        The cost is the growth of the sum of the powers of all loads. A power prefers links with low loads, and unlike
        the maximum it sees every link: one that is less loaded than another one of a route is still worth saving.
        """
        route = self.first[src, end]
        low = self.load_ps[self.links[route]]
        cost = ((low + size * self.busy_ps[route]) ** POWER - low**POWER).sum(axis=-1)
        return np.where(src == end, 0.0, np.where(route >= 0, cost, np.inf))

    def is_uneven(self, root: int, ends: list[int]) -> bool:
        """Whether the root has direct links to some ends and much slower routes to others: then GPUs forward chunks."""
        key = (root, *ends)
        if key not in self.uneven:
            self.uneven[key] = self._is_uneven(root, ends)
        return self.uneven[key]

    def _is_uneven(self, root: int, ends: list[int]) -> bool:
        routes = self.first[root, ends]
        if (routes < 0).any():
            return False
        slowest = self.per_byte_ps[self.links[routes]].max(axis=1)
        direct = (self.links[routes] < len(self.topology.links)).sum(axis=1) == 1
        return bool(direct[np.argmin(slowest)] and slowest.max() > FASTER * slowest.min())

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
