"""Compiled loops of column generation: cheapest routes between GPUs, cheapest trees, chunks moved between columns."""

import numpy as np

from flowccl.compiled import F64, I32, I64, Bool, compiled, maker


@compiled
def cheapest_routes(ptr: I64, out: I32, head: I32, price: F64, relays: Bool, count: int) -> tuple[F64, I64]:
    """Return the least price from each of `count` GPUs to every node, and the last link of a cheapest path there.

    Paths pass only nodes that are `relays`. Equal prices are decided by the order of the nodes and links.
    """
    nodes = len(ptr) - 1
    least, last = np.full((count, nodes), np.inf), np.full((count, nodes), -1, dtype=np.int64)
    for source in range(count):
        done = np.zeros(nodes, dtype=np.bool_)
        cost = least[source]
        cost[source] = 0.0
        for _ in range(nodes):
            node, best = -1, np.inf
            for other in range(nodes):
                if not done[other] and cost[other] < best:
                    node, best = other, cost[other]
            if node < 0:
                break
            done[node] = True
            if node != source and not relays[node]:
                continue
            for k in range(ptr[node], ptr[node + 1]):
                end = head[out[k]]
                if best + price[out[k]] < cost[end]:
                    cost[end] = best + price[out[k]]
                    last[source, end] = out[k]
    return least, last


@compiled
def cheapest_trees(price: F64, roots: I64, tolerance: float) -> I64:
    """Return for each root the parents of a cheapest spanning tree for prices between all pairs (Chu, Liu, Edmonds).

    Of edges whose prices differ by at most the tolerance, those of a shallow tree are taken.
    """
    parents = np.empty((len(roots), len(price)), dtype=np.int64)
    for i in range(len(roots)):
        parents[i] = _cheapest_tree(price, roots[i])
        _flatten(price, parents[i], roots[i], tolerance)
    return parents


@maker
def _flatten(price: F64, parent: I64, root: int, tolerance: float) -> None:
    """Move nodes below parents that are nearer to the root, where that costs at most the tolerance."""
    count = len(parent)
    depth = np.zeros(count, dtype=np.int64)
    for node in range(count):
        above = node
        while above != root:
            above = parent[above]
            depth[node] += 1
    for node in np.argsort(depth):
        if node == root:
            continue
        best, most = parent[node], price[parent[node], node] + tolerance
        for other in range(count):
            if other != node and depth[other] < depth[best] and price[other, node] <= most:
                best = other
        parent[node] = best
        depth[node] = depth[best] + 1


@maker
def _cheapest_tree(price: F64, root: int) -> I64:
    """Return the parents of a cheapest spanning tree: contract cycles of cheapest entering edges, then expand them."""
    count = len(price)
    most = 2 * count
    cost = np.full((most, most), np.inf)
    start, end = np.zeros((most, most), dtype=np.int64), np.zeros((most, most), dtype=np.int64)  # the edge behind
    for a in range(count):
        for b in range(count):
            if a != b:
                cost[a, b], start[a, b], end[a, b] = price[a, b], a, b
    alive, inside = np.zeros(most, dtype=np.bool_), np.full(most, -1, dtype=np.int64)
    alive[:count] = True
    before = np.full(most, -1, dtype=np.int64)
    chosen_start, chosen_end = np.zeros(most, dtype=np.int64), np.zeros(most, dtype=np.int64)
    size = count
    mark = np.full(most, -1, dtype=np.int64)
    pending = True
    while pending:
        pending = False
        for node in range(size):
            if not alive[node] or node == root or before[node] >= 0:
                continue
            best = np.inf
            for other in range(size):
                if alive[other] and other != node and cost[other, node] < best:
                    best = cost[other, node]
                    before[node] = other
            chosen_start[node], chosen_end[node] = start[before[node], node], end[before[node], node]
        mark[:] = -1
        for first in range(size):
            if not alive[first] or first == root:
                continue
            node = first
            while node != root and mark[node] < 0:
                mark[node] = first
                node = before[node]
            if node != root and mark[node] == first:
                _contract(cost, start, end, alive, inside, before, node, size)
                size += 1
                pending = True
                break
    for node in range(
        size - 1, count - 1, -1
    ):  # an edge enters a contracted node at one of its members: break it there
        member = chosen_end[node]
        while inside[member] != node:
            member = inside[member]
        chosen_start[member], chosen_end[member] = chosen_start[node], chosen_end[node]
    parent = np.full(count, -1, dtype=np.int64)
    for node in range(count):
        if node != root:
            parent[node] = chosen_start[node]
    return parent


@maker
def _contract(cost: F64, start: I64, end: I64, alive: Bool, inside: I64, before: I64, member: int, new: int) -> None:
    """Replace a cycle through `member` by the node `new`."""
    node = member
    while True:
        inside[node], alive[node] = new, False
        node = before[node]
        if node == member:
            break
    for other in range(new):
        if not alive[other]:
            continue
        node = member
        while True:
            into = cost[other, node] - cost[before[node], node]
            if into < cost[other, new]:
                cost[other, new], start[other, new], end[other, new] = into, start[other, node], end[other, node]
            if cost[node, other] < cost[new, other]:
                cost[new, other], start[new, other], end[new, other] = (
                    cost[node, other],
                    start[node, other],
                    end[node, other],
                )
            node = before[node]
            if node == member:
                break
        if before[other] >= 0 and inside[before[other]] == new:
            before[other] = new
    alive[new] = True


