"""A tree of the fastest routes along which GPU 0's data spreads: for runtimes, where each message has its cost.

Every GPU hears from the GPU to which it has the fastest route, of those the one that is nearest to GPU 0. With rails,
GPU 0 sends to one GPU of each host, which sends to the others of its host. Reductions run backwards along the tree, so
that what a host has is reduced in one operation.
"""

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER
from flowccl.methods.symmetric.one_source import OneSource
from flowccl.methods.symmetric.routes import SourceRoutes
from flowccl.methods.symmetric.spread_kernels import RouteKinds

I64 = NDArray[np.int64]


def tree_one(source_routes: SourceRoutes, kinds: RouteKinds, pieces: int, most: int) -> OneSource:
    """Return the data of GPU 0 spread along the tree, one piece after the other.

    A GPU sends to at most `most` others over equally fast routes, one after the other. Where they are few, a reduction
    has more stages, and no GPU reduces much into one chunk.
    """
    count = len(source_routes.group)
    busy = kinds.busy[kinds.route_kind]
    best = np.lexsort((np.arange(len(busy)), busy, source_routes.end))  # the fastest route to each GPU
    ends, first = np.unique(source_routes.end[best], return_index=True)
    route, takes = np.full(count, -1), np.full(count, NEVER)
    route[ends], takes[ends] = best[first], busy[best[first]]
    parent, order = _tree(source_routes, takes, most)
    by = source_routes.group.difference(np.arange(count), parent)
    arrive = kinds.arrive[kinds.route_kind]
    ready, start, sent = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64), dict[tuple[int, int], int]()
    for node in order:
        w, key = route[by[node]], (int(parent[node]), int(takes[by[node]]))
        start[node] = max(int(ready[parent[node]]), sent.get(key, 0))
        sent[key] = int(start[node] + busy[w])
        ready[node] = start[node] + arrive[w]
    to = np.array(order, dtype=np.int64)
    span, piece = int(ready.max()), np.repeat(np.arange(pieces, dtype=np.int32), len(to))
    for_all, root, over = (
        np.tile(column, pieces).astype(np.int32) for column in (np.full(len(to), -1), parent[to], route[by[to]])
    )
    begin = np.tile(start[to], pieces) + piece.astype(np.int64) * span
    return OneSource(source_routes, piece, for_all, root, over, begin, pieces * span)


def _tree(source_routes: SourceRoutes, takes: I64, most: int) -> tuple[I64, list[int]]:
    """The GPU from which each GPU hears, and the GPUs in the order in which they were added; `takes` is by element.

    A GPU sends to at most `most` others over equally fast routes, unless there is no other way.
    """
    group, count = source_routes.group, len(source_routes.group)
    every, parent, depth = np.arange(count), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    _, kind = np.unique(takes, return_inverse=True)
    sent, rank, order = np.zeros((count, int(kind.max()) + 1), dtype=np.int64), kind.copy(), list[int]()
    added, far = every == 0, count * (int(kind.max()) + 2)

    def ranked(nodes: I64, senders: I64) -> I64:
        """How good it is to hear from each sender: the fastest route, then the nearest to GPU 0."""
        by = kind[group.difference(nodes[:, None], senders[None, :])]
        full = sent[senders[None, :], by] >= most
        return np.asarray(by * count + depth[senders][None, :] + far * full)

    rank = ranked(every, every[:1])[:, 0]
    for _ in range(count - 1):
        left = np.flatnonzero(~added)
        node = int(left[np.argmin(rank[left])])
        sender = int(parent[node])
        added[node], depth[node] = True, depth[sender] + 1
        order.append(node)
        by = kind[group.difference(np.array(node), parent[node])]
        sent[sender, by] += 1
        there = ranked(every, np.array([node]))[:, 0]
        nearer = ~added & (there < rank)
        parent[nearer], rank[nearer] = node, there[nearer]
        if sent[sender, by] == most:  # others take over what it would send
            lost, known = np.flatnonzero(~added & (parent == sender)), np.flatnonzero(added)
            again = ranked(lost, known)
            parent[lost], rank[lost] = known[np.argmin(again, axis=1)], again.min(axis=1, initial=2 * far)
    return parent, order
