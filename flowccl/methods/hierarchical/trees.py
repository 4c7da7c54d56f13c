"""The tree of a chunk on a hierarchy: from group to group between gateways, then on inside each group.

The gateways of a chunk are the two GPUs whose route between the groups has the least load, so that every network card
carries what its bandwidth allows: a slow card less, and what a lost one would carry goes over the others of its host.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowccl.methods.hierarchical.loads import LoadedRoutes

I64 = NDArray[np.int64]


class Edge(NamedTuple):
    """A transfer of a tree: from its parent to one end, or to several through a switch that copies."""

    parent: int
    ends: tuple[int, ...]
    links: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TreeShape:
    """Levels to use, as the group of every GPU, the outermost first; and the trees between groups and inside them.

    Chains inside groups load the links of all GPUs alike, wherever chunks enter: together they are a ring. A switch
    that copies sends a chunk to all others of its group, and leaves one port idle: that of the sender. So in a mixed
    group of n GPUs, one chunk of n goes to each GPU alone, through the ports that the others leave idle.
    """

    labels: tuple[tuple[int, ...], ...]
    between: str = "direct"  # or "chain", "tree"; of an exchange "direct" or "stages"
    inside: str = "star"  # or "chain", "mixed"
    rooted: bool = False  # chunks of an allreduce are reduced to a root, and spread from there
    exchanged: int = 0  # every n-th chunk of a block is exchanged instead; 0: none
    near_roots: bool = False  # roots are only GPUs with routes to all other groups

    def has_root(self, piece: int) -> bool:
        """Whether a chunk of a block has a root; else groups exchange it."""
        return self.rooted and (not self.exchanged or (piece + 1) % self.exchanged > 0)

    @property
    def is_staged(self) -> bool:
        """Whether groups exchange level by level."""
        return self.between == "stages"

    def parent(self, turn: int) -> int:
        """The group, in order of distance from the root's group, that sends to the `turn`-th group after it."""
        return {"direct": 0, "chain": turn - 1, "tree": (turn - 1) // 2}[self.between]


class TreeBuilder:
    """Builds the trees of one chunk after another, and counts their load."""

    def __init__(self, network: LoadedRoutes, shape: TreeShape) -> None:
        self.network, self.shape = network, shape
        self.members = [
            [[rank for rank, group in enumerate(label) if group == at] for at in range(max(label) + 1)]
            for label in shape.labels
        ]
        self.routes_among: dict[tuple[int, ...], I64] = {}
        self.own_routes: dict[int, dict[tuple[int, int], tuple[int, int]]] = {}  # by level
        self.fixed: dict[tuple[int, ...], _FixedEdges | None] = {}  # by root and wanted GPUs, and whether one by one
        self.trees_inside: dict[int, int] = {}  # of each innermost group, so far
        self.index = np.zeros(len(network.topology.nodes), dtype=np.int64)  # of each GPU in its innermost group
        for ranks in self.members[-1]:
            self.index[ranks] = np.arange(len(ranks))

    def tree(self, root: int, wanted: list[int], size: int, level: int = 0) -> list[Edge]:
        """The edges of a tree from the root to all wanted GPUs, parents first."""
        wanted = [rank for rank in wanted if rank != root]
        if level == len(self.shape.labels):
            return self._inside(root, wanted, size) if wanted else []
        label = self.shape.labels[level]
        count = max(label) + 1
        home, per_group = label[root], dict[int, list[int]]()
        for rank in wanted:
            per_group.setdefault(label[rank], []).append(rank)
        order = [home, *(g for turn in range(1, count) if (g := (home + turn) % count) in per_group)]
        gateway, cross = {home: root}, dict[int, list[Edge]]()
        for turn, group in enumerate(order[1:], 1):
            source = order[self.shape.parent(turn)]
            edges = self._cross(level, gateway[source], per_group.get(source, []), group, per_group[group], size)
            gateway[group], cross[group] = edges[-1].ends[0], edges
            if edges[0].parent != gateway[source] and edges[0].parent not in per_group.setdefault(source, []):
                per_group[source].append(edges[0].parent)
        result = list[Edge]()
        for group in order:
            result += cross.get(group, [])
            result += self.tree(gateway[group], per_group.get(group, []), size, level + 1)
        detours = any(len(edges) > 1 for edges in cross.values())  # else parents are first already
        return _parents_first(root, result) if detours or _is_reached_twice(root, result) else result

    def _cross(self, level: int, holder: int, have: list[int], group: int, wanted: list[int], size: int) -> list[Edge]:
        """The edge that brings a chunk into a group, from its holder in another group or from a GPU near it.

        Several edges where no route joins the two groups.
        """
        source = self.shape.labels[level][holder]
        routes = self.network.between_groups(self.shape.labels[level]).get((source, group))
        if routes is None:
            path = self.network.path(holder, wanted[0])
            return self._path(path, size)
        if level not in self.own_routes:
            self.own_routes[level] = self._own_routes(np.array(self.shape.labels[level]))
        best, end = self.own_routes[level].get((holder, group), (-1, -1))
        if end not in wanted:
            best = self.choose(routes, holder, have, wanted, size)
            end = int(self.network.end[best])
        links = self.network.add_route(best, size)
        return [Edge(int(self.network.src[best]), (end,), links)]

    def _own_routes(self, label: I64) -> dict[tuple[int, int], tuple[int, int]]:
        """The route along the rail of each sender to each group, and its end: what `choose` takes if the end wants it.

        There is none where a sender has several such routes, or where a link is overloaded.
        """
        network = self.network
        routes = np.flatnonzero(network.joins_groups(label))
        src, end = network.src[routes], network.end[routes]
        off_rail = self.index[end] != self.index[src]
        columns = np.stack((src, label[end], off_rail))
        order = np.lexsort(columns[::-1])
        is_first = np.diff(columns[:2, order], axis=1, prepend=-1).any(axis=0)
        is_alone = np.diff(columns[:, order], axis=1, append=-1).any(axis=0)
        kept = order[is_first & is_alone]
        kept = kept[~network.overloaded[network.links[routes[kept]]].any(axis=1)]
        keys = zip(src[kept].tolist(), label[end[kept]].tolist(), strict=True)
        return dict(zip(keys, zip(routes[kept].tolist(), end[kept].tolist(), strict=True), strict=True))

    def choose(self, routes: I64, holder: int, have: list[int], wanted: list[int], size: int) -> int:
        """Of some routes into a group, the best one: fewest further hops, then along the rail, then the least load.

        The load is that of the route and of what it makes necessary: the hop to its sender, and what its end forwards.
        Chunks keep to the network card of their holder, unless it is overloaded: then the least cost decides.
        """
        network = self.network
        src, end = network.src[routes].astype(np.int64), network.end[routes].astype(np.int64)
        before, behind = ~self._mask([*have, holder])[src], ~self._mask(wanted)[end]
        hops = (src != holder) + before.astype(np.int64) + 2 * behind
        off_rail = self.index[end] != self.index[src]
        overloaded = np.asarray(network.overloaded[network.links[routes]].any(axis=1))
        nearest = np.flatnonzero(hops == hops.min())
        nearest = nearest[off_rail[nearest] == off_rail[nearest].min()]
        if len(nearest) == 1 and not overloaded[nearest[0]]:
            return int(routes[nearest[0]])
        gateways = np.flatnonzero(np.bincount(end))
        place = np.searchsorted(gateways, end)
        cost = network.route_cost(routes, size) + self.spread_cost(gateways, wanted, size)[place]
        if before.any():
            cost = np.where(before, cost + network.hop_cost(np.full_like(src, holder), src, size), cost)
        worse = overloaded & (cost > cost.min() * (1 + 1e-9))
        return int(routes[np.lexsort((src, cost, off_rail, hops, worse))[0]])

    def _mask(self, nodes: list[int]) -> NDArray[np.bool_]:
        result = np.zeros(len(self.index), dtype=np.bool_)
        result[nodes] = True
        return result

    def spread_cost(self, gateways: I64, wanted: list[int], size: int) -> NDArray[np.float64]:
        """What it costs that each gateway forwards a chunk to all wanted GPUs; chains cost the same from everywhere."""
        for into, out in self.network.multicasts if len(wanted) > 2 else ():
            if all(rank in out for rank in wanted):
                return self._multicast_cost(into, {rank: out[rank] for rank in wanted}, gateways, size)
        if self.shape.inside == "chain" or (len(wanted) > 1 and self.network.is_uneven(wanted[0], wanted[1:])):
            return np.zeros(len(gateways))  # trees of the group reach all from anywhere at about the same cost
        return self.network.star_cost(gateways, np.array(wanted), size)

    def _multicast_cost(
        self, into: dict[int, int], out: dict[int, int], gateways: I64, size: int
    ) -> NDArray[np.float64]:
        """The cost of a multicast from each gateway to all others that have a link out; inf without a link in."""
        roots = gateways.tolist()
        none = len(self.network.topology.links)  # its load is 0
        cost = self.network.cost(
            np.array([[into.get(root, none), out.get(root, none)] for root in roots])[..., None], size
        )
        every = float(self.network.cost(np.array(list(out.values())), size))
        return np.where([root in into for root in roots], every + cost[:, 0] - cost[:, 1], np.inf)

    def _multicast(self, root: int, wanted: list[int]) -> tuple[int, ...] | None:
        """The links of a multicast to all wanted GPUs; None where no switch can do it."""
        if len(wanted) > 1:
            for into, out in self.network.multicasts:
                if root in into and all(rank in out for rank in wanted):
                    return (into[root], *(out[rank] for rank in wanted))
        return None

    def _inside(self, root: int, wanted: list[int], size: int) -> list[Edge]:
        """From the root to all wanted GPUs: through a switch that copies, else one by one or along a chain."""
        alone = self.shape.inside == "mixed" and self._is_turn_of_single_copies(root, len(wanted))
        key = (root, *wanted, int(alone))
        if key not in self.fixed:
            self.fixed[key] = self._fixed_edges(root, wanted, alone)
        if (fixed := self.fixed[key]) is not None:
            self.network.load_ps[fixed.links] += size * fixed.per_byte_ps
            return list(fixed.edges)
        if self.network.is_uneven(root, wanted):
            return self._grown(root, wanted, size)
        if (self.network.count[root, wanted] == 1).all():  # a chain
            return self._path([root, *self._in_turn(root, wanted)], size)
        edges, reached = list[Edge](), {root}
        for rank in self._in_turn(root, wanted):
            if rank in reached:
                continue
            path = [root, rank] if self.network.first[root, rank] >= 0 else self.network.path(root, rank)
            last = max(at for at, node in enumerate(path) if node in reached)
            edges += self._path(path[last:], size)
            reached.update(path)
        return edges

    def _grown(self, root: int, wanted: list[int], size: int) -> list[Edge]:
        """A tree that grows by the route with the least cost, where far from the root costs more."""
        network, members = self.network, tuple(sorted([root, *wanted]))
        if members not in self.routes_among:
            self.routes_among[members] = self._fastest_routes(list(members))
        routes = self.routes_among[members]
        src, end = network.src[routes], network.end[routes]
        reached = self._mask([root])
        hops = np.zeros(len(self.index))
        edges = list[Edge]()
        while len(edges) < len(wanted):
            usable = np.flatnonzero(reached[src] & ~reached[end])
            cost = network.route_cost(routes[usable], size) * (1 + hops[src[usable]])
            best = int(usable[np.argmin(cost)])
            a, b = int(src[best]), int(end[best])
            reached[b], hops[b] = True, hops[a] + 1
            edges.append(Edge(a, (b,), network.add_route(int(routes[best]), size)))
        return edges

    def _fastest_routes(self, members: list[int]) -> I64:
        """The routes among some GPUs with the highest rates that join all of them."""
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import connected_components

        network, count = self.network, len(self.index)
        routes = np.flatnonzero(np.isin(network.src, members) & np.isin(network.end, members))
        slowness = network.per_byte_ps[network.links[routes]].max(axis=1)
        for most in np.unique(slowness).tolist():
            kept: I64 = routes[slowness <= most]
            graph = csr_matrix((np.ones(len(kept)), (network.src[kept], network.end[kept])), (count, count))
            label = connected_components(graph, directed=True, connection="strong")[1]
            if (label[members] == label[members[0]]).all():
                return kept
        return routes

    def _is_turn_of_single_copies(self, root: int, others: int) -> bool:
        """Whether the next tree inside the root's group copies one by one: one of as many as it has GPUs."""
        group = self.shape.labels[-1][root]
        turn = self.trees_inside.get(group, 0)
        self.trees_inside[group] = turn + 1
        return turn % (others + 1) == others

    def _fixed_edges(self, root: int, wanted: list[int], alone: bool) -> "_FixedEdges | None":
        """The edges to all wanted GPUs where loads do not matter: a multicast, or one route for each. Else None."""
        network = self.network
        links = None if alone else self._multicast(root, wanted)
        if links is not None:
            return _FixedEdges.of(network, [Edge(root, tuple(wanted), links)])
        if network.is_uneven(root, wanted) or (network.count[root, wanted] != 1).any():
            return None
        ends = self._in_turn(root, wanted)
        parents = [root, *ends[:-1]] if self.shape.inside == "chain" else [root] * len(ends)
        if (network.count[parents, ends] != 1).any():
            return None
        routes = [network.links_of(int(route)) for route in network.first[parents, ends]]
        edges = [Edge(a, (b,), tuple(links)) for a, b, links in zip(parents, ends, routes, strict=True)]
        return _FixedEdges.of(network, edges)

    def _in_turn(self, root: int, wanted: list[int]) -> list[int]:
        """The wanted GPUs, those after the root first."""
        gpus = self.network.topology.num_gpus
        return sorted(wanted, key=lambda rank: (rank - root) % gpus)

    def _path(self, nodes: list[int], size: int) -> list[Edge]:
        """One edge after the other."""
        edges = []
        for a, b in pairwise(nodes):
            links = self.network.add_route(self.network.least_loaded(a, b, size), size)
            edges.append(Edge(a, (b,), links))
        return edges


class _FixedEdges(NamedTuple):
    """Edges that do not depend on loads, their links, and the time that a byte on all edges adds to each link."""

    edges: list[Edge]
    links: I64
    per_byte_ps: NDArray[np.float64]

    @classmethod
    def of(cls, network: LoadedRoutes, edges: list[Edge]) -> "_FixedEdges":
        """The links of some edges."""
        links, times = np.unique([link for edge in edges for link in edge.links], return_counts=True)
        return cls(edges, links, times * network.per_byte_ps[links])


def _is_reached_twice(root: int, edges: list[Edge]) -> bool:
    """Whether some GPU gets the chunk twice: where the way to one of its group leads through another group."""
    ends = [end for edge in edges for end in edge.ends]
    return len({root, *ends}) <= len(ends)


def _parents_first(root: int, edges: list[Edge]) -> list[Edge]:
    """The edges in an order in which every parent is reached before it sends; what a node gets twice is dropped."""
    reached, waiting, result = {root}, list(edges), list[Edge]()
    while waiting:
        left = list[Edge]()
        for edge in waiting:
            if edge.parent not in reached:
                left.append(edge)
            elif new := [end for end in edge.ends if end not in reached]:
                reached.update(new)
                result.append(edge if len(new) == len(edge.ends) else _only(edge, new))
        if len(left) == len(waiting):
            raise AssertionError("a tree has an edge whose parent is never reached")
        waiting = left
    return result


def _only(edge: Edge, ends: list[int]) -> Edge:
    """A multicast to some of its ends; its first link leads into the switch."""
    out = dict(zip(edge.ends, edge.links[1:], strict=True))
    return Edge(edge.parent, tuple(ends), (edge.links[0], *(out[end] for end in ends)))