@compiled
def shallow_trees(price: F64, roots: I64, step: float) -> I64:
    """Return for each root the parents of a tree that grows by its cheapest edge, where depth costs `step` a level."""
    count = len(price)
    parents = np.full((len(roots), count), -1, dtype=np.int64)
    for i in range(len(roots)):
        root = roots[i]
        near, depth = np.full(count, np.inf), np.zeros(count, dtype=np.int64)
        parent, done = parents[i], np.zeros(count, dtype=np.bool_)
        last = root
        done[root] = True
        for _ in range(count - 1):
            for node in range(count):
                cost = price[last, node] + step * (depth[last] + 1)
                if not done[node] and cost < near[node]:
                    near[node], parent[node] = cost, last
            last, best = -1, np.inf
            for node in range(count):
                if not done[node] and near[node] < best:
                    last, best = node, near[node]
            done[last] = True
            depth[last] = depth[parent[last]] + 1
    return parents


@compiled
def tree_loads(parents: I64, roots: I64, last: I64, tail: I32, links: int) -> tuple[F64, I64]:
    """Return how often each tree uses each link, and its depth; `last` has the last link of each route between GPUs."""
    trees, count = parents.shape
    loads, depth = np.zeros((trees, links)), np.zeros(trees, dtype=np.int64)
    for i in range(trees):
        for node in range(count):
            if node == roots[i]:
                continue
            above, end = parents[i, node], node
            while end != above:
                loads[i, last[above, end]] += 1
                end = tail[last[above, end]]
            level = 1
            while above != roots[i]:
                above = parents[i, above]
                level += 1
            depth[i] = max(depth[i], level)
    return loads, depth


@compiled
def longest_path(parent: I64, root: int, last: I64, tail: I32, takes: F64, latency: F64) -> float:
    """Return the longest path of a tree from its root: a route takes its slowest link and the latency of all."""
    count, longest = len(parent), 0.0
    route, end = np.zeros(count), np.full(count, -1.0)
    end[root] = 0.0
    for node in range(count):
        if node != root:
            at, slowest, sum_of_latencies = node, 0.0, 0.0
            while at != parent[node]:
                slowest = max(slowest, takes[last[parent[node], at]])
                sum_of_latencies += latency[last[parent[node], at]]
                at = tail[last[parent[node], at]]
            route[node] = slowest + sum_of_latencies
    for node in range(count):
        at, more = node, 0.0
        while end[at] < 0:
            more += route[at]
            at = parent[at]
        end[node] = end[at] + more
        longest = max(longest, end[node])
    return longest


@compiled
def balance(
    choice: I64,
    size: F64,
    group: I64,
    group_ptr: I64,
    group_column: I64,
    ptr: I64,
    resource: I64,
    amount: F64,
    capacity: F64,
    order: I64,
    sweeps: int,
) -> F64:
    """Move chunks between the columns of their groups while that lowers the 16th power of the loads; return the loads.

    `choice` is the column of each chunk, and is changed. Loads are bytes over capacity.
    """
    load = np.zeros(len(capacity))
    for i in range(len(choice)):
        _put(load, ptr, resource, amount, capacity, choice[i], size[i])
    for _ in range(sweeps):
        moved = False
        top = max(load.max(), 1e-300)
        for i in order:
            first, last = group_ptr[group[i]], group_ptr[group[i] + 1]
            if last - first < 2:
                continue
            _put(load, ptr, resource, amount, capacity, choice[i], -size[i])
            best, least = choice[i], _rise(load, ptr, resource, amount, capacity, choice[i], size[i], top) * (1 - 1e-9)
            for k in range(first, last):
                if group_column[k] != choice[i]:
                    rise = _rise(load, ptr, resource, amount, capacity, group_column[k], size[i], top)
                    if rise < least:
                        best, least = group_column[k], rise
            moved = moved or best != choice[i]
            choice[i] = best
            _put(load, ptr, resource, amount, capacity, best, size[i])
        if not moved:
            break
    return load


@maker
def _put(load: F64, ptr: I64, resource: I64, amount: F64, capacity: F64, column: int, size: float) -> None:
    for k in range(ptr[column], ptr[column + 1]):
        load[resource[k]] += size * amount[k] / capacity[resource[k]]


@maker
def _rise(
    load: F64, ptr: I64, resource: I64, amount: F64, capacity: F64, column: int, size: float, top: float
) -> float:
    rise = 0.0
    for k in range(ptr[column], ptr[column + 1]):
        now = load[resource[k]] / top
        then = now + size * amount[k] / capacity[resource[k]] / top
        a, b = now * now, then * then
        a, b = a * a, b * b
        a, b = a * a, b * b
        rise += b * b - a * a
    return rise
