"""Positions of the nodes of a machine in a picture. The unit is the distance between two neighbouring GPUs.

Meshes and tori are drawn as grids, trees in rows. Otherwise GPUs are placed on a circle, with switches inside it by
their distance from the GPUs. Each host is laid out separately; hosts are then placed around the switches that connect
them, with their network side inwards.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from flowccl.topology.topology import Topology

Points = NDArray[np.float64]
_MAX_IN_ROW = 16  # GPUs per host
_MAX_IN_TREE = 64
_ASIDE = 0.07  # distance of a link from the line between its nodes, so that both directions are visible


@dataclass(frozen=True)
class NodePositions:
    """Position of every node; for each host its outline, and the position and outward direction of its name."""

    place: Points
    outlines: dict[str, Points]
    labels: dict[str, Points]


@dataclass(frozen=True)
class _Cluster:
    """Positions of some nodes around (0, 0); the rest of the machine is above them."""

    nodes: list[int]
    place: Points
    round: bool

    def outline(self, foot: float) -> Points:
        """Outline of the nodes, with a margin of `foot` below them for the names of switches."""
        if self.round:
            angle = np.linspace(0, 2 * np.pi, 90)
            radius = np.hypot(*self.place.T).max() + 0.65
            rim: Points = radius * np.stack((np.cos(angle), np.sin(angle)), axis=1)
            return rim
        (left, low), (right, high) = self.place.min(axis=0) - (0.6, foot), self.place.max(axis=0) + 0.6
        return np.array([(left, low), (right, low), (right, high), (left, high)])


def position_nodes(topology: Topology) -> NodePositions:
    """Compute the position of every node of a machine."""
    hosts = {name: [n for n, node in enumerate(topology.nodes) if node.host == name] for name in topology.hosts}
    rest = [n for n, node in enumerate(topology.nodes) if not node.host]
    if not hosts:
        return NodePositions(_whole(topology, rest), {}, {})
    clusters = {name: _cluster(topology, nodes) for name, nodes in hosts.items()}
    return _around(topology, clusters, rest)


def link_lines(topology: Topology, place: Points, links: NDArray[np.int64]) -> Points:
    """Compute the two ends of the line of each of some links: an array of shape (links, 2, 2)."""
    start, end = place[topology.link_src[links]], place[topology.link_dst[links]]
    along = end - start
    aside = np.stack((along[:, 1], -along[:, 0]), axis=1) / np.maximum(np.hypot(*along.T), 1e-9)[:, None]
    lines: Points = np.stack((start, end), axis=1) + _ASIDE * aside[:, None]
    return lines


def _whole(topology: Topology, nodes: list[int]) -> Points:
    """Positions for a machine without hosts."""
    gpus = list(range(topology.num_gpus))
    grid = _grid(topology)
    if grid is not None:
        return grid
    if len(_tiers(topology, nodes[len(gpus) :], gpus)) > 1 and len(gpus) <= _MAX_IN_TREE:
        return _row(topology, nodes, gpus, tree=True).place
    return _concentric(topology, nodes).place


def _around(topology: Topology, clusters: dict[str, _Cluster], rest: list[int]) -> NodePositions:
    """Place hosts around the nodes that belong to no host."""
    place = np.zeros((len(topology.nodes), 2))
    count = len(clusters)
    in_hosts = [n for n, node in enumerate(topology.nodes) if node.host]
    middle = _rings(_tiers(topology, rest, in_hosts))
    lined_up = count == 2 and not any(cluster.round for cluster in clusters.values())
    reach = max([0.0, *(np.hypot(*point) + 0.5 for point in middle.values())])
    if lined_up:
        reach = 0.5 if rest else 0.0
    shapes = {name: cluster.outline(1.4 if count > 2 else 0.75) for name, cluster in clusters.items()}
    wide = max(np.abs(shape[:, 0]).max() for shape in shapes.values())
    high = max(shape[:, 1].max() for shape in shapes.values())
    radius = high + reach + (1.0 if count > 1 or rest else 0.0)
    if count > 2:
        radius = max(radius, high + (wide + 0.3) / np.tan(np.pi / count))
    free = radius - high
    spread = max(1.0, 0.5 * free / reach) if count > 2 and len(rest) > 1 else 1.0
    outlines, labels = {}, {}
    for number, (name, cluster) in enumerate(clusters.items()):
        turn = 2 * np.pi * number / count
        if count == 2 and not lined_up:
            turn -= np.pi / 2
        out = np.array([np.sin(turn), np.cos(turn)])
        along = np.array([1.0, 0.0]) if lined_up or count == 1 else np.array([out[1], -out[0]])
        if count == 1:
            out = -out  # upright, with its network neighbours above it
        frame = np.stack((along, -out))
        place[cluster.nodes] = radius * out + cluster.place @ frame
        outlines[name] = radius * out + shapes[name] @ frame
        labels[name] = np.stack((out * (radius - shapes[name][:, 1].min() + 0.2), out))
    for node, point in middle.items():
        place[node] = spread * point
    if lined_up and rest:
        place[rest] = np.stack((_spaced(_means(topology, rest, place)[:, 0], 1.1), np.zeros(len(rest))), axis=1)
    return NodePositions(place, outlines, labels)


def _cluster(topology: Topology, nodes: list[int]) -> _Cluster:
    """Positions for one host: directly linked GPUs on a circle, GPUs that share switches in a row."""
    gpus = [n for n in nodes if topology.nodes[n].kind == "gpu"]
    inside = np.isin(topology.link_src, gpus) & np.isin(topology.link_dst, gpus)
    if not np.any(inside) and 0 < len(gpus) <= _MAX_IN_ROW:
        return _row(topology, nodes, gpus)
    cluster = _concentric(topology, nodes)
    outer = np.flatnonzero(_linked_outside(topology, nodes))
    toward = cluster.place[outer].mean(axis=0) if len(outer) else np.zeros(2)
    if np.hypot(*toward) < 0.2:
        return cluster
    toward /= np.hypot(*toward)  # rotate so that nodes with links to other hosts are at the top
    turned = cluster.place @ np.array([[toward[1], toward[0]], [-toward[0], toward[1]]])
    return _Cluster(cluster.nodes, turned, True)


def _row(topology: Topology, nodes: list[int], gpus: list[int], tree: bool = False) -> _Cluster:
    """GPUs in a row; nodes linked outside the host (or all nodes, in a tree) are placed above, the others below.

    The distance between rows grows with their length, so lines from the ends of a row do not cross its other nodes.
    """
    row_gap = max(1.5, 0.19 * len(gpus)) if not tree else max(1.6, 0.12 * len(gpus))
    place = np.zeros((len(topology.nodes), 2))
    place[gpus, 0] = np.arange(len(gpus)) - (len(gpus) - 1) / 2
    others = [n for n in nodes if n not in set(gpus)]
    outside = dict(zip(nodes, _linked_outside(topology, nodes).tolist(), strict=True))
    side = dict.fromkeys(gpus, 0)
    for depth, tier in enumerate(_tiers(topology, others, gpus), start=1):
        for node in tier:
            near = [side[n] for n in _neighbours(topology, node) if side.get(n)]
            side[node] = near[0] if near and depth > 1 else (1 if outside[node] or tree else -1)
        for up in (1, -1):
            row = [n for n in tier if side[n] == up]
            if row:
                names = max(len(topology.nodes[n].name) for n in row)
                gap = max(0.7 + 0.1 * names, 0.95 * len(gpus) / len(row))
                middle = _spaced(_means(topology, row, place, set(side) - set(tier))[:, 0], gap)
                place[row] = np.stack((middle, np.full(len(row), up * row_gap * depth)), axis=1)
    shown = place[nodes]
    return _Cluster(nodes, shown - [0.0, (shown[:, 1].max() + shown[:, 1].min()) / 2], False)


def _concentric(topology: Topology, nodes: list[int]) -> _Cluster:
    """GPUs on a circle in rank order; switches on smaller circles, or on larger ones if GPUs are linked directly."""
    gpus = [n for n in nodes if topology.nodes[n].kind == "gpu"]
    others = [n for n in nodes if n not in set(gpus)]
    tiers = _tiers(topology, others, gpus)
    direct = bool(np.any(np.isin(topology.link_src, gpus) & np.isin(topology.link_dst, gpus)))
    if direct and not any(len(tier) == 1 for tier in tiers):
        radii = [max(0.9, len(gpus) / (2 * np.pi))]
        for tier in tiers:
            radii.append(max(radii[-1] + 1.1, len(tier) / (2 * np.pi)))
    else:
        radii = _radii([gpus, *tiers])
    place = np.zeros((len(topology.nodes), 2))
    if gpus:
        place[gpus] = _polar_points(radii[0], len(gpus), 0.0)
    for tier, radius in zip(tiers, radii[1:], strict=True):
        known = set(nodes) - {n for later in tiers[tiers.index(tier) :] for n in later}
        place[tier] = _near(_means(topology, tier, place, known), radius)
    return _Cluster(nodes, place[nodes], True)


def _rings(tiers: list[list[int]]) -> dict[int, Points]:
    """Nodes on concentric circles, the last tier innermost."""
    result: dict[int, Points] = {}
    for tier, radius in zip(tiers, _radii(tiers), strict=True):
        result |= dict(zip(tier, _polar_points(radius, len(tier), 0.0), strict=True))
    return result


def _radii(tiers: list[list[int]]) -> list[float]:
    """Radii from the outermost circle to the innermost; each circle fits its nodes and the next circle."""
    radii: list[float] = []
    for tier in reversed(tiers):
        inner = radii[-1] + 1.15 if radii else (0.0 if len(tier) == 1 else 0.9)
        radii.append(max(inner, len(tier) / (2 * np.pi) if len(tier) > 1 else 0.0))
    radii.reverse()
    for at in range(1, len(tiers)):
        if len(tiers[at]) > 1:  # not farther inside than necessary
            radii[at] = max(radii[at], radii[at - 1] - 2.2)
    return radii


def _polar_points(radius: float, count: int, turn: float) -> Points:
    """Points on a circle, clockwise from the top."""
    angle = turn + 2 * np.pi * np.arange(count) / max(count, 1)
    return radius * np.stack((np.sin(angle), np.cos(angle)), axis=1)


def _near(means: Points, radius: float) -> Points:
    """Evenly spaced points on a circle, each close to the direction of its mean."""
    count = len(means)
    aimless = np.hypot(*means.T).max() < 1e-6
    angle = np.arctan2(means[:, 0], means[:, 1]) % (2 * np.pi)
    order = np.arange(count) if aimless else np.argsort(np.round(angle, 6), kind="stable")
    even = 2 * np.pi * np.arange(count) / count
    turn = 0.0 if aimless else float(np.angle(np.exp(1j * (angle[order] - even)).mean()))
    place = np.zeros((count, 2))
    place[order] = _polar_points(radius, count, turn)
    return place


def _spaced(wanted: Points, gap: float) -> Points:
    """Values close to the wanted ones, at least `gap` apart, in the same order."""
    order = np.argsort(wanted, kind="stable")
    steps = gap * np.arange(len(wanted))
    low = np.maximum.accumulate(wanted[order] - steps) + steps
    high = np.minimum.accumulate((wanted[order] - steps)[::-1])[::-1] + steps
    result = np.empty(len(wanted))
    result[order] = (low + high) / 2
    return result


def _means(topology: Topology, nodes: list[int], place: Points, known: set[int] | None = None) -> Points:
    """Mean position of the known neighbours of each node."""
    near = [[n for n in _neighbours(topology, node) if known is None or n in known] for node in nodes]
    return np.array([place[n].mean(axis=0) if n else np.zeros(2) for n in near])


def _neighbours(topology: Topology, node: int) -> list[int]:
    (ptr_out, out), (ptr_in, into) = topology.out_links, topology.in_links
    after = topology.link_dst[out[ptr_out[node] : ptr_out[node + 1]]]
    before = topology.link_src[into[ptr_in[node] : ptr_in[node + 1]]]
    return sorted({*after.tolist(), *before.tolist()})


def _linked_outside(topology: Topology, nodes: list[int]) -> NDArray[np.bool_]:
    """Which of these nodes have a link to a node outside the list."""
    own = set(nodes)
    return np.array([any(n not in own for n in _neighbours(topology, node)) for node in nodes])


def _tiers(topology: Topology, nodes: list[int], start: list[int]) -> list[list[int]]:
    """Nodes grouped by their distance from the start nodes; unreachable nodes come last."""
    left, reached, tiers = set(nodes), set(start), []
    while left:
        tier = [n for n in sorted(left) if reached & set(_neighbours(topology, n))] or sorted(left)
        tiers.append(tier)
        reached, left = set(tier), left - set(tier)
    return tiers


def _grid(topology: Topology) -> Points | None:
    """Positions in a two- or three-dimensional grid if all links connect neighbours in it; otherwise None."""
    count = len(topology.nodes)
    if topology.num_gpus < count or not topology.links:
        return None
    factors = [n for n in range(2, count // 2 + 1) if count % n == 0]
    shapes: list[tuple[int, ...]] = [(a, count // a) for a in factors]
    shapes += [(a, b, count // (a * b)) for a, b in product(factors, factors) if count % (a * b) == 0 and a * b < count]
    for shape in sorted(shapes, key=lambda sizes: (len(sizes), max(sizes))):
        where = np.array(np.unravel_index(np.arange(count), shape)).T
        step = np.abs(where[topology.link_src] - where[topology.link_dst])
        one = np.sum(step > 0, axis=1) == 1
        if np.all(one) and np.all((step <= 1) | (step == np.array(shape) - 1)):
            return _project_grid(where.astype(np.float64), shape)
    return None


def _project_grid(where: Points, shape: tuple[int, ...]) -> Points:
    """Project grid coordinates to the plane: rows from top to bottom, a third dimension as shifted layers."""
    if len(shape) == 2:
        return 1.25 * np.stack((where[:, 1], -where[:, 0]), axis=1)
    wide = 0.62 * shape[0] + 0.6
    return np.stack((wide * where[:, 2] + 0.62 * where[:, 0], -wide * where[:, 1] + 0.5 * where[:, 0]), axis=1)
