"""Compiled loops of the repair of symmetric schedules: by which routes missing chunks come, by the load of links."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import I32, I64, Bool, compiled, grown, heap_pop, heap_push, inner


class RoutesAround(NamedTuple):
    """Routes between GPUs: row r leads from `src[r]` to `dst[r]` in `takes_ps[r]`, and loads links.

    These are `link[ptr[r]:ptr[r + 1]]`, each for `busy_ps[r]`. Rows into a GPU are consecutive, from `into[gpu]` on;
    those out of a GPU are `out[out_ptr[gpu]:out_ptr[gpu + 1]]`.
    """

    src: I32
    dst: I32
    ptr: I64
    link: I32
    busy_ps: I64
    takes_ps: I64
    into: I64
    out_ptr: I64
    out: I64


@inner
def _score(hops: RoutesAround, load_ps: I64, row: int, since_ps: int) -> float:
    """When a chunk is expected at the end of a route: after the load of its links, and after the way to its start."""
    most = 0
    for k in range(hops.ptr[row], hops.ptr[row + 1]):
        most = max(most, load_ps[hops.link[k]])
    return float(most + since_ps + hops.takes_ps[row])


@compiled
def grow_trees(hops: RoutesAround, links: int, ptr: I64, gpu: I32) -> tuple[bool, I64, I64]:
    """For each missing chunk and GPU the route by which it comes, and the entry that brings it to the sender (or -1).

    GPUs that miss chunk c are `gpu[ptr[c]:ptr[c + 1]]`; all others have it. Returns also whether all were reached.
    """
    count, nodes = len(gpu), len(hops.into) - 1
    route, before = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    load_ps, since_ps = np.zeros(links, np.int64), np.zeros(nodes, np.int64)
    entry = np.full(nodes, -1, np.int64)  # of each GPU that misses the present chunk
    key, rows = np.empty(1024, np.float64), np.empty(1024, np.int64)
    for c in range(len(ptr) - 1):
        for k in range(ptr[c], ptr[c + 1]):
            entry[gpu[k]] = k
        size, left = 0, ptr[c + 1] - ptr[c]
        for k in range(ptr[c], ptr[c + 1]):
            for row in range(hops.into[gpu[k]], hops.into[gpu[k] + 1]):
                if entry[hops.src[row]] < 0:
                    if size == len(rows):
                        key, rows = grown(key), grown(rows)
                    heap_push(key, rows, size, _score(hops, load_ps, row, 0), row)
                    size += 1
        while size > 0 and left > 0:
            expected, row = key[0], heap_pop(key, rows, size)
            size -= 1
            here, sender = entry[hops.dst[row]], hops.src[row]
            if route[here] >= 0:
                continue
            begin = since_ps[sender] if entry[sender] >= 0 else 0
            score = _score(hops, load_ps, row, begin)
            if score > expected:
                heap_push(key, rows, size, score, row)
                size += 1
                continue
            route[here], before[here] = row, entry[sender]
            since_ps[hops.dst[row]] = begin + hops.takes_ps[row]
            for k in range(hops.ptr[row], hops.ptr[row + 1]):
                load_ps[hops.link[k]] += hops.busy_ps[row]
            left -= 1
            at = hops.dst[row]
            for k in range(hops.out_ptr[at], hops.out_ptr[at + 1]):
                more = hops.out[k]
                waits = entry[hops.dst[more]]
                if waits >= 0 and route[waits] < 0:
                    if size == len(rows):
                        key, rows = grown(key), grown(rows)
                    heap_push(key, rows, size, _score(hops, load_ps, more, since_ps[at]), more)
                    size += 1
        for k in range(ptr[c], ptr[c + 1]):
            entry[gpu[k]] = -1
        if left > 0:
            return False, route, before
    return True, route, before


@compiled
def choose_paths(links: int, possible: Bool, path: I64, busy_ps: I64, takes_ps: I64) -> I64:
    """For each missing chunk the best of several paths, -1 where none is possible.

    Path p of chunk c loads the links `path[c, p]`, -1 for none, each for `busy_ps[c, p]`, and takes `takes_ps[c, p]`.
    """
    chosen, load_ps = np.full(len(possible), -1, np.int64), np.zeros(links, np.int64)
    for c in range(len(possible)):
        least = np.inf
        for p in range(possible.shape[1]):
            if not possible[c, p]:
                continue
            most = 0
            for k in range(path.shape[2]):
                if path[c, p, k] >= 0:
                    most = max(most, load_ps[path[c, p, k]] + busy_ps[c, p, k])
            if most + takes_ps[c, p] < least:
                least, chosen[c] = most + takes_ps[c, p], p
        if chosen[c] >= 0:
            for k in range(path.shape[2]):
                if path[c, chosen[c], k] >= 0:
                    load_ps[path[c, chosen[c], k]] += busy_ps[c, chosen[c], k]
    return chosen
