"""Insertion of one chunk into the timetable, as a growing tree, and its removal."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I32, I64, Bool, heap_pop, heap_push, inner, maker
from flowccl.methods.lns.timetable_kernels import RouteNetwork, Timetable, book, busy_ps, earliest, release


class PlannedChunks(NamedTuple):
    """The chunks to plan, with their sources and destinations."""

    size_bytes: I64
    source: I32
    ready_ps: I64
    wanted_ptr: I64
    wanted: I32


class InsertedTrees(NamedTuple):
    """The tree of each chunk (row): for each node the route to it (-1: none), its start, and the arrival."""

    route: I32
    start_ps: I64
    at_ps: I64


class InsertionScratch(NamedTuple):
    """Work space for the insertion of one chunk."""

    cost: F64  # of each node: weighted occupancy of the links on the path from the tree
    member: Bool  # in the tree
    wanted: Bool
    key: F64  # the queue: arrival plus cost, and the node
    node: I64
    path: I64


class InsertedChunk(NamedTuple):
    """The chunk that is being inserted."""

    chunk: int
    size_bytes: int
    weight: float
    salt: int  # of the noise in the weight, which breaks ties between routes
    goal: int  # the only destination, or -1


@maker
def new_scratch(nodes: int, routes: int) -> InsertionScratch:
    """New work space."""
    size = 4 * routes + 4 * nodes + 16
    flags = np.zeros(nodes, dtype=np.bool_)
    return InsertionScratch(
        np.zeros(nodes),
        flags,
        flags.copy(),
        np.empty(size),
        np.empty(size, dtype=np.int64),
        np.empty(nodes, dtype=np.int64),
    )


@inner
def _remaining_ps(net: RouteNetwork, current: InsertedChunk, node: int) -> float:
    """Lower bound on the time to the goal, which directs the search (A*); 0 if there are several destinations."""
    return net.distance_ps[node, current.goal] if current.goal >= 0 else 0.0


@inner
def _relax_route(
    net: RouteNetwork,
    table: Timetable,
    trees: InsertedTrees,
    scratch: InsertionScratch,
    size: int,
    current: InsertedChunk,
    route: int,
) -> int:
    """Relax a route: update the node at its end if that improves it. Return the size of the queue."""
    start, end = net.start[route], net.end[route]
    busy = busy_ps(net, route, current.size_bytes)
    noise = ((route * 40503 + current.salt) * 2654435761 >> 8 & 0xFFFF) / 65536.0
    hops = net.hop_ptr[route + 1] - net.hop_ptr[route]
    cost = scratch.cost[start] + current.weight * busy * hops * (0.75 + 0.5 * noise)
    had = np.inf if trees.route[current.chunk, end] < 0 else trees.at_ps[current.chunk, end] + scratch.cost[end]
    ready = trees.at_ps[current.chunk, start]
    if not net.usable[route] or ready + busy + net.latency_ps[route] + cost >= had or size >= len(scratch.key):
        return size
    begin = earliest(net, table, route, busy, ready, had - cost - busy - net.latency_ps[route])
    at = begin + busy + net.latency_ps[route]
    if at + cost >= had:
        return size
    trees.route[current.chunk, end], trees.start_ps[current.chunk, end], trees.at_ps[current.chunk, end] = (
        route,
        begin,
        at,
    )
    scratch.cost[end] = cost
    heap_push(scratch.key, scratch.node, size, at + cost + _remaining_ps(net, current, end), end)
    return size + 1


@inner
def _relax_node(
    net: RouteNetwork,
    table: Timetable,
    trees: InsertedTrees,
    scratch: InsertionScratch,
    size: int,
    current: InsertedChunk,
    node: int,
) -> int:
    """Relax all routes from a node to nodes outside the tree."""
    for route in range(net.node_ptr[node], net.node_ptr[node + 1]):
        if not scratch.member[net.end[route]]:
            size = _relax_route(net, table, trees, scratch, size, current, route)
    return size


@inner
def _relax_again(
    net: RouteNetwork,
    table: Timetable,
    trees: InsertedTrees,
    scratch: InsertionScratch,
    size: int,
    current: InsertedChunk,
    node: int,
) -> int:
    """Relax again all routes to a node whose best route another branch of the tree has occupied meanwhile."""
    before = net.start[trees.route[current.chunk, node]]
    trees.route[current.chunk, node] = -1
    for k in range(net.into_ptr[node], net.into_ptr[node + 1]):
        route = net.into_route[k]
        if scratch.member[net.start[route]] or net.start[route] == before:
            size = _relax_route(net, table, trees, scratch, size, current, route)
    return size


@inner
def _is_connected(net: RouteNetwork, trees: InsertedTrees, scratch: InsertionScratch, chunk: int, node: int) -> bool:
    """Whether the path to a node begins in the tree; nodes that were relaxed again may have closed a cycle."""
    for _ in range(len(scratch.member)):
        if scratch.member[node]:
            return True
        if trees.route[chunk, node] < 0:
            return False
        node = net.start[trees.route[chunk, node]]
    return False


@inner
def _relax_tree(
    net: RouteNetwork,
    table: Timetable,
    trees: InsertedTrees,
    scratch: InsertionScratch,
    current: InsertedChunk,
) -> int:
    """Relax all routes from the nodes of the tree, with an empty queue and no other paths; return the queue's size."""
    size = 0
    for node in range(len(scratch.member)):
        scratch.cost[node] = 0.0
        if not scratch.member[node]:
            trees.route[current.chunk, node] = -1
    for node in range(len(scratch.member)):
        if scratch.member[node]:
            size = _relax_node(net, table, trees, scratch, size, current, node)
    return size


