"""Compiled loops of tree packing: maximum flows, splitting off switches, growing trees.

Networks are square matrices: `capacity[a, b]` is how many chunks may go from node a to node b. All chunks must be able
to reach every member: a flow of all chunks from an extra node, the last one, which feeds each member with the chunks
that start there. By Edmonds' theorem, trees pack exactly if such a flow exists to every member.
"""

import numpy as np

from flowccl.compiled import I64, Bool, compiled, maker

_PARTS = 4  # parts in which the trees of each root are grown, in turn with those of the other roots


@maker
def push(capacity: I64, flow: I64, source: int, sink: int, most: int) -> int:
    """Augment a flow from source to sink by up to `most` units along shortest paths; return the amount."""
    count = len(capacity)
    before, queue = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    done = 0
    while done < most:
        before[:] = -1
        before[source], queue[0], head, tail = source, source, 0, 1
        while head < tail and before[sink] < 0:
            a = queue[head]
            head += 1
            for b in range(count):
                if before[b] < 0 and capacity[a, b] - flow[a, b] + flow[b, a] > 0:
                    before[b] = a
                    queue[tail] = b
                    tail += 1
        if before[sink] < 0:
            break
        amount, b = most - done, sink
        while b != source:
            a = before[b]
            amount = min(amount, capacity[a, b] - flow[a, b] + flow[b, a])
            b = a
        b = sink
        while b != source:
            _add(flow, before[b], b, amount)
            b = before[b]
        done += amount
    return done


@maker
def _add(flow: I64, a: int, b: int, amount: int) -> None:
    back = min(amount, flow[b, a])
    flow[b, a] -= back
    flow[a, b] += amount - back


@maker
def _take(rest: I64, taken: I64, size: int, a: int, b: int, amount: int) -> int:
    """Send an amount from a to b, and write that down; returns the number of entries in `taken`."""
    rest[b, a] -= amount
    rest[a, b] += amount
    taken[size] = a, b, amount
    return size + 1


@maker
def _flow_into(rest: I64, source: int, sink: int, most: int) -> int:
    """The maximum flow from source to sink, up to `most`: `rest[b, a]` may go from a to b. Leaves `rest` as it was.

    Most paths have two hops, since roots send directly. The others are searched from the sink, with few nodes around.
    """
    count = len(rest)
    after, queue = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    taken, size, done = np.empty((8 * count, 3), dtype=np.int64), 0, 0  # what each hop of a path took
    for a in range(count):
        amount = min(rest[sink, a], rest[a, source], most - done)
        if amount > 0:
            size = _take(rest, taken, size, source, a, amount)
            size = _take(rest, taken, size, a, sink, amount)
            done += amount
    while done < most:
        after[:] = -1
        after[sink], queue[0], head, tail = sink, sink, 0, 1
        while head < tail and after[source] < 0:
            b = queue[head]
            head += 1
            if rest[b, source] > 0:
                after[source] = b
                break
            for a in range(count):
                if rest[b, a] > 0 and after[a] < 0:
                    after[a] = b
                    queue[tail] = a
                    tail += 1
        if after[source] < 0:
            break
        amount, a = most - done, source
        while a != sink:
            amount = min(amount, rest[after[a], a])
            a = after[a]
        if size + count > len(taken):
            taken = np.concatenate((taken, np.empty_like(taken)))
        a = source
        while a != sink:
            size = _take(rest, taken, size, a, after[a], amount)
            a = after[a]
        done += amount
    for i in range(size):
        a, b, amount = taken[i]
        rest[b, a] += amount
        rest[a, b] -= amount
    return done


@compiled
def all_reached(capacity: I64, members: I64, total: int) -> bool:
    """Whether all chunks can reach every member."""
    into, source = capacity.T.copy(), len(capacity) - 1
    reached = True
    for sink in members:
        reached = reached and _flow_into(into, source, sink, total) == total
    return reached


