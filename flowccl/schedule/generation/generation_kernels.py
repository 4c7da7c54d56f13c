"""Compiled loops of schedule generation. A module of its own, because importing numba takes half a second."""

import numpy as np

from flowccl.compiled import I32, I64, compiled, heap_pop, heap_push


@compiled
def earliest_starts(
    order: I64,
    ptr: I64,
    before: I64,
    lag: I64,
    latest: I64,
    soonest: I64,
) -> I64:
    """Return the least starts >= `soonest` with start[i] >= start[before] + lag for all predecessors of i.

    No start exceeds `latest`. Sweeps in `order` until nothing changes: one sweep if predecessors come first, more if
    there are negative lags.
    """
    start = np.minimum(soonest, latest)
    changed = True
    while changed:
        changed = False
        for i in order:
            value = start[i]
            for k in range(ptr[i], ptr[i + 1]):
                value = max(value, start[before[k]] + lag[k])
            value = min(value, latest[i])
            if value > start[i]:
                start[i] = value
                changed = True
    return start


@compiled
def longest_tails(
    order: I64,
    ptr: I64,
    after: I64,
    lag: I64,
    takes: I64,
) -> I64:
    """Return the tail of each transfer: the time from its start to the end of its last successor.

    `order` lists successors first.
    """
    tail = takes.copy()
    for i in order:
        for k in range(ptr[i], ptr[i + 1]):
            tail[i] = max(tail[i], lag[k] + tail[after[k]])
    return tail


@compiled
def in_order_of(
    rank: I64,
    ptr: I64,
    after: I64,
    lag: I64,
    soonest: I64,
    hop_ptr: I64,
    hop_link: I32,
    hop_from: I64,
    hop_to: I64,
    links: int,
) -> tuple[bool, I64]:
    """List scheduling: of the transfers that wait for free links, the one with the least rank starts first.

    `after[ptr[i]:ptr[i + 1]]` start no earlier than `lag` after transfer i. Hops occupy their links from `hop_from` to
    `hop_to` after the start. Returns (whether all transfers started, starts).
    """
    count = len(rank)
    start, earliest = np.zeros(count, dtype=np.int64), soonest.copy()
    missing = np.zeros(count, dtype=np.int64)
    for k in range(len(after)):
        missing[after[k]] += 1
    time, what = np.empty(2 * count + 64, dtype=np.int64), np.empty(2 * count + 64, dtype=np.int64)
    size = 0
    for i in range(count):
        if missing[i] == 0:
            heap_push(time, what, size, earliest[i], i)
            size += 1
    waiting, waits = np.empty(count, dtype=np.int64), 0
    free_at = np.zeros(links, dtype=np.int64)
    retry = -1
    left = count
    while size > 0:
        now = time[0]
        while size > 0 and time[0] == now:
            code = heap_pop(time, what, size)
            size -= 1
            if code < 0:
                retry = -1
                continue
            j = waits
            while j > 0 and rank[waiting[j - 1]] > rank[code]:
                waiting[j] = waiting[j - 1]
                j -= 1
            waiting[j] = code
            waits += 1
        kept = 0
        again = -1
        for w in range(waits):
            i = waiting[w]
            ready = now
            for h in range(hop_ptr[i], hop_ptr[i + 1]):
                ready = max(ready, free_at[hop_link[h]] - hop_from[h])
            if ready > now:
                waiting[kept] = i
                kept += 1
                if again < 0 or ready < again:
                    again = ready
                continue
            start[i] = now
            left -= 1
            for h in range(hop_ptr[i], hop_ptr[i + 1]):
                free_at[hop_link[h]] = now + hop_to[h]
            for k in range(ptr[i], ptr[i + 1]):
                j = after[k]
                earliest[j] = max(earliest[j], now + lag[k])
                missing[j] -= 1
                if missing[j] == 0:
                    heap_push(time, what, size, max(earliest[j], now), j)
                    size += 1
        waits = kept
        if again >= 0 and (retry < 0 or again < retry):
            retry = again
            if size + 2 >= len(time):
                return False, start
            heap_push(time, what, size, again, -1)
            size += 1
    return left == 0, start
