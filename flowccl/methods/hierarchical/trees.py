"""What trees on a hierarchy are grown from: their shape, and tables of the machine for the compiled loops."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.methods.hierarchical.loads import LoadedRoutes
from flowccl.methods.hierarchical.route_kernels import IN_CHAIN, MIXED, STAR, Growing, TreeTables, new_growing
from flowccl.methods.hierarchical.row_kernels import PlanRows, add_spreads, add_transfers, spread_costs

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
_ARITY = {"chain": 1, "tree": 2}  # of trees of groups; else each group sends to all others
DIRECT = 1 << 30  # the arity of a star
_INSIDE = {"star": STAR, "chain": IN_CHAIN, "mixed": MIXED}


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
    roots: str = "least"  # how they are chosen, see `roots`
    by_rate: bool = False  # links are shared by rate, see `LoadedRoutes`

    def has_root(self, piece: int) -> bool:
        """Whether a chunk of a block has a root; else groups exchange it."""
        return self.rooted and (not self.exchanged or (piece + 1) % self.exchanged > 0)

    @property
    def is_staged(self) -> bool:
        """Whether groups exchange level by level."""
        return self.between == "stages"

    @property
    def arity(self) -> int:
        """To how many groups each group sends: the group of turn t gets a chunk from that of turn (t - 1) // arity.

        Groups have their turns in the order of their distance from the root's group.
        """
        return _ARITY.get(self.between, DIRECT)


class TreeBuilder:
    """Grows the trees of one chunk after another, and counts their load."""

    def __init__(self, network: LoadedRoutes, shape: TreeShape) -> None:
        self.network, self.shape = network, shape
        self.members = [
            [[rank for rank, group in enumerate(label) if group == at] for at in range(max(label) + 1)]
            for label in shape.labels
        ]
        self.index = np.zeros(len(network.topology.nodes), dtype=np.int64)  # of each GPU in its innermost group
        for ranks in self.members[-1]:
            self.index[ranks] = np.arange(len(ranks))
        self.reduces = np.array([node.reduces for node in network.topology.nodes])
        self.turns = np.zeros(len(self.members[-1]), dtype=np.int64)  # trees inside each innermost group so far

    @cached_property
    def tables(self) -> TreeTables:
        """The machine and the shape of the trees, for the compiled loops."""
        network, topology = self.network, self.network.topology
        labels = np.array(self.shape.labels, dtype=np.int64)
        sizes = [np.bincount(label) for label in labels]
        groups = np.array([len(size) for size in sizes])
        pair_ptr, pair_route = self._routes_between(labels, groups)
        multicasts = network.multicasts
        into, out = np.full((2, len(multicasts), len(topology.nodes)), -1, dtype=np.int64)
        for number, sides in enumerate(multicasts):
            for table, side in zip((into, out), sides, strict=True):
                table[number, list(side)] = list(side.values())
        fast_ptr, fast = self._routes_inside(labels[-1])
        return TreeTables(
            topology.num_gpus,
            _INSIDE[self.shape.inside],
            labels,
            groups,
            pointers(groups)[:-1],
            np.concatenate(sizes),
            pointers(groups**2)[:-1],
            pair_ptr,
            pair_route,
            self._has_slow(pair_ptr, pair_route),
            self._own_routes(labels, int(groups.max())),
            self.index,
            network.src.astype(np.int64),
            network.end.astype(np.int64),
            network.links,
            network.busy_ps,
            np.asarray(network.overloaded[network.links].any(axis=1)),
            network.per_byte_ps,
            network.first,
            network.count,
            into,
            out,
            network.quickest.astype(np.int64) if self._has_gaps(pair_ptr, groups) else network.first[:1],
            fast_ptr,
            fast,
        )

    @cached_property
    def growing(self) -> Growing:
        """Room for the tree that is being grown."""
        t = self.tables
        sizes = (len(t.place), t.gpus, len(t.groups), int(t.groups.max()), len(t.per_byte_ps), *t.links.shape)
        return new_growing(*sizes)

    def add(
        self, rows: PlanRows, step: int, root: int, members: list[int], size: int, level: int = 0, arity: int = DIRECT
    ) -> None:
        """Send a chunk down a tree, up a tree, or between all members; see `add_transfers`."""
        t, load_ps = self.tables, self.network.load_ps
        ranks = np.array(members, dtype=np.int64)
        add_transfers(
            step, t, load_ps, self.growing, self.turns, rows, root, ranks, level, arity, float(size), self.reduces
        )

    def add_spreads(self, rows: PlanRows, at: int, chunks: tuple[I64, I64, I64, I64, F64], until: I64) -> int:
        """Send chunks from their sources, from `at` on, while there is room; see `add_spreads`."""
        state = (self.tables, self.network.load_ps, self.growing, self.turns, rows)
        return int(add_spreads(at, *chunks, *state, self.shape.arity, until))

    def spread_cost(self, gateways: list[int], members: list[int], size: int) -> NDArray[np.float64]:
        """What it costs that each gateway forwards a chunk to all members; chains cost the same from everywhere."""
        some, every = (np.array(ranks, dtype=np.int64) for ranks in (gateways, members))
        return spread_costs(self.tables, self.network.load_ps, self.growing, some, every, float(size))

    def _routes_between(self, labels: I64, groups: I64) -> tuple[I64, I64]:
        """The routes from each group to each other one, on all levels."""
        network, counts, routes = self.network, list[I64](), list[I64]()
        for label, count in zip(labels, groups.tolist(), strict=True):
            joining = np.flatnonzero(network.joins_groups(label))
            pair = label[network.src[joining]] * count + label[network.end[joining]]
            counts.append(np.bincount(pair, minlength=count**2))
            routes.append(joining[np.argsort(pair, kind="stable")])
        return pointers(np.concatenate(counts)), np.concatenate(routes)

    def _has_slow(self, pair_ptr: I64, pair_route: I64) -> NDArray[np.bool_]:
        """Whether any route of each pair of groups has a link that is overloaded."""
        slow = np.any(self.network.overloaded[self.network.links], axis=1)
        before = pointers(np.asarray(slow)[pair_route])
        return np.asarray(before[pair_ptr[1:]] > before[pair_ptr[:-1]])

    def _has_gaps(self, pair_ptr: I64, groups: I64) -> bool:
        """Whether two groups of a level, or two GPUs of an innermost group, are no neighbours: paths are needed."""
        near = np.diff(pair_ptr) > 0
        own = np.concatenate([np.eye(count, dtype=np.bool_).reshape(-1) for count in groups.tolist()])
        inside = [(self.network.first[np.ix_(ranks, ranks)] < 0).sum() > len(ranks) for ranks in self.members[-1]]
        return bool((~near & ~own).any() or any(inside))

    def _own_routes(self, labels: I64, most_groups: int) -> I64:
        """The route along the rail of each sender to each group, on each level; -1: it has none, or several.

        None has a link that is overloaded.
        """
        network, result = self.network, np.full((len(labels), labels.shape[1], most_groups), -1, dtype=np.int64)
        near, ranks = network.near, labels.shape[1]
        usable = np.diff(near.pair_ptr) == 1
        if network.overloaded.any():
            slow = network.overloaded[network.links].any(axis=1)
            usable &= ~np.logical_or.reduceat(slow, near.pair_ptr[:-1])
        between = np.flatnonzero((near.src < ranks) & (near.end < ranks))
        for own, label in zip(result, labels, strict=True):
            pair = between[label[near.src[between]] != label[near.end[between]]]
            src, end = near.src[pair], near.end[pair]
            crossing = src.astype(np.int64) * most_groups + label[end]
            key = 2 * crossing + (self.index[end] != self.index[src])
            order = np.argsort(key, kind="stable")
            is_first = np.diff(crossing[order], prepend=-1) != 0
            is_alone = np.diff(key[order], append=-1) != 0
            kept = order[is_first & is_alone]
            kept = kept[usable[pair[kept]]]
            own[src[kept], label[end[kept]]] = near.pair_ptr[pair[kept]]
        return result

    def _routes_inside(self, label: I64) -> tuple[I64, I64]:
        """Of each innermost group, the fastest routes that join it where GPUs forward, then all routes inside."""
        network = self.network
        inside = (network.src < len(label)) & (network.end < len(label))
        inside[inside] = label[network.src[inside]] == label[network.end[inside]]
        routes = np.flatnonzero(inside)
        routes = routes[np.argsort(label[network.src[routes]], kind="stable")]
        every = np.split(routes, np.searchsorted(label[network.src[routes]], np.arange(1, len(self.members[-1]))))
        parts = list[I64]()
        for ranks, some in zip(self.members[-1], every, strict=True):
            uneven = len(ranks) > 1 and any(network.is_uneven(a, [b for b in ranks if b != a]) for a in ranks)
            parts += [self._fastest_routes(ranks, some) if uneven else some[:0], some]
        return pointers([len(part) for part in parts]), np.concatenate(parts)

    def _fastest_routes(self, members: list[int], routes: I64) -> I64:
        """Of the routes among some GPUs, those with the highest rates that join all of them."""
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import connected_components

        network, count = self.network, len(self.index)
        slowness = network.per_byte_ps[network.links[routes]].max(axis=1)
        for most in np.unique(slowness).tolist():
            kept: I64 = routes[slowness <= most]
            graph = csr_matrix((np.ones(len(kept)), (network.src[kept], network.end[kept])), (count, count))
            label = connected_components(graph, directed=True, connection="strong")[1]
            if (label[members] == label[members[0]]).all():
                return kept
        return routes
