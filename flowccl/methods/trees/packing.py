"""The least time in which whole chunks can reach all members, and trees that achieve it.

    capacity  how many chunks fit each link in a time: the integer part of time x bandwidth / chunk
    least     the least time for which all chunks can reach every member (Edmonds; by maximum flows)
    split     switches, memories and GPUs that only relay are split off: capacity between members, with its paths
    pack      trees from each member, as many as it has chunks

With few chunks the least time is above the bottleneck-cut optimum, since links carry whole chunks; with more chunks it
approaches the optimum.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import DemandError
from flowccl.methods.trees.packing_kernels import all_reached, pack, split_off
from flowccl.topology.topology import Topology

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
LinkPath = tuple[int, ...]

_CLOSE = 1e-6  # relative tolerance of the least time
_TRIES = 40  # times at which splitting off switches is tried; the first nearly always works
_MOST_TREES = 256  # trees of one packing, if repeating a smaller packing is as good
_NEARLY_EQUAL = 1e-4
_SLACK = 1e-9


@dataclass(frozen=True)
class PackedTree:
    """`times` equal trees from `root`: edges (from, to, paths) in the order of growth, with one path per copy."""

    root: int
    times: int
    edges: tuple[tuple[int, int, tuple[LinkPath, ...]], ...]


@dataclass(frozen=True)
class Packing:
    """Trees, and the time in microseconds that they occupy the busiest link."""

    trees: tuple[PackedTree, ...]
    time_us: float
    depth: int


def pack_trees(topology: Topology, roots: I64, members: I64, chunk_bytes: int, link_GBps: F64 | None = None) -> Packing:
    """Pack trees for `roots[v]` chunks from each member v to all members, in the least time.

    `link_GBps` is the bandwidth that they may use of each link, by default all of it.
    """
    GBps = topology.link_GBps if link_GBps is None else link_GBps
    per_us = GBps * 1000 / chunk_bytes
    time_us = least_time_us(topology, roots, members, per_us)
    for tries in range(_TRIES):
        trees = _pack_at(topology, roots, members, _chunks_that_fit(per_us, time_us))
        if trees is not None:
            return Packing(trees, _bottleneck_us(trees, per_us), max(map(_depth, trees)))
        used = per_us > 0  # the next time at which some link can carry one chunk more, or a little later
        time_us = float(((_chunks_that_fit(per_us, time_us) + 1)[used] / per_us[used]).min()) * (1 + _CLOSE * 4**tries)
    raise DemandError(f"no tree packing was found on {topology.name}; use reroute or greedy")


def cached_packing(
    topology: Topology, roots: I64, members: I64, chunk_bytes: int, known: dict[str, object], GBps: F64 | None = None
) -> Packing:
    """Return a packing, cached in `known` for all chunk sizes."""
    parts = (roots, members, topology.link_GBps if GBps is None else GBps)
    key = f"packing {topology.fingerprint} " + " ".join(component.tobytes().hex() for component in parts)
    packing = known.get(key)
    if not isinstance(packing, Packing):
        packing = known[key] = pack_trees(topology, roots, members, chunk_bytes, GBps)
    return packing


def least_time_us(topology: Topology, roots: I64, members: I64, per_us: F64) -> float:
    """Return the least time in which whole chunks can reach all members if switches may mix them.

    `per_us` is the number of chunks that each link carries per microsecond.
    """
    total = int(roots.sum())
    least = total / float(per_us.max())
    low, high = 0.0, least
    while not all_reached(_network(topology, roots, _chunks_that_fit(per_us, high)), members, total):
        low, high = high, 2 * high
        if high > 1e6 * least:
            raise DemandError(f"some GPU of {topology.name} cannot be reached")
    while high - low > _CLOSE * high:
        middle = (low + high) / 2
        if all_reached(_network(topology, roots, _chunks_that_fit(per_us, middle)), members, total):
            high = middle
        else:
            low = middle
    return high


def choose_rounds(topology: Topology, roots: I64, members: I64, per_us: F64) -> int:
    """Return in how many rounds trees for a part of the chunks repeat, so that fewer trees are packed.

    The load of the links may only grow slightly compared with trees for all chunks. Fewer rounds have more distinct
    trees.
    """
    most, total = int(np.gcd.reduce(roots)), int(roots.sum())
    whole = least_time_us(topology, roots, members, per_us)
    for rounds in [count for count in range(1, most + 1) if most % count == 0]:
        few = total <= _MOST_TREES * rounds or rounds == most
        if few and rounds * least_time_us(topology, roots // rounds, members, per_us) <= whole * (1 + _NEARLY_EQUAL):
            return rounds
    return 1


def _chunks_that_fit(per_us: F64, time_us: float) -> I64:
    """Number of chunks that each link can carry in a time."""
    return np.floor(np.minimum(time_us * per_us * (1 + _SLACK), 2.0**60)).astype(np.int64)


def _network(topology: Topology, roots: I64, fits: I64) -> I64:
    """Capacities between nodes, and from an additional last node that feeds the roots."""
    count = len(topology.nodes)
    capacity = np.zeros((count + 1, count + 1), dtype=np.int64)
    np.add.at(capacity, (topology.link_src, topology.link_dst), np.minimum(fits, roots.sum()))
    capacity[count, :count] = roots
    return capacity


def _pack_at(topology: Topology, roots: I64, members: I64, fits: I64) -> tuple[PackedTree, ...] | None:
    """Trees within these capacities; None if the paths past switches do not suffice."""
    capacity, total = _network(topology, roots, fits), int(roots.sum())
    removed = np.setdiff1d(np.arange(len(topology.nodes)), members)
    reached, splits = split_off(capacity, members, total, removed)
    if not reached:
        return None
    between = np.ascontiguousarray(capacity[np.ix_(members, members)])
    done, root, times, edges = pack(between, roots[members])
    if not done:
        return None
    bag = _PathPool(topology, np.minimum(fits, total), splits)
    rows = zip(members[root].tolist(), times.tolist(), members[edges].tolist(), strict=True)
    return tuple(
        PackedTree(start, many, tuple((a, b, bag.take(a, b, many)) for a, b in pairs)) for start, many, pairs in rows
    )


class _PathPool:
    """The paths behind the capacity between two nodes, each with the number of chunks that it can carry."""

    def __init__(self, topology: Topology, fits: I64, splits: I64) -> None:
        self.topology = topology
        self.paths: dict[tuple[int, int], list[tuple[LinkPath, int]]] = {}
        for link, many in enumerate(fits.tolist()):
            pair = (int(topology.link_src[link]), int(topology.link_dst[link]))
            self.paths.setdefault(pair, []).append(((link,), many))
        for u, w, t, amount in splits.tolist():
            into, out = self.take(u, w, amount), self.take(w, t, amount)
            for first, second in zip(into, out, strict=True):
                self.paths.setdefault((u, t), []).append((self._without_cycles(first + second), 1))

    def _without_cycles(self, path: LinkPath) -> LinkPath:
        """The path without cycles, which splitting off several switches may create."""
        links: list[int] = []
        for link in path:
            links.append(link)
            seen = [self.topology.links[one].src for one in links]
            if self.topology.links[link].dst in seen:
                del links[seen.index(self.topology.links[link].dst) :]
        return tuple(links)

    def take(self, a: int, b: int, amount: int) -> tuple[LinkPath, ...]:
        """Remove and return this many paths from a to b."""
        found: list[LinkPath] = []
        rows = self.paths[a, b]
        while len(found) < amount:
            path, many = rows.pop()
            taken = min(many, amount - len(found))
            found += [path] * taken
            if many > taken:
                rows.append((path, many - taken))
        return tuple(found)


def _bottleneck_us(trees: tuple[PackedTree, ...], per_us: F64) -> float:
    uses = [link for tree in trees for _, _, paths in tree.edges for path in paths for link in path]
    load = np.bincount(np.array(uses), minlength=len(per_us))
    return float((load[load > 0] / per_us[load > 0]).max())


def _depth(tree: PackedTree) -> int:
    depth = {tree.root: 0}
    for a, b, _ in tree.edges:
        depth[b] = depth[a] + 1
    return max(depth.values())
