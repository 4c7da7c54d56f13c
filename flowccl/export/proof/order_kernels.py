"""The compiled part of the proof that looks at orders: topological orders, and which step happens before which.

In a graph of precedence, the nodes `before[ptr[n]:ptr[n + 1]]` must be complete before node n is.
"""

import numpy as np

from flowccl.compiled import I32, I64, Bool, compiled, inner


@compiled
def topological(ptr: I64, before: I64) -> tuple[I64, I64]:
    """Return the nodes in a topological order, and how many nodes each one of the others waits for."""
    count = len(ptr) - 1
    waits = np.empty(count, dtype=np.int64)
    start = np.zeros(count + 1, dtype=np.int64)
    for node in range(count):
        waits[node] = ptr[node + 1] - ptr[node]
        for k in range(ptr[node], ptr[node + 1]):
            start[before[k] + 1] += 1
    for node in range(count):
        start[node + 1] += start[node]
    after, place = np.empty(len(before), dtype=np.int64), start.copy()
    for node in range(count):
        for k in range(ptr[node], ptr[node + 1]):
            after[place[before[k]]] = node
            place[before[k]] += 1
    ready, size = np.empty(count, dtype=np.int64), 0
    for node in range(count):
        if waits[node] == 0:
            ready[size] = node
            size += 1
    done = 0
    while done < size:
        node = ready[done]
        done += 1
        for k in range(start[node], start[node + 1]):
            waits[after[k]] -= 1
            if waits[after[k]] == 0:
                ready[size] = after[k]
                size += 1
    return ready[:size], waits


@compiled
def all_before(order: I64, ptr: I64, before: I64, moves_nothing: Bool) -> Bool:
    """Return the nodes that move nothing, and before which only such nodes are."""
    result = moves_nothing.copy()
    for node in order:
        for k in range(ptr[node], ptr[node + 1]):
            result[node] &= result[before[k]]
    return result


@compiled
def ranks_around(order: I64, ptr: I64, before: I64, rank: I64, ranks: int) -> tuple[I64, I64]:
    """Return, as bits, the ranks with a step before each step, and those with a step after it, itself included."""
    words = (ranks + 63) // 64
    entered, left = np.zeros((len(rank), words), dtype=np.int64), np.zeros((len(rank), words), dtype=np.int64)
    for n in range(len(rank)):
        entered[n, rank[n] >> 6] |= np.int64(1) << (rank[n] & 63)
        left[n, rank[n] >> 6] |= np.int64(1) << (rank[n] & 63)
    for n in order:
        for k in range(ptr[n], ptr[n + 1]):
            for w in range(words):
                entered[n, w] |= entered[before[k], w]
    for i in range(len(order) - 1, -1, -1):
        n = order[i]
        for k in range(ptr[n], ptr[n + 1]):
            for w in range(words):
                left[before[k], w] |= left[n, w]
    return entered, left


@compiled
def late_users(begin: I64, end: I64, user: I64, left: I64, rank: I64) -> I64:
    """Return the first of the users of each cell after which a rank has no step; -1 if there is none."""
    result = np.full(len(begin), -1, dtype=np.int64)
    for i in range(len(begin)):
        for k in range(begin[i], end[i]):
            if not left[user[k], rank[i] >> 6] >> (rank[i] & 63) & 1:
                result[i] = user[k]
                break
    return result


@inner
def _is_near(
    a: int, b: int, ptr: I64, before: I64, turn: I64, thread: I64, index: I64, seen: I64, stamp: I64, mark: int
) -> bool:
    """Whether a search backwards from b finds a, or a later step of its threadblock, before `seen` is full."""
    seen[0], stamp[b] = b, mark
    size, done = 1, 0
    while done < size:
        node = seen[done]
        done += 1
        for k in range(ptr[node], ptr[node + 1]):
            other = before[k]
            if thread[other] == thread[a] and index[other] >= index[a]:
                return True
            if stamp[other] != mark and size < len(seen) and turn[other] > turn[a]:
                stamp[other] = mark
                seen[size] = other
                size += 1
    return False


@compiled
def are_near(a: I64, b: I64, ptr: I64, before: I64, turn: I64, thread: I64, index: I64, most: int) -> Bool:
    """Return the pairs in which steps backwards from b lead to a, of which at most some are visited for each pair.

    `turn` is the position of each step in a topological order.
    """
    result = np.zeros(len(a), dtype=np.bool_)
    seen, stamp = np.empty(most, dtype=np.int64), np.full(len(thread), -1, dtype=np.int64)
    for i in range(len(a)):
        result[i] = _is_near(a[i], b[i], ptr, before, turn, thread, index, seen, stamp, i)
    return result


@compiled
def follow(order: I64, ptr: I64, before: I64, column: I64, index: I64, columns: int) -> I32:
    """Return for each step the last steps of some threadblocks before it; `column` has the numbers of these, or -1."""
    clock = np.full((len(index), columns), -1, dtype=np.int32)
    for n in order:
        for k in range(ptr[n], ptr[n + 1]):
            other = before[k]
            for c in range(columns):
                clock[n, c] = max(clock[n, c], clock[other, c])
        if column[n] >= 0:
            clock[n, column[n]] = index[n]
    return clock
