"""The least time in which whole chunks can flow to everybody, and trees that do it.

    room    how many chunks fit each link in a time: floor(time x bandwidth / chunk)
    least   the least time for which every member can be reached by all chunks (Edmonds; by maximum flows)
    split   switches, memories and GPUs that only relay are split off: room between members, with the ways behind it
    pack    as many trees from each member as it has chunks

With few chunks the least time is above the cut optimum, since each link carries whole chunks; with more it gets there.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import DemandError
from flowccl.methods.trees.packing_kernels import all_reached, pack, split_off
from flowccl.topology.topology import Topology

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Way = tuple[int, ...]

_CLOSE = 1e-6  # relative: how exactly the least time is sought
_TRIES = 40  # times in which switches are tried to be split off; the first nearly always does
_MOST_TREES = 256  # to pack at once, where the same can be had by repeating them
_HARDLY = 1e-4
_SLACK = 1e-9


@dataclass(frozen=True)
class PackedTree:
    """`times` trees from `root`: edges (from, to, way of links) in the order of growth, one way for each copy."""

    root: int
    times: int
    edges: tuple[tuple[int, int, tuple[Way, ...]], ...]


@dataclass(frozen=True)
class Packing:
    """Trees, and the time in microseconds that the fullest link needs for what they put on it."""

    trees: tuple[PackedTree, ...]
    time_us: float
    depth: int


def packed(topology: Topology, roots: I64, members: I64, chunk_bytes: int, link_GBps: F64 | None = None) -> Packing:
    """Trees for `roots[v]` chunks from each member v to all members, in the least time.

    `link_GBps` is how much of each link they may use: by default all of it.
    """
    GBps = topology.link_GBps if link_GBps is None else link_GBps
    per_us = GBps * 1000 / chunk_bytes
    time_us = least_time_us(topology, roots, members, per_us)
    for tries in range(_TRIES):
        trees = _trees(topology, roots, members, _fits(per_us, time_us))
        if trees is not None:
            return Packing(trees, _fullest_us(trees, per_us), max(map(_depth, trees)))
        used = per_us > 0  # the next time at which some link can carry one chunk more, or a little later still
        time_us = float(((_fits(per_us, time_us) + 1)[used] / per_us[used]).min()) * (1 + _CLOSE * 4**tries)
    raise DemandError(f"no trees were found on {topology.name}; use routed or greedy")


def remembered(
    topology: Topology, roots: I64, members: I64, chunk_bytes: int, known: dict[str, object], GBps: F64 | None = None
) -> Packing:
    """The same; `known` keeps it for the next time, whatever the size of chunks."""
    parts = (roots, members, topology.link_GBps if GBps is None else GBps)
    key = f"packing {topology.fingerprint} " + " ".join(part.tobytes().hex() for part in parts)
    packing = known.get(key)
    if not isinstance(packing, Packing):
        packing = known[key] = packed(topology, roots, members, chunk_bytes, GBps)
    return packing


def least_time_us(topology: Topology, roots: I64, members: I64, per_us: F64) -> float:
    """The least time in which whole chunks can reach all members, past all switches or mixed in them.

    `per_us` is how many chunks each link carries in a microsecond.
    """
    total = int(roots.sum())
    least = total / float(per_us.max())
    low, high = 0.0, least
    while not all_reached(_network(topology, roots, _fits(per_us, high)), members, total):
        low, high = high, 2 * high
        if high > 1e6 * least:
            raise DemandError(f"some gpu of {topology.name} cannot be reached")
    while high - low > _CLOSE * high:
        middle = (low + high) / 2
        if all_reached(_network(topology, roots, _fits(per_us, middle)), members, total):
            high = middle
        else:
            low = middle
    return high


def fewest_rounds(topology: Topology, roots: I64, members: I64, per_us: F64) -> int:
    """In how many rounds to repeat trees for a part of the chunks, so that not too many are packed at once.

    Only where links are hardly fuller by that than by trees for all chunks; fewer rounds have more different trees.
    """
    most, total = int(np.gcd.reduce(roots)), int(roots.sum())
    whole = least_time_us(topology, roots, members, per_us)
    for rounds in [count for count in range(1, most + 1) if most % count == 0]:
        few = total <= _MOST_TREES * rounds or rounds == most
        if few and rounds * least_time_us(topology, roots // rounds, members, per_us) <= whole * (1 + _HARDLY):
            return rounds
    return 1


def _fits(per_us: F64, time_us: float) -> I64:
    """How many chunks each link can carry in a time."""
    return np.floor(time_us * per_us * (1 + _SLACK)).astype(np.int64)


def _network(topology: Topology, roots: I64, fits: I64) -> I64:
    """The room between nodes, and behind them the node that feeds the roots."""
    count = len(topology.nodes)
    room = np.zeros((count + 1, count + 1), dtype=np.int64)
    np.add.at(room, (topology.link_src, topology.link_dst), np.minimum(fits, roots.sum()))
    room[count, :count] = roots
    return room


def _trees(topology: Topology, roots: I64, members: I64, fits: I64) -> tuple[PackedTree, ...] | None:
    """Trees in this room; None where the ways past switches are not enough."""
    room, total = _network(topology, roots, fits), int(roots.sum())
    gone = np.setdiff1d(np.arange(len(topology.nodes)), members)
    reached, splits = split_off(room, members, total, gone)
    if not reached:
        return None
    between = np.ascontiguousarray(room[np.ix_(members, members)])
    done, root, times, edges = pack(between, roots[members])
    if not done:
        return None
    bag = _Bag(topology, np.minimum(fits, total), splits)
    rows = zip(members[root].tolist(), times.tolist(), members[edges].tolist(), strict=True)
    return tuple(
        PackedTree(start, many, tuple((a, b, bag.take(a, b, many)) for a, b in pairs)) for start, many, pairs in rows
    )


class _Bag:
    """The ways behind the room between two nodes, each with how many chunks it can carry."""

    def __init__(self, topology: Topology, fits: I64, splits: I64) -> None:
        self.topology = topology
        self.ways: dict[tuple[int, int], list[tuple[Way, int]]] = {}
        for link, many in enumerate(fits.tolist()):
            pair = (int(topology.link_src[link]), int(topology.link_dst[link]))
            self.ways.setdefault(pair, []).append(((link,), many))
        for u, w, t, amount in splits.tolist():
            into, out = self.take(u, w, amount), self.take(w, t, amount)
            for first, second in zip(into, out, strict=True):
                self.ways.setdefault((u, t), []).append((self._straight(first + second), 1))

    def _straight(self, way: Way) -> Way:
        """The way without circles, which it may have through switches that are split off one after the other."""
        links: list[int] = []
        for link in way:
            links.append(link)
            seen = [self.topology.links[one].src for one in links]
            if self.topology.links[link].dst in seen:
                del links[seen.index(self.topology.links[link].dst) :]
        return tuple(links)

    def take(self, a: int, b: int, amount: int) -> tuple[Way, ...]:
        """So many ways from a to b, which are then gone."""
        found: list[Way] = []
        rows = self.ways[a, b]
        while len(found) < amount:
            way, many = rows.pop()
            taken = min(many, amount - len(found))
            found += [way] * taken
            if many > taken:
                rows.append((way, many - taken))
        return tuple(found)


def _fullest_us(trees: tuple[PackedTree, ...], per_us: F64) -> float:
    uses = [link for tree in trees for _, _, ways in tree.edges for way in ways for link in way]
    load = np.bincount(np.array(uses), minlength=len(per_us))
    return float((load[load > 0] / per_us[load > 0]).max())


def _depth(tree: PackedTree) -> int:
    depth = {tree.root: 0}
    for a, b, _ in tree.edges:
        depth[b] = depth[a] + 1
    return max(depth.values())