@inner
def _book_path(
    net: RouteNetwork,
    table: Timetable,
    trees: InsertedTrees,
    scratch: InsertionScratch,
    current: InsertedChunk,
    node: int,
) -> int:
    """Book the path from the tree to a node; return the number of its new nodes, in order in `scratch.path`."""
    steps, at = 0, node
    while not scratch.member[at]:
        steps += 1
        at = net.start[trees.route[current.chunk, at]]
    at = node
    for k in range(steps - 1, -1, -1):
        scratch.path[k] = at
        at = net.start[trees.route[current.chunk, at]]
    for k in range(steps):
        at = scratch.path[k]
        route = trees.route[current.chunk, at]
        busy = busy_ps(net, route, current.size_bytes)
        begin = earliest(net, table, route, busy, trees.at_ps[current.chunk, net.start[route]], np.inf)
        book(net, table, route, busy, begin, current.chunk)
        trees.start_ps[current.chunk, at], trees.at_ps[current.chunk, at] = begin, begin + busy + net.latency_ps[route]
        scratch.member[at], scratch.cost[at] = True, 0.0
    return steps


@inner
def insert_chunk(
    net: RouteNetwork,
    planned: PlannedChunks,
    table: Timetable,
    trees: InsertedTrees,
    scratch: InsertionScratch,
    chunk: int,
    weight: float,
    salt: int,
) -> bool:
    """Insert one chunk; return whether all destinations are reached.

    The node with the earliest arrival is added to the tree next; existing branches stay. `weight` times the total
    occupancy of the links on its path is added to the arrival, so that quick paths over many links are left to the
    chunks that need them.
    """
    first, after = planned.wanted_ptr[chunk], planned.wanted_ptr[chunk + 1]
    current = InsertedChunk(
        chunk, planned.size_bytes[chunk], weight, salt, int(planned.wanted[first]) if after - first == 1 else -1
    )
    for k in range(first, after):
        scratch.wanted[planned.wanted[k]] = True
    trees.at_ps[chunk, planned.source[chunk]] = planned.ready_ps[chunk]
    left = 0
    for node in range(len(scratch.member)):
        scratch.member[node] = trees.route[chunk, node] >= 0 or node == planned.source[chunk]
        if scratch.member[node]:
            scratch.wanted[node] = False
        elif scratch.wanted[node]:
            left += 1
    size = _relax_tree(net, table, trees, scratch, current)
    while left > 0 and size > 0:
        key, node = scratch.key[0], scratch.node[0]
        heap_pop(scratch.key, scratch.node, size)
        size -= 1
        if scratch.member[node] or key > trees.at_ps[chunk, node] + scratch.cost[node] + _remaining_ps(
            net, current, node
        ):
            continue
        route = trees.route[chunk, node]
        ready, busy = trees.at_ps[chunk, net.start[route]], busy_ps(net, route, current.size_bytes)
        if earliest(net, table, route, busy, ready, trees.start_ps[chunk, node] + 1.0) > trees.start_ps[chunk, node]:
            size = _relax_again(net, table, trees, scratch, size, current, node)
        elif not scratch.wanted[node]:
            size = _relax_node(net, table, trees, scratch, size, current, node)
        elif not _is_connected(net, trees, scratch, chunk, node):
            size = _relax_tree(net, table, trees, scratch, current)
        else:
            for k in range(_book_path(net, table, trees, scratch, current, node)):
                added = scratch.path[k]
                if scratch.wanted[added]:
                    scratch.wanted[added] = False
                    left -= 1
                size = _relax_node(net, table, trees, scratch, size, current, added)
    for node in range(len(scratch.member)):
        scratch.wanted[node] = False
        if not scratch.member[node]:
            trees.route[chunk, node] = -1
    return left == 0


@inner
def remove_chunk(net: RouteNetwork, table: Timetable, trees: InsertedTrees, chunk: int) -> None:
    """Remove a chunk with all its branches."""
    for node in range(trees.route.shape[1]):
        if trees.route[chunk, node] >= 0:
            release(net, table, trees.route[chunk, node], trees.start_ps[chunk, node])
            trees.route[chunk, node] = -1


@maker
def remove_branches(
    net: RouteNetwork, table: Timetable, trees: InsertedTrees, chunk: int, share: float, random: np.random.Generator
) -> None:
    """Remove each branch of a chunk's tree with probability `share`, and all branches that it feeds."""
    gone = np.zeros(trees.route.shape[1], dtype=np.bool_)
    for node in np.argsort(trees.at_ps[chunk], kind="mergesort"):  # each branch after the one that feeds it
        route = trees.route[chunk, node]
        if route >= 0 and (gone[net.start[route]] or random.random() < share):
            gone[node] = True
            release(net, table, route, trees.start_ps[chunk, node])
            trees.route[chunk, node] = -1


@inner
def restore_chunk(
    net: RouteNetwork,
    planned: PlannedChunks,
    table: Timetable,
    trees: InsertedTrees,
    chunk: int,
    route: I32,
    start_ps: I64,
    at_ps: I64,
) -> None:
    """Insert a chunk as it was before."""
    for node in range(len(route)):
        trees.route[chunk, node], trees.start_ps[chunk, node] = route[node], start_ps[node]
        trees.at_ps[chunk, node] = at_ps[node]
        if route[node] >= 0:
            busy = busy_ps(net, route[node], planned.size_bytes[chunk])
            book(net, table, route[node], busy, start_ps[node], chunk)
