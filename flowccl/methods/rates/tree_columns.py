"""Trees as columns of a linear program: spanning trees of cheapest routes for prices, with their loads."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from flowccl.methods.rates.chunk_transfers import ChunkTransfers
from flowccl.methods.rates.network import F64, I64, Path, PricedNetwork

_EQUAL = 1e-3  # difference of prices of edges, relative to a typical one, below which shallow trees are preferred
_LEVELS = (0.1, 0.5, 2.0)  # prices of a level of shallow trees, relative to a typical edge


@dataclass(frozen=True, eq=False)
class TreeColumn:
    """A spanning tree: its root, the parent of every other GPU, and the routes, by the last link of each.

    Where `inward`, the tree is one of the reversed machine: data goes from the GPUs to their parents.
    """

    network: PricedNetwork = field(repr=False)
    root: int
    inward: bool
    parent: I64
    last: I64 = field(repr=False)
    depth: int

    @cached_property
    def edges(self) -> list[tuple[int, int, Path]]:
        """Parent, child and route, parents first."""
        children: dict[int, list[int]] = {}
        for node, above in enumerate(self.parent.tolist()):
            if node != self.root:
                children.setdefault(above, []).append(node)
        edges, queue = list[tuple[int, int, Path]](), [self.root]
        for above in queue:
            new = children.get(above, [])
            edges += [(above, node, self.network.path(self.last, above, node)) for node in new]
            queue += new
        return edges

    def longest_path(self, takes: F64, latency: F64) -> float:
        """The longest path from the root, where a route takes as long as its slowest link, and all its latencies."""
        from flowccl.methods.rates.pricing_kernels import longest_path

        tail = self.network.topology.link_src
        return float(longest_path(self.parent, self.root, self.last, tail, takes, latency))

    @cached_property
    def plan(self) -> ChunkTransfers:
        """The transfers of a chunk: from the root, or into it with the farthest GPUs first."""
        edges = self.edges[::-1] if self.inward else self.edges
        place = {node: i for i, (_, node, _) in enumerate(edges)}
        above = [(place[a], place[b]) for a, b, _ in edges if a in place]
        waits = [(below, i) for i, below in above] if self.inward else above
        level = [0] * len(edges)
        for first, then in sorted(waits, key=lambda pair: pair[1]):
            level[then] = max(level[then], level[first] + 1)
        paths = [tuple(reversed(path)) if self.inward else path for _, _, path in edges]
        return ChunkTransfers.of(paths, level, waits, reduce=self.inward)


@dataclass(frozen=True, eq=False)
class PricedTrees:
    """Trees for the same prices, with the load of each."""

    columns: list[TreeColumn]
    loads: F64

    @classmethod
    def of(cls, network: PricedNetwork, roots: I64, parents: I64, last: I64, *, inward: bool) -> "PricedTrees":
        """The trees with these parents, with their loads of links and limits."""
        from flowccl.methods.rates.pricing_kernels import tree_loads

        topology = network.topology
        loads, depth = tree_loads(parents, roots, last, topology.link_src, len(topology.links))
        rows = zip(roots.tolist(), parents, depth.tolist(), strict=True)
        columns = [TreeColumn(network, root, inward, parent, last, level) for root, parent, level in rows]
        return cls(columns, network.with_limits(loads))


def priced_trees(
    network: PricedNetwork,
    roots: I64,
    between: F64,
    last: I64,
    typical: float,
    inward: bool,
) -> PricedTrees:
    """For each root the cheapest tree, and shallow ones, for prices between GPUs of which one is typical."""
    from flowccl.methods.rates.pricing_kernels import cheapest_trees, shallow_trees

    some = [cheapest_trees(between, roots, _EQUAL * typical)]
    some += [shallow_trees(between, roots, level * typical) for level in _LEVELS]
    return PricedTrees.of(network, np.tile(roots, len(some)), np.concatenate(some), last, inward=inward)


def gpu_prices(network: PricedNetwork, price: F64) -> tuple[F64, I64, float]:
    """Prices between GPUs over switches, the last links of these routes, and the price of a typical route.

    Where no route over switches exists, the price is too high to be chosen.
    """
    between, last = network.routes(price)
    count = network.topology.num_gpus
    between = between[:, :count].copy()
    finite = between[np.isfinite(between)]
    between[~np.isfinite(between)] = 1e6 * max(float(finite.max()), 1e-300) * count
    np.fill_diagonal(between, 0.0)
    return between, last, float(np.median(finite[finite > 0]))
