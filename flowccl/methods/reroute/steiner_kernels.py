"""Compiled loops of the reroute method: Steiner trees that balance the load of the links."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I32, I64, Bool, compiled, exponential, grown, heap_pop, heap_push, maker
from flowccl.schedule.generation.chunk_trees import ChunkTrees


class RoutingGraph(NamedTuple):
    """The machine: the links that leave each node, their ends, and which nodes store and copy."""

    out_ptr: I64
    out_link: I32
    link_src: I32
    link_dst: I32
    link_GBps: F64
    busy: F64  # time that a chunk occupies the link: the part of its price that grows with its load
    latency: F64
    stores: Bool
    copies: Bool


class SteinerScratch(NamedTuple):
    """Work space for growing one tree."""

    far: F64  # of each node: cost of reaching it from the tree
    depth: F64  # of each node in the tree: cost of reaching it from the source
    via: I64  # link by which a node is reached
    member: Bool  # in the tree, and able to feed further links
    wanted: Bool
    feeder: I64  # of each node in the tree: the hop that feeds it
    queue_key: F64
    queue_node: I64
    path: I64


@maker
def new_scratch(nodes: int, links: int) -> SteinerScratch:
    """New work space."""
    space = 4 * links + 4 * nodes + 16
    return SteinerScratch(
        np.empty(nodes),
        np.empty(nodes),
        np.empty(nodes, dtype=np.int64),
        np.zeros(nodes, dtype=np.bool_),
        np.zeros(nodes, dtype=np.bool_),
        np.empty(nodes, dtype=np.int64),
        np.empty(space),
        np.empty(space, dtype=np.int64),
        np.empty(nodes, dtype=np.int64),
    )


@maker
def _relax(graph: RoutingGraph, length: F64, scratch: SteinerScratch, size: int, node: int) -> int:
    """Relax the links that leave a node; return the size of the queue."""
    for k in range(graph.out_ptr[node], graph.out_ptr[node + 1]):
        link = graph.out_link[k]
        end = graph.link_dst[link]
        far = scratch.far[node] + length[link]
        if not scratch.member[end] and far < scratch.far[end] and size < len(scratch.queue_key):
            scratch.far[end] = far
            scratch.via[end] = link
            heap_push(scratch.queue_key, scratch.queue_node, size, far, end)
            size += 1
    return size


@maker
def _graft(
    graph: RoutingGraph,
    scratch: SteinerScratch,
    node: int,
    depth_weight: float,
    link_out: I32,
    parent_out: I32,
    hops: int,
) -> int:
    """Add the path from the tree to a node: its hops, and its nodes as members. Return the number of hops."""
    steps = 0
    at = node
    while not scratch.member[at]:
        scratch.path[steps] = scratch.via[at]
        at = graph.link_src[scratch.via[at]]
        steps += 1
    feeder = scratch.feeder[at]
    depth = scratch.depth[at]
    for i in range(steps - 1, -1, -1):
        link = scratch.path[i]
        end = graph.link_dst[link]
        link_out[hops], parent_out[hops] = link, feeder
        feeder = hops
        depth += graph.busy[link] + graph.latency[link]
        hops += 1
        if graph.stores[end] or graph.copies[end]:
            scratch.member[end] = True
            scratch.feeder[end], scratch.depth[end], scratch.far[end] = feeder, depth, depth_weight * depth
    return hops


@maker
def grow_tree(
    graph: RoutingGraph,
    length: F64,
    source: int,
    wanted: I32,
    depth_weight: float,
    scratch: SteinerScratch,
    link_out: I32,
    parent_out: I32,
) -> int:
    """Grow a tree from the source to all wanted nodes; return its number of hops, or -1 if one is unreachable.

    The wanted node that is cheapest to reach is added next. `depth_weight` weighs the path from the source: 0 aims at
    a tree of least cost, 1 at shortest paths.
    """
    scratch.far[:] = np.inf
    scratch.member[:] = False
    for node in wanted:
        scratch.wanted[node] = True
    scratch.member[source] = True
    scratch.far[source], scratch.depth[source], scratch.feeder[source] = 0.0, 0.0, -1
    size = _relax(graph, length, scratch, 0, source)
    left, hops = len(wanted), 0
    while left > 0 and size > 0:
        key = scratch.queue_key[0]
        node = heap_pop(scratch.queue_key, scratch.queue_node, size)
        size -= 1
        if scratch.member[node] or key > scratch.far[node]:
            continue
        if not scratch.wanted[node]:
            size = _relax(graph, length, scratch, size, node)
            continue
        before = hops
        hops = _graft(graph, scratch, node, depth_weight, link_out, parent_out, hops)
        for hop in range(before, hops):
            end = graph.link_dst[link_out[hop]]
            if scratch.member[end]:
                if scratch.wanted[end]:
                    scratch.wanted[end] = False
                    left -= 1
                size = _relax(graph, length, scratch, size, end)
    for node in wanted:
        scratch.wanted[node] = False
    return hops if left == 0 else -1


@compiled
def rip_up_and_reroute(
    graph: RoutingGraph,
    source: I32,
    wanted_ptr: I64,
    wanted: I32,
    size: I64,
    order: I64,
    steepness: float,
    depth_weight: float,
    full_ps: float,
    load: F64,
    old: ChunkTrees,
) -> ChunkTrees:
    """One sweep: replace the tree of every chunk by the cheapest one, where the price of a link grows with its load.

    `load` is the time that each link is busy, in ps, and is updated. A link of load x costs
    latency + busy * exp(steepness * x / full). Return the new trees.
    """
    nodes, chunks = len(graph.stores), len(source)
    scratch = new_scratch(nodes, len(graph.link_src))
    length = graph.latency + graph.busy * exponential(steepness * load / full_ps)
    members = int((graph.stores | graph.copies).sum())
    space = members * (nodes - members + 1)  # of a tree: the path to every node may pass all plain switches
    link = np.empty(len(wanted) * 2 + space, dtype=np.int32)
    parent = np.empty(len(link), dtype=np.int32)
    first = np.zeros(chunks, dtype=np.int64)
    count = np.zeros(chunks, dtype=np.int64)
    used = 0
    for c in order:
        _put_load(graph, load, length, old.link[old.ptr[c] : old.ptr[c + 1]], -size[c], steepness, full_ps)
        while used + space > len(link):
            link, parent = grown(link), grown(parent)
        ends = wanted[wanted_ptr[c] : wanted_ptr[c + 1]]
        first[c] = used
        count[c] = max(grow_tree(graph, length, source[c], ends, depth_weight, scratch, link[used:], parent[used:]), 0)
        used += count[c]
        _put_load(graph, load, length, link[first[c] : used], size[c], steepness, full_ps)
    return _in_order(first, count, link, parent)


@maker
def _put_load(
    graph: RoutingGraph, load: F64, length: F64, links: I32, size: int, steepness: float, full_ps: float
) -> None:
    """Add a chunk of `size` bytes to the load of links, and update their prices."""
    for a in links:
        load[a] += size * 1000.0 / graph.link_GBps[a]
        length[a] = graph.latency[a] + graph.busy[a] * exponential(steepness * load[a] / full_ps)


@maker
def _in_order(first: I64, count: I64, link: I32, parent: I32) -> ChunkTrees:
    """The trees in the order of their chunks."""
    ptr = np.zeros(len(count) + 1, dtype=np.int64)
    ptr[1:] = np.cumsum(count)
    link_out, parent_out = np.empty(ptr[-1], dtype=np.int32), np.empty(ptr[-1], dtype=np.int32)
    for c in range(len(count)):
        link_out[ptr[c] : ptr[c + 1]] = link[first[c] : first[c] + count[c]]
        parent_out[ptr[c] : ptr[c + 1]] = parent[first[c] : first[c] + count[c]]
    return ChunkTrees(ptr, link_out, parent_out)