@compiled
def split_off(capacity: I64, members: I64, total: int, removed: I64) -> tuple[bool, I64]:
    """Split off nodes: capacity from u to w and from w to t becomes capacity from u to t, for all w in `removed`.

    Each pair is split as far as all members stay reachable; the rest at w is dropped. Changes `capacity`. Returns
    (whether all members are still reached, rows (u, w, t, amount) in the order of splitting).
    """
    count, source = len(capacity), len(capacity) - 1
    flows = np.zeros((len(members), count, count), dtype=np.int64)
    rows, size = np.empty((1024, 4), dtype=np.int64), 0
    for i in range(len(members)):
        if push(capacity, flows[i], source, members[i], total) < total:
            return False, rows[:0]
    for w in removed:
        into, out = capacity[:, w].copy(), capacity[w].copy()
        others = max(out.sum() - out.max(), 1)
        for sweep in range(2):  # first an even share of each pair, for shallow trees; then all that is left
            for t in range(count):
                for u in range(count):
                    most = min(capacity[u, w], capacity[w, t])
                    if sweep == 0:
                        most = min(most, -(-into[u] * out[t] // others))
                    if most == 0 or u == t:
                        continue
                    amount = _split(capacity, flows, members, u, w, t, most)
                    if amount:
                        if size == len(rows):
                            rows = np.concatenate((rows, np.empty_like(rows)))
                        rows[size] = u, w, t, amount
                        size += 1
        capacity[w, :] = 0
        capacity[:, w] = 0
        for i in range(len(members)):  # the dropped capacity must not be needed
            if flows[i][w].any():
                flows[i][:] = 0
                if push(capacity, flows[i], source, members[i], total) < total:
                    return False, rows[:size]
    return True, rows[:size]


@maker
def _split(capacity: I64, flows: I64, members: I64, u: int, w: int, t: int, most: int) -> int:
    """Split one pair of arcs as far as all flows persist; the amount that a flow lacks after a trial is undone."""
    source, amount = len(capacity) - 1, most
    lacking = np.zeros(len(members), dtype=np.int64)
    _move(capacity, u, w, t, amount)
    for i in range(len(members)):
        flow, sink = flows[i], members[i]
        over_in, over_out = max(flow[u, w] - capacity[u, w], 0), max(flow[w, t] - capacity[w, t], 0)
        if over_in == 0 and over_out == 0:
            continue
        both = min(over_in, over_out)
        flow[u, w] -= over_in
        flow[w, t] -= over_out
        _add(flow, u, t, both)
        a, b, over = (u, w, over_in - both) if over_in > both else (w, t, over_out - both)
        short = over - push(capacity, flow, a, b, over)
        if short:
            push(capacity, flow, a, source, short)
            push(capacity, flow, sink, b, short)
            lacking[i] = short
            amount -= short
            _move(capacity, u, w, t, -short)
    if amount < most:
        for i in range(len(members)):
            over = flows[i][u, t] - capacity[u, t]
            if over > 0:
                flows[i][u, t] -= over
                flows[i][u, w] += over
                flows[i][w, t] += over
            if lacking[i]:
                push(capacity, flows[i], source, members[i], lacking[i])
    return amount


@maker
def _move(capacity: I64, u: int, w: int, t: int, amount: int) -> None:
    capacity[u, w] -= amount
    capacity[w, t] -= amount
    capacity[u, t] += amount


@compiled
def pack(capacity: I64, roots: I64) -> tuple[bool, I64, I64, I64]:
    """Pack trees from every node to all others, `roots[v]` from node v, within the capacities; changes `capacity`.

    Returns (done, root of each tree, number of equal trees, edges (a, b) of each tree in the order of growth).
    """
    count = len(capacity)
    left, into = roots.copy(), np.zeros((count + 2, count + 2), dtype=np.int64)
    into[:count, :count] = capacity.T
    tree_root, tree_times = np.empty(64, dtype=np.int64), np.empty(64, dtype=np.int64)
    tree_edges = np.empty((64, count - 1, 2), dtype=np.int64)
    trees = 0
    while left.any():  # part of the trees of each root in turn, so that all find shallow edges
        for root in range(count):
            if left[root] == 0:
                continue
            if trees == len(tree_root):
                tree_root = np.concatenate((tree_root, np.empty_like(tree_root)))
                tree_times = np.concatenate((tree_times, np.empty_like(tree_times)))
                tree_edges = np.concatenate((tree_edges, np.empty_like(tree_edges)))
            times = _grow(capacity, into, left, root, -(-roots[root] // _PARTS), tree_edges[trees])
            if times == 0:
                return False, tree_root[:trees], tree_times[:trees], tree_edges[:trees]
            tree_root[trees], tree_times[trees] = root, times
            trees += 1
    return True, tree_root[:trees], tree_times[:trees], tree_edges[:trees]


@maker
def _grow(capacity: I64, into: I64, left: I64, root: int, most: int, edges: I64) -> int:
    """Grow one tree, as often as its edges allow, by shallow edges first. Takes its capacity and roots; 0 if stuck.

    Copies that an edge cannot carry are returned to the root: the rest stays packable. `into[b, a]` is
    `capacity[a, b]`, with room for two more nodes.
    """
    count, times = len(capacity), min(left[root], most)
    left[root] -= times
    depth, full = np.full(count, -1, dtype=np.int64), np.zeros((count, count), dtype=np.bool_)
    depth[root] = 0
    for at in range(count - 1):
        a, b, taken = _next_edge(capacity, into, left, depth, times, full)
        if taken < times:  # return the other copies
            left[root] += times - taken
            for i in range(at):
                _change(capacity, into, edges[i, 0], edges[i, 1], times - taken)
            full[:] = False
            times = taken
        if not times:
            return 0
        _change(capacity, into, a, b, -times)
        depth[b] = depth[a] + 1
        edges[at] = a, b
    return int(times)


@maker
def _change(capacity: I64, into: I64, a: int, b: int, amount: int) -> None:
    capacity[a, b] += amount
    into[b, a] += amount


@maker
def _next_edge(capacity: I64, into: I64, left: I64, depth: I64, times: int, full: Bool) -> tuple[int, int, int]:
    """Of the shallowest edges that may be taken, the one with most capacity, and for how many copies.

    `full` marks the edges that may not be taken.
    """
    count = len(capacity)
    d = 0
    while d <= depth.max():
        a, b, most = 0, 0, 0
        for x in range(count):
            if depth[x] != d:
                continue
            for y in range(count):
                if depth[y] < 0 and capacity[x, y] > most and not full[x, y]:
                    a, b, most = x, y, capacity[x, y]
        if most == 0:
            d += 1
            continue
        taken = _allowed(into, left, depth, times, a, b)
        if taken:
            return a, b, taken
        full[a, b] = True
    return 0, 0, 0


@maker
def _allowed(into: I64, left: I64, depth: I64, times: int, a: int, b: int) -> int:
    """How many copies of a growing tree may take the edge from a to b, such that all sets with b stay reachable."""
    count, amount = len(left), min(times, into[b, a])
    tree, source = count, count + 1  # the two more nodes: what the tree has, and what is left at the roots
    for v in range(count):
        into[v, source] = left[v]
        into[v, tree] = times - amount if depth[v] >= 0 else 0
    into[tree, source] = times - amount
    need = left.sum() + times - amount
    into[b, a] -= amount
    short = need - _flow_into(into, source, b, need)
    into[b, a] += amount
    return int(amount - short)
