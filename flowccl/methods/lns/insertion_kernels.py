"""One chunk at a time, woven into the timetable as a tree that grows, and torn out again."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I32, I64, Bool, heap_pop, heap_push, inner, maker
from flowccl.methods.lns.timetable_kernels import Net, Table, book, busy_ps, earliest, latest, release


class Work(NamedTuple):
    """What must move."""

    size_bytes: I64
    source: I32
    ready_ps: I64
    wanted_ptr: I64
    wanted: I32


class Ways(NamedTuple):
    """The tree of each chunk (row): for each node the route that brings it there (-1: none), its start, the arrival."""

    route: I32
    start_ps: I64
    at_ps: I64


class Desk(NamedTuple):
    """Work space for one chunk."""

    cost: F64  # of each node: what the way there from the tree holds of the links, weighed
    member: Bool  # in the tree
    wanted: Bool
    key: F64  # the queue: when and at what cost the chunk can be there, and where
    node: I64
    path: I64


class One(NamedTuple):
    """The chunk that is woven in now."""

    chunk: int
    size_bytes: int
    weight: float
    salt: int  # of the noise in the weight, which lets another of equal ways be the best
    goal: int  # the only node that wants it, or -1


@maker
def new_desk(nodes: int, routes: int) -> Desk:
    """Fresh work space."""
    size = 4 * routes + 4 * nodes + 16
    flags = np.zeros(nodes, dtype=np.bool_)
    return Desk(
        np.zeros(nodes),
        flags,
        flags.copy(),
        np.empty(size),
        np.empty(size, dtype=np.int64),
        np.empty(nodes, dtype=np.int64),
    )


@inner
def _ahead(net: Net, one: One, node: int) -> float:
    """How far the goal still is at least, so that the search goes towards it; 0 where there are several."""
    return net.ahead_ps[node, one.goal] if one.goal >= 0 else 0.0


@inner
def _try(net: Net, table: Table, ways: Ways, desk: Desk, size: int, one: One, route: int) -> int:
    """Offer a route to the node at its end, if that is better there; returns the size of the queue."""
    start, end = net.start[route], net.end[route]
    hold = busy_ps(net, route, one.size_bytes)
    noise = ((route * 40503 + one.salt) * 2654435761 >> 8 & 0xFFFF) / 65536.0
    hops = net.hop_ptr[route + 1] - net.hop_ptr[route]
    cost = desk.cost[start] + one.weight * hold * hops * (0.75 + 0.5 * noise)
    had = np.inf if ways.route[one.chunk, end] < 0 else ways.at_ps[one.chunk, end] + desk.cost[end]
    ready = ways.at_ps[one.chunk, start]
    if not net.usable[route] or ready + hold + net.away_ps[route] + cost >= had or size >= len(desk.key):
        return size
    begin = earliest(net, table, route, hold, ready, had - cost - hold - net.away_ps[route])
    at = begin + hold + net.away_ps[route]
    if at + cost >= had:
        return size
    ways.route[one.chunk, end], ways.start_ps[one.chunk, end], ways.at_ps[one.chunk, end] = route, begin, at
    desk.cost[end] = cost
    heap_push(desk.key, desk.node, size, at + cost + _ahead(net, one, end), end)
    return size + 1


@inner
def _offer(net: Net, table: Table, ways: Ways, desk: Desk, size: int, one: One, node: int) -> int:
    """Offer all that a node can reach next."""
    for route in range(net.node_ptr[node], net.node_ptr[node + 1]):
        if not desk.member[net.end[route]]:
            size = _try(net, table, ways, desk, size, one, route)
    return size


@inner
def _look_again(net: Net, table: Table, ways: Ways, desk: Desk, size: int, one: One, node: int) -> int:
    """Offer anew all ways to a node whose best one was taken meanwhile by another branch of the tree."""
    before = net.start[ways.route[one.chunk, node]]
    ways.route[one.chunk, node] = -1
    for k in range(net.into_ptr[node], net.into_ptr[node + 1]):
        route = net.into_route[k]
        if desk.member[net.start[route]] or net.start[route] == before:
            size = _try(net, table, ways, desk, size, one, route)
    return size


@inner
def _graft(net: Net, table: Table, ways: Ways, desk: Desk, one: One, node: int) -> int:
    """Book the way from the tree to a node; returns how many nodes have joined, the farthest last in `desk.path`."""
    steps, at = 0, node
    while not desk.member[at]:
        steps += 1
        at = net.start[ways.route[one.chunk, at]]
    at = node
    for k in range(steps - 1, -1, -1):
        desk.path[k] = at
        at = net.start[ways.route[one.chunk, at]]
    for k in range(steps):
        at = desk.path[k]
        route = ways.route[one.chunk, at]
        hold = busy_ps(net, route, one.size_bytes)
        begin = earliest(net, table, route, hold, ways.at_ps[one.chunk, net.start[route]], np.inf)
        book(net, table, route, hold, begin, one.chunk)
        ways.start_ps[one.chunk, at], ways.at_ps[one.chunk, at] = begin, begin + hold + net.away_ps[route]
        desk.member[at], desk.cost[at] = True, 0.0
    return steps


@inner
def weave(net: Net, work: Work, table: Table, ways: Ways, desk: Desk, chunk: int, weight: float, salt: int) -> bool:
    """Weave one chunk in: always the node that can be there first joins the tree. Says whether all could be reached.

    Branches that are there already stay. A node counts as later by `weight` times all that its way holds of the links,
    so that quick ways that take much of the machine are left to those who need them.
    """
    first, after = work.wanted_ptr[chunk], work.wanted_ptr[chunk + 1]
    one = One(chunk, work.size_bytes[chunk], weight, salt, int(work.wanted[first]) if after - first == 1 else -1)
    for k in range(first, after):
        desk.wanted[work.wanted[k]] = True
    ways.at_ps[chunk, work.source[chunk]] = work.ready_ps[chunk]
    left, size = 0, 0
    for node in range(len(desk.member)):
        desk.cost[node] = 0.0
        desk.member[node] = ways.route[chunk, node] >= 0 or node == work.source[chunk]
        if desk.member[node]:
            desk.wanted[node] = False
        elif desk.wanted[node]:
            left += 1
    for node in range(len(desk.member)):
        if desk.member[node]:
            size = _offer(net, table, ways, desk, size, one, node)
    while left > 0 and size > 0:
        key, node = desk.key[0], desk.node[0]
        heap_pop(desk.key, desk.node, size)
        size -= 1
        if desk.member[node] or key > ways.at_ps[chunk, node] + desk.cost[node] + _ahead(net, one, node):
            continue
        route = ways.route[chunk, node]
        ready, hold = ways.at_ps[chunk, net.start[route]], busy_ps(net, route, one.size_bytes)
        if earliest(net, table, route, hold, ready, ways.start_ps[chunk, node] + 1.0) > ways.start_ps[chunk, node]:
            size = _look_again(net, table, ways, desk, size, one, node)
        elif not desk.wanted[node]:
            size = _offer(net, table, ways, desk, size, one, node)
        else:
            for k in range(_graft(net, table, ways, desk, one, node)):
                joined = desk.path[k]
                if desk.wanted[joined]:
                    desk.wanted[joined] = False
                    left -= 1
                size = _offer(net, table, ways, desk, size, one, joined)
    for node in range(len(desk.member)):
        desk.wanted[node] = False
        if not desk.member[node]:
            ways.route[chunk, node] = -1
    return left == 0


@maker
def park_chunk(net: Net, work: Work, table: Table, ways: Ways, chunk: int, target_ps: int) -> None:
    """Let every branch of a chunk's tree start as late as who wants it and its own branches allow.

    Early slots become free for those who must be early. What is late stays as it is.
    """
    nodes = ways.route.shape[1]
    due = np.full(nodes, target_ps)
    for node in np.argsort(-ways.start_ps[chunk], kind="mergesort"):  # branches before what feeds them
        route = ways.route[chunk, node]
        if route < 0:
            continue
        start, hold = ways.start_ps[chunk, node], busy_ps(net, route, work.size_bytes[chunk])
        if ways.at_ps[chunk, node] <= due[node]:
            release(net, table, route, start)
            start = max(start, latest(net, table, route, hold, due[node] - hold - net.away_ps[route]))
            book(net, table, route, hold, start, chunk)
            ways.start_ps[chunk, node], ways.at_ps[chunk, node] = start, start + hold + net.away_ps[route]
        due[net.start[route]] = min(due[net.start[route]], start)


@inner
def unweave(net: Net, table: Table, ways: Ways, chunk: int) -> None:
    """Tear a chunk out, with all branches."""
    for node in range(ways.route.shape[1]):
        if ways.route[chunk, node] >= 0:
            release(net, table, ways.route[chunk, node], ways.start_ps[chunk, node])
            ways.route[chunk, node] = -1


@maker
def cut(net: Net, table: Table, ways: Ways, chunk: int, share: float, random: np.random.Generator) -> None:
    """Tear out the branches above some of the nodes of a chunk's tree: that share of all, at random."""
    gone = np.zeros(ways.route.shape[1], dtype=np.bool_)
    for node in np.argsort(ways.at_ps[chunk], kind="mergesort"):  # what feeds a branch before it
        route = ways.route[chunk, node]
        if route >= 0 and (gone[net.start[route]] or random.random() < share):
            gone[node] = True
            release(net, table, route, ways.start_ps[chunk, node])
            ways.route[chunk, node] = -1


@inner
def put_back(net: Net, work: Work, table: Table, ways: Ways, chunk: int, route: I32, start_ps: I64, at_ps: I64) -> None:
    """Weave a chunk in as it was."""
    for node in range(len(route)):
        ways.route[chunk, node], ways.start_ps[chunk, node] = route[node], start_ps[node]
        ways.at_ps[chunk, node] = at_ps[node]
        if route[node] >= 0:
            hold = busy_ps(net, route[node], work.size_bytes[chunk])
            book(net, table, route[node], hold, start_ps[node], chunk)
