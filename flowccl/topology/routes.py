"""Routes from storing nodes through switches to the next storing nodes.

A route is a set of links that one transfer uses: one link, or several that meet in switches. It starts at one or
more storing nodes (its roots) and ends at one or more storing nodes (its ends). A fork needs a switch that copies, and
a merge needs a switch that reduces. Links connected by cut-through switches form a segment: they run at the same rate,
that of the slowest link. A store-and-forward switch starts a new segment when the whole chunk has arrived there.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.topology.route_tree import OneShape, shape_of, weights_of
from flowccl.topology.topology import Topology

_MAX_CACHED = 200_000  # routes of one machine


@dataclass(frozen=True, eq=False)
class Routes:
    """Routes as arrays: route r has links `link[ptr[r]:ptr[r + 1]]`, each after the link that feeds it."""

    ptr: NDArray[np.int64]
    link: NDArray[np.int32]

    def __post_init__(self) -> None:
        for name, kind in (("ptr", np.int64), ("link", np.int32)):
            column = np.ascontiguousarray(getattr(self, name), dtype=kind)
            column.setflags(write=False)
            object.__setattr__(self, name, column)

    @classmethod
    def from_lists(cls, routes: Iterable[Sequence[int]]) -> "Routes":
        """Return routes from one list of links per route."""
        routes = list(routes)
        ptr = pointers([len(route) for route in routes])
        return cls(ptr, np.array([link for route in routes for link in route], dtype=np.int32))

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def renamed(self, link: NDArray[np.int64]) -> "Routes":
        """Return the routes with link i replaced by link[i]."""
        return Routes(self.ptr, link[self.link].astype(np.int32))

    @cached_property
    def last_shape(self) -> dict[str, tuple[Topology, "RouteShape"]]:
        """Cache of `shape_on`."""
        return {}

    def links(self, route: int) -> tuple[int, ...]:
        """Return the links of one route."""
        return tuple(self.link[self.ptr[route] : self.ptr[route + 1]].tolist())

    def distinct(self) -> tuple["Routes", NDArray[np.int32]]:
        """Return the distinct routes in order of first appearance, and the index of every route among them."""
        for seed in itertools.count():
            _, first, inverse = np.unique(self._hashes(seed), return_index=True, return_inverse=True)
            order = np.argsort(first)
            place = np.empty(len(order), dtype=np.int32)
            place[order] = np.arange(len(order))
            once, which = self.only(first[order]), place[inverse.reshape(-1)]
            again = once.only(which)
            if np.array_equal(again.ptr, self.ptr) and np.array_equal(again.link, self.link):
                break  # otherwise two different routes have the same hash
        return once, which

    def only(self, which: NDArray[np.int32] | NDArray[np.int64]) -> "Routes":
        """Return the selected routes, in this order."""
        size = np.diff(self.ptr)[which]
        ptr = pointers(size)
        return Routes(ptr, self.link[np.repeat(self.ptr[which] - ptr[:-1], size) + np.arange(ptr[-1])])

    def _hashes(self, seed: int) -> NDArray[np.uint64]:
        """Return a hash of each route; different routes almost always have different hashes."""
        size, link = np.diff(self.ptr), self.link - self.link.min(initial=0)
        noise = np.random.default_rng(seed).integers(
            2**64, size=(2, int(max(link.max(initial=0), size.max(initial=0))) + 1), dtype=np.uint64
        )
        hop = noise[0][link] * (noise[1][np.arange(len(link)) - np.repeat(self.ptr[:-1], size)] | np.uint64(1))
        before = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(hop)))
        return np.asarray(before[self.ptr[1:]] - before[self.ptr[:-1]])


@dataclass(frozen=True, eq=False)
class RouteShape:
    """Properties of `Routes` on a machine: arrays per link use ("hop"), per segment, per root and per end.

    hop_offset_ps    latency from the start of the route to the start of this hop
    hop_segment      the segment of the hop (numbered over all routes)
    segment_route    the route of the segment
    segment_parent   the segment that feeds this segment; -1 if it starts at a root
    segment_GBps     bandwidth of its slowest link or limit at time zero
    root_*, end_*    the storing nodes where the route starts and ends, each with its hop
    problem          {route: message} for invalid routes
    operation        {route: message} for routes that are valid only as an operation of a switch on a runtime
    weights          how often the bytes cross each hop; None: once
    """

    routes: Routes
    hop_offset_ps: NDArray[np.int64]
    hop_segment: NDArray[np.int64]
    segment_route: NDArray[np.int64]
    segment_parent: NDArray[np.int64]
    segment_GBps: NDArray[np.float64]
    root_ptr: NDArray[np.int64]
    root_node: NDArray[np.int32]
    root_hop: NDArray[np.int64]
    end_ptr: NDArray[np.int64]
    end_node: NDArray[np.int32]
    end_hop: NDArray[np.int64]
    problem: dict[int, str]
    operation: dict[int, str] = field(default_factory=dict)
    weights: NDArray[np.float64] | None = None

    @property
    def reduces_inside(self) -> NDArray[np.bool_]:
        """Routes in which a switch reduces several inputs for one end, which issues the transfer."""
        return np.asarray((np.diff(self.root_ptr) > 1) & (np.diff(self.end_ptr) == 1))

    @property
    def hop_weight(self) -> NDArray[np.float64]:
        """How often the bytes cross each hop."""
        return np.ones(len(self.routes.link)) if self.weights is None else self.weights


def route_shape(topology: Topology, routes: Routes) -> RouteShape:
    """Return offsets, segments, roots and ends of every route; `problem` says why a route is invalid."""
    count = len(routes)
    size = np.diff(routes.ptr)
    in_range = (routes.link >= 0) & (routes.link < len(topology.links))
    safe = np.where(in_range, routes.link, 0)
    if in_range.all() and len(safe) and (known := _simple_shape(topology, routes)) is not None:
        return known
    rows = [_known_shape(topology, routes.links(r)) for r in range(count)]
    heads = routes.ptr[:-1].tolist()
    roots, ends = [row.roots for row in rows], [row.ends for row in rows]
    segments = np.array([len(row.parent) for row in rows], dtype=np.int64)
    base = pointers(segments)
    hop_segment = np.array([s for row in rows for s in row.segment], dtype=np.int64) + np.repeat(base[:-1], size)
    parent = np.array([p for row in rows for p in row.parent], dtype=np.int64)
    parent = np.where(parent < 0, -1, parent + np.repeat(base[:-1], segments))
    weight = np.array([w for r, e, n in zip(roots, ends, size, strict=True) for w in weights_of(r, e, int(n))])
    return RouteShape(
        routes,
        np.array([o for row in rows for o in row.offset], dtype=np.int64),
        hop_segment,
        np.repeat(np.arange(count, dtype=np.int64), segments),
        parent,
        segment_GBps(topology, safe, hop_segment, int(base[-1]), topology.link_GBps, weight),
        pointers([len(r) for r in roots]),
        np.array([node for r in roots for node, _ in r], dtype=np.int32),
        np.array([hop + at for r, at in zip(roots, heads, strict=True) for _, hop in r], dtype=np.int64),
        pointers([len(e) for e in ends]),
        np.array([node for e in ends for node, _ in e], dtype=np.int32),
        np.array([hop + at for e, at in zip(ends, heads, strict=True) for _, hop in e], dtype=np.int64),
        {r: shape.problem for r, shape in enumerate(rows) if shape.problem},
        {r: shape.operation for r, shape in enumerate(rows) if shape.operation},
        weight,
    )


def _simple_shape(topology: Topology, routes: Routes) -> RouteShape | None:
    """Return the shape on whole arrays if every route is a path, or one to several or from several, else None."""
    straight = _straight(topology, routes)
    fan = _fans(topology, routes, ~straight, merges=False)
    merge = _fans(topology, routes, ~straight & ~fan, merges=True)
    if not (straight | fan | merge).all():
        return None
    count, size = len(routes), np.diff(routes.ptr)
    every, first, last = np.arange(count, dtype=np.int64), routes.ptr[:-1], routes.ptr[1:] - 1
    segment = np.repeat(every, size)
    latency = topology.link_latency_ps[routes.link]
    before = np.cumsum(latency) - latency
    offset = before - before[first][segment]
    root, end = first, last
    if fan.any() or merge.any():
        hop = np.arange(len(routes.link), dtype=np.int64)
        is_first, is_last = hop == first[segment], hop == last[segment]
        offset = np.where(fan[segment] & ~is_first, latency[first][segment], offset)
        if merge.any():  # all inputs of the switch arrive at the same time
            slowest = np.maximum.reduceat(np.where(is_last, 0, latency), first)
            offset = np.where(merge[segment], slowest[segment] - np.where(is_last, 0, latency), offset)
        root = hop[np.where(merge[segment], ~is_last, is_first)]
        end = hop[np.where(fan[segment], ~is_first, is_last)]
    return RouteShape(
        routes,
        offset,
        segment,
        every,
        np.full(count, -1, dtype=np.int64),
        segment_GBps(topology, routes.link, segment, count, topology.link_GBps),
        pointers(np.where(merge, size - 1, 1)),
        topology.link_src[routes.link[root]],
        root,
        pointers(np.where(fan, size - 1, 1)),
        topology.link_dst[routes.link[end]],
        end,
        {},
    )


def _straight(topology: Topology, routes: Routes) -> NDArray[np.bool_]:
    """Return which routes are paths from one storing node through cut-through switches to another."""
    size = np.diff(routes.ptr)
    result = np.zeros(len(routes), dtype=np.bool_)
    for width in np.unique(size[size > 0]).tolist():
        chosen = np.flatnonzero(size == width)
        links = routes.link[routes.ptr[:-1][chosen] + np.arange(width)[:, None]]
        src, dst = topology.link_src[links], topology.link_dst[links]
        good = topology.stores[src[0]] & topology.stores[dst[-1]] & (src[0] != dst[-1])
        for hop in range(width - 1):
            good &= (src[hop + 1] == dst[hop]) & topology.cuts_through[dst[hop]]
            for other in range(hop):
                good &= dst[hop] != dst[other]
        result[chosen] = good
    return result


def _fans(topology: Topology, routes: Routes, asked: NDArray[np.bool_], *, merges: bool) -> NDArray[np.bool_]:
    """Return which of the routes asked for go from one storing node through a cut-through switch to several others.

    With `merges`, those that come from several nodes through a switch that reduces, to one: the last link is that of
    the one node, instead of the first.
    """
    result = np.zeros(len(routes), dtype=np.bool_)
    rows = np.flatnonzero(asked & (np.diff(routes.ptr) > 2))
    if not len(rows):
        return result
    near, far, able = topology.link_src, topology.link_dst, topology.copies
    if merges:
        near, far, able = far, near, topology.reduces
    many = np.diff(routes.ptr)[rows] - 1
    single, first = (routes.ptr[rows + 1] - 1, routes.ptr[rows]) if merges else (routes.ptr[rows], routes.ptr[rows] + 1)
    one, switch = near[routes.link[single]], far[routes.link[single]]
    row = np.repeat(np.arange(len(rows)), many)
    other = routes.link[np.arange(len(row)) + (first - (np.cumsum(many) - many))[row]]
    node = far[other]
    key = np.sort(row * len(topology.nodes) + node)
    again = np.zeros(len(rows), dtype=np.bool_)
    again[key[1:][key[1:] == key[:-1]] // len(topology.nodes)] = True
    good = (near[other] == switch[row]) & topology.stores[node] & (node != one[row])
    able = topology.stores[one] & topology.cuts_through[switch] & able[switch] & ~topology.stores[switch]
    result[rows] = able & ~again & np.logical_and.reduceat(good, np.cumsum(many) - many)
    return result


def shape_on(topology: Topology, routes: Routes) -> RouteShape:
    """Return `route_shape`, cached in the routes for the most recent machine."""
    known = routes.last_shape.get("shape")
    if known is None or known[0] is not topology:
        known = routes.last_shape["shape"] = (topology, route_shape(topology, routes))
    return known[1]


def _known_shape(topology: Topology, links: tuple[int, ...]) -> OneShape:
    """Return the shape of one route, cached in the machine because many schedules use the same routes."""
    known: dict[tuple[int, ...], OneShape] = topology.route_shapes
    if links not in known:
        if len(known) >= _MAX_CACHED:
            known.clear()
        known[links] = shape_of(topology, links)
    return known[links]


def segment_GBps(
    topology: Topology,
    link: NDArray[np.int32],
    hop_segment: NDArray[np.int64],
    segments: int,
    link_GBps: NDArray[np.float64],
    weight: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Return the rate of each segment: its slowest link or limit; m links of a segment share a limit equally.

    `weight` says how often the bytes cross each link.
    """
    rate = np.full(segments, np.inf)
    np.minimum.at(rate, hop_segment, link_GBps[link] if weight is None else link_GBps[link] / weight)
    if topology.limits:
        pointer, limit = topology.link_limits
        times = np.diff(pointer)[link]
        hop = np.repeat(np.arange(len(link)), times)
        first = np.repeat(np.cumsum(times) - times, times)
        of = limit[np.repeat(pointer[:-1][link], times) + np.arange(len(hop)) - first]
        key = hop_segment[hop] * len(topology.limits) + of
        met, uses = np.unique(key, return_counts=True)
        share = topology.limit_GBps[met % len(topology.limits)] / uses
        np.minimum.at(rate, met // len(topology.limits), share)
    return rate
