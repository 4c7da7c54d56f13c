"""Compiled loops of the routed method: trees that share the links evenly."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I32, I64, Bool, compiled, grown, heap_pop, heap_push


class Graph(NamedTuple):
    """The machine: links that leave each node, their ends, and what nodes can do."""

    out_ptr: I64
    out_link: I32
    link_src: I32
    link_dst: I32
    link_GBps: F64
    hold: F64  # time that a chunk holds the link: what gets dearer the fuller it is
    latency: F64
    stores: Bool
    copies: Bool


class Trees(NamedTuple):
    """A tree per chunk: hops `ptr[c]:ptr[c + 1]`, each a link and the hop that feeds it (-1 at the source)."""

    ptr: I64
    link: I32
    parent: I32


class Scratch(NamedTuple):
    """Work space for growing one tree."""

    far: F64  # of each node: cost of reaching it from the tree
    depth: F64  # of each node in the tree: cost of reaching it from the source
    via: I64  # link by which a node is reached
    member: Bool  # in the tree, and able to feed more links
    wanted: Bool
    feeder: I64  # of each node in the tree: the hop that feeds it
    queue_key: F64
    queue_node: I64
    path: I64


@compiled
def scratch(nodes: int, links: int) -> Scratch:
    """Fresh work space."""
    room = 4 * links + 4 * nodes + 16
    return Scratch(
        np.empty(nodes),
        np.empty(nodes),
        np.empty(nodes, dtype=np.int64),
        np.zeros(nodes, dtype=np.bool_),
        np.zeros(nodes, dtype=np.bool_),
        np.empty(nodes, dtype=np.int64),
        np.empty(room),
        np.empty(room, dtype=np.int64),
        np.empty(nodes, dtype=np.int64),
    )


@compiled
def _relax(graph: Graph, length: F64, work: Scratch, size: int, node: int) -> int:
    """Offer the links that leave a node; returns the size of the queue."""
    for k in range(graph.out_ptr[node], graph.out_ptr[node + 1]):
        link = graph.out_link[k]
        end = graph.link_dst[link]
        far = work.far[node] + length[link]
        if not work.member[end] and far < work.far[end] and size < len(work.queue_key):
            work.far[end] = far
            work.via[end] = link
            heap_push(work.queue_key, work.queue_node, size, far, end)
            size += 1
    return size


@compiled
def _graft(graph: Graph, work: Scratch, node: int, deep: float, link_out: I32, parent_out: I32, hops: int) -> int:
    """Add the way from the tree to a node: its hops, and its nodes as members. Returns the number of hops."""
    steps = 0
    at = node
    while not work.member[at]:
        work.path[steps] = work.via[at]
        at = graph.link_src[work.via[at]]
        steps += 1
    feeder = work.feeder[at]
    depth = work.depth[at]
    for i in range(steps - 1, -1, -1):
        link = work.path[i]
        end = graph.link_dst[link]
        link_out[hops], parent_out[hops] = link, feeder
        feeder = hops
        depth += graph.hold[link] + graph.latency[link]
        hops += 1
        if graph.stores[end] or graph.copies[end]:
            work.member[end] = True
            work.feeder[end], work.depth[end], work.far[end] = feeder, depth, deep * depth
    return hops


@compiled
def grow(
    graph: Graph,
    length: F64,
    source: int,
    wanted: I32,
    deep: float,
    work: Scratch,
    link_out: I32,
    parent_out: I32,
) -> int:
    """A tree from the source to all wanted nodes; returns its number of hops.

    Always the node that is cheapest to reach joins next. `deep` weighs the way from the source: 0 gives the tree with
    the least cost, 1 the shortest ways.
    """
    work.far[:] = np.inf
    work.member[:] = False
    for node in wanted:
        work.wanted[node] = True
    work.member[source] = True
    work.far[source], work.depth[source], work.feeder[source] = 0.0, 0.0, -1
    size = _relax(graph, length, work, 0, source)
    left, hops = len(wanted), 0
    while left > 0 and size > 0:
        key = work.queue_key[0]
        node = heap_pop(work.queue_key, work.queue_node, size)
        size -= 1
        if work.member[node] or key > work.far[node]:
            continue
        if not work.wanted[node]:
            size = _relax(graph, length, work, size, node)
            continue
        before = hops
        hops = _graft(graph, work, node, deep, link_out, parent_out, hops)
        for hop in range(before, hops):
            end = graph.link_dst[link_out[hop]]
            if work.member[end]:
                if work.wanted[end]:
                    work.wanted[end] = False
                    left -= 1
                size = _relax(graph, length, work, size, end)
    for node in wanted:
        work.wanted[node] = False
    return hops if left == 0 else -1


@compiled
def rip_up_and_reroute(
    graph: Graph,
    source: I32,
    wanted_ptr: I64,
    wanted: I32,
    size: I64,
    order: I64,
    steep: float,
    deep: float,
    full_ps: float,
    load: F64,
    old: Trees,
) -> Trees:
    """One sweep: every chunk gives up its tree and takes the cheapest, where a link costs more the fuller it is.

    `load` is the time that each link is busy, in ps, and is kept up to date. A link of load x costs
    latency + hold * exp(steep * x / full). Returns the new trees.
    """
    nodes, chunks = len(graph.stores), len(source)
    work = scratch(nodes, len(graph.link_src))
    length = graph.latency + graph.hold * np.exp(steep * load / full_ps)
    joins = int((graph.stores | graph.copies).sum())
    room = joins * (nodes - joins + 1)  # no tree has more hops: plain switches may be passed on the way to every node
    link = np.empty(len(wanted) * 2 + room, dtype=np.int32)
    parent = np.empty(len(link), dtype=np.int32)
    first = np.zeros(chunks, dtype=np.int64)
    count = np.zeros(chunks, dtype=np.int64)
    used = 0
    for c in order:
        _put_load(graph, load, length, old.link[old.ptr[c] : old.ptr[c + 1]], -size[c], steep, full_ps)
        while used + room > len(link):
            link, parent = grown(link), grown(parent)
        ends = wanted[wanted_ptr[c] : wanted_ptr[c + 1]]
        first[c] = used
        count[c] = max(grow(graph, length, source[c], ends, deep, work, link[used:], parent[used:]), 0)
        used += count[c]
        _put_load(graph, load, length, link[first[c] : used], size[c], steep, full_ps)
    return _in_order(first, count, link, parent)


@compiled
def _put_load(graph: Graph, load: F64, length: F64, links: I32, size: int, steep: float, full_ps: float) -> None:
    """Add a chunk of so many bytes to the load of links, and say what they cost now."""
    for a in links:
        load[a] += size * 1000.0 / graph.link_GBps[a]
        length[a] = graph.latency[a] + graph.hold[a] * np.exp(steep * load[a] / full_ps)


@compiled
def _in_order(first: I64, count: I64, link: I32, parent: I32) -> Trees:
    """Trees in the order of their chunks, from where they were grown."""
    ptr = np.zeros(len(count) + 1, dtype=np.int64)
    ptr[1:] = np.cumsum(count)
    link_out, parent_out = np.empty(ptr[-1], dtype=np.int32), np.empty(ptr[-1], dtype=np.int32)
    for c in range(len(count)):
        link_out[ptr[c] : ptr[c + 1]] = link[first[c] : first[c] + count[c]]
        parent_out[ptr[c] : ptr[c + 1]] = parent[first[c] : first[c] + count[c]]
    return Trees(ptr, link_out, parent_out)
