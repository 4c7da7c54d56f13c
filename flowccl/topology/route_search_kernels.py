"""Compiled search for the routes from storing nodes through switches, best first; see `neighbours.py`."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I32, I64, Bool, compiled, grown, inner, maker


class Ports(NamedTuple):
    """What the search needs to know of each link, and of each node: whether it stores, and the links that leave it.

    `first` is a number that equal links side by side share, `place` the place of a link among these, `alike` how many
    they are, and `port` the number of a link among the links into the same node. Node n has the links
    `out[ptr[n]:ptr[n + 1]]`.
    """

    stores: Bool
    ptr: I64
    out: I64
    end: I64
    latency_ps: I64
    slowness: F64
    first: I64
    place: I64
    alike: I64
    port: I64


class SearchPaths(NamedTuple):
    """SearchPaths from one node, each a link more than the one before it; -1: the node itself, which has no link."""

    before: I64
    node: I64
    link: I64
    latency_ps: I64
    slowness: F64
    hops: I64
    tie: I64


class FoundRoutes(NamedTuple):
    """Pairs of nodes, the number of routes of each, the number of links of each route, and these links."""

    src: I32
    end: I32
    routes: I64
    hops: I64
    link: I32


@compiled
def find_routes(sources: I64, most: int, ports: Ports) -> FoundRoutes:
    """Return up to `most` routes from each source to each end, best first; ends in the order of their numbers.

    The search from a source expands every switch at most `most` times.
    """
    nodes = len(ports.stores)
    src, end, routes = np.empty(64, dtype=np.int32), np.empty(64, dtype=np.int32), np.empty(64, dtype=np.int64)
    hops, link = np.empty(64, dtype=np.int64), np.empty(64, dtype=np.int32)
    found, kept, times = np.zeros(nodes, np.int64), np.empty((nodes, most), np.int64), np.zeros(nodes, np.int64)
    paths, queue = _with_space(64), np.empty(64, dtype=np.int64)
    pairs, all_routes, all_links = 0, 0, 0
    for source in sources:
        found[:] = 0
        times[:] = 0
        _set(paths, 0, -1, source, -1, 0, 0.0, 0, 0)
        queue[0], size, count = 0, 1, 1
        while size:
            path, size = _popped(paths, queue, size), size - 1
            node = paths.node[path]
            if times[node] >= most:
                continue
            times[node] += 1
            more = ports.ptr[node + 1] - ports.ptr[node]
            while count + more > len(paths.node):
                paths, queue = _larger(paths), grown(queue)
            for at in range(ports.ptr[node], ports.ptr[node + 1]):
                further = ports.end[ports.out[at]]
                if further == source or _has_passed(paths, path, further):
                    continue
                _follow(ports, paths, path, ports.out[at], source, count)
                if not ports.stores[further]:
                    size, count = _pushed(paths, queue, size, count), count + 1
                elif _keeps(paths, kept[further], found, further, count):
                    count += 1
        for node in range(nodes):
            if not found[node]:
                continue
            if pairs == len(src):
                src, end, routes = grown(src), grown(end), grown(routes)
            src[pairs], end[pairs], routes[pairs], pairs = source, node, found[node], pairs + 1
            for number in range(found[node]):
                path = kept[node, number]
                length = paths.hops[path]
                while all_links + length > len(link):
                    link = grown(link)
                if all_routes == len(hops):
                    hops = grown(hops)
                hops[all_routes], all_routes, all_links = length, all_routes + 1, all_links + length
                for back in range(length):
                    link[all_links - 1 - back], path = paths.link[path], paths.before[path]
    return FoundRoutes(src[:pairs], end[:pairs], routes[:pairs], hops[:all_routes], link[:all_links])


@inner
def _has_passed(paths: SearchPaths, path: int, end: int) -> bool:
    """Whether a path has been at a node."""
    while paths.before[path] >= 0:
        if paths.node[path] == end:
            return True
        path = paths.before[path]
    return False


@inner
def _keeps(paths: SearchPaths, kept: I64, found: I64, end: int, path: int) -> bool:
    """Insert a path among the best ones to its end, unless all of these are better."""
    at = found[end]
    if at == len(kept):
        if not _is_better(paths, path, kept[at - 1]):
            return False
        at -= 1
    else:
        found[end] += 1
    while at > 0 and _is_better(paths, path, kept[at - 1]):
        kept[at] = kept[at - 1]
        at -= 1
    kept[at] = path
    return True


@inner
def _follow(ports: Ports, paths: SearchPaths, path: int, link: int, source: int, count: int) -> None:
    """Add a path with a link more; equal ones are sorted by a hash, alike links by the port of the source."""
    port = 0 if path == 0 else ports.port[_first_link(paths, path)]
    salt, alike = source * 40503 + paths.node[path] * 7919, ports.alike[link]
    turn = ((ports.place[link] - port) % alike + alike) % alike
    tie = ((ports.first[link] * 2654435761 + salt) & 0xFFFF) * (1 << 40) + turn
    latency_ps = paths.latency_ps[path] + ports.latency_ps[link]
    slowness = max(paths.slowness[path], ports.slowness[link])
    _set(paths, count, path, ports.end[link], link, latency_ps, slowness, paths.hops[path] + 1, tie)


@inner
def _first_link(paths: SearchPaths, path: int) -> int:
    while paths.before[path] > 0:
        path = paths.before[path]
    return int(paths.link[path])


@inner
def _set(
    paths: SearchPaths,
    at: int,
    before: int,
    node: int,
    link: int,
    latency_ps: int,
    slowness: float,
    hops: int,
    tie: int,
) -> None:
    paths.before[at], paths.node[at], paths.link[at] = before, node, link
    paths.latency_ps[at], paths.slowness[at], paths.hops[at], paths.tie[at] = latency_ps, slowness, hops, tie


@inner
def _is_better(paths: SearchPaths, one: int, other: int) -> bool:
    """Whether a path is explored before another one; the last tie is broken by the first link that differs."""
    if paths.latency_ps[one] != paths.latency_ps[other]:
        return bool(paths.latency_ps[one] < paths.latency_ps[other])
    if paths.slowness[one] != paths.slowness[other]:
        return bool(paths.slowness[one] < paths.slowness[other])
    if paths.hops[one] != paths.hops[other]:
        return bool(paths.hops[one] < paths.hops[other])
    if paths.tie[one] != paths.tie[other]:
        return bool(paths.tie[one] < paths.tie[other])
    if paths.node[one] != paths.node[other]:
        return bool(paths.node[one] < paths.node[other])
    result = False
    while one != other:
        if paths.link[one] != paths.link[other]:
            result = paths.link[one] < paths.link[other]
        one, other = paths.before[one], paths.before[other]
    return bool(result)


@inner
def _pushed(paths: SearchPaths, queue: I64, size: int, path: int) -> int:
    """Add a path to the queue; return its length."""
    at = size
    while at > 0 and _is_better(paths, path, queue[(at - 1) >> 1]):
        queue[at] = queue[(at - 1) >> 1]
        at = (at - 1) >> 1
    queue[at] = path
    return size + 1


@inner
def _popped(paths: SearchPaths, queue: I64, size: int) -> int:
    """Remove the best path from the queue."""
    best, last = queue[0], queue[size - 1]
    at, size = 0, size - 1
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _is_better(paths, queue[child + 1], queue[child]):
            child += 1
        if not _is_better(paths, queue[child], last):
            break
        queue[at], at = queue[child], child
    queue[at] = last
    return int(best)


@maker
def _with_space(count: int) -> SearchPaths:
    return SearchPaths(
        np.empty(count, dtype=np.int64),
        np.empty(count, dtype=np.int64),
        np.empty(count, dtype=np.int64),
        np.empty(count, dtype=np.int64),
        np.empty(count, dtype=np.float64),
        np.empty(count, dtype=np.int64),
        np.empty(count, dtype=np.int64),
    )


@maker
def _larger(paths: SearchPaths) -> SearchPaths:
    return SearchPaths(
        grown(paths.before),
        grown(paths.node),
        grown(paths.link),
        grown(paths.latency_ps),
        grown(paths.slowness),
        grown(paths.hops),
        grown(paths.tie),
    )
