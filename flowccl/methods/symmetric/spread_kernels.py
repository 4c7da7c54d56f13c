"""Compiled loops of the symmetric method: list scheduling of one source's data while all others do the same."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I32, I64, compiled, heap_pop, heap_push, maker


class RouteKinds(NamedTuple):
    """Routes of one kind occupy the same orbits of links at the same times.

    Route w is of kind `route_kind[w]` and leads from GPU u to GPU `end[w, u]`. A transfer of kind k occupies orbit
    `hop_orbit[h]` from `hop_offset[h]` on for `busy[k]`, for h from `hop_ptr[k]` to `hop_ptr[k + 1]`, and arrives
    after `arrive[k]`.
    """

    route_kind: I64
    end: I32
    hop_ptr: I64
    hop_orbit: I64
    hop_offset: I64
    busy: I64
    arrive: I64
    orbits: int


@maker
def _random() -> float:
    """A random number from 0 to 1; `schedule_broadcast` sets the seed."""
    return np.random.random()  # noqa: NPY002


@maker
def _ready(kinds: RouteKinds, free: I64, kind: int) -> int:
    """The time at which all orbits of a kind are free for its next transfer."""
    at = np.int64(0)
    for h in range(kinds.hop_ptr[kind], kinds.hop_ptr[kind + 1]):
        at = max(at, free[kinds.hop_orbit[h]] - kinds.hop_offset[h])
    return int(at)


@maker
def _count_neighbour(kinds: RouteKinds, near: F64, first: int, node: int) -> None:
    """Count a node that has the chunk at its neighbours."""
    for w in range(len(kinds.route_kind)):
        own = kinds.route_kind[w]
        for k in range(len(kinds.busy)):
            if k != own and kinds.busy[own] <= kinds.busy[k]:
                near[k, first + kinds.end[w, node]] += 1


@compiled
def schedule_broadcast(
    kinds: RouteKinds, chunks: int, noise: float, late: float, deadline: int, seed: int
) -> tuple[bool, int, I32, I32, I32, I64]:
    """List scheduling of all chunks of GPU 0 to all GPUs, on orbits of links.

    Whenever the orbits of a kind are free, it sends a chunk to the node with the fewest neighbours that have the chunk,
    with noise; `late` delays later chunks. No transfer arrives after the deadline. Return (done, finish, and for every
    transfer its chunk, the sending GPU, the route and the start).
    """
    np.random.seed(seed)  # noqa: NPY002  # compiled code has no Generator of its own
    routes, count = kinds.end.shape
    num_kinds = len(kinds.hop_ptr) - 1
    # For each kind: neighbours that have or will have the chunk and could send it by another kind that is as fast.
    near = np.zeros((num_kinds, chunks * count))
    taken = np.zeros(chunks * count, dtype=np.bool_)
    space = np.zeros(num_kinds, dtype=np.int64)
    for w in range(routes):
        space[kinds.route_kind[w]] += chunks * count
    heap_ptr = np.zeros(num_kinds + 1, dtype=np.int64)
    heap_ptr[1:] = np.cumsum(space)
    heap_key, heap_code = np.empty(heap_ptr[-1]), np.empty(heap_ptr[-1], dtype=np.int64)
    heap_size = np.zeros(num_kinds, dtype=np.int64)
    free = np.zeros(kinds.orbits, dtype=np.int64)
    total = chunks * (count - 1)
    q_time, q_code = (
        np.empty(2 * total + 4 * num_kinds + chunks + 16, dtype=np.int64),
        np.empty(2 * total + 4 * num_kinds + chunks + 16, dtype=np.int64),
    )
    queued = np.zeros(num_kinds, dtype=np.bool_)
    q_size, done, finish = 0, 0, np.int64(0)
    out_chunk, out_root = np.empty(total, dtype=np.int32), np.empty(total, dtype=np.int32)
    out_route, out_start = np.empty(total, dtype=np.int32), np.empty(total, dtype=np.int64)
    for c in range(chunks):
        taken[c * count] = True
        _count_neighbour(kinds, near, c * count, 0)
        heap_push(q_time, q_code, q_size, 0, c * count)
        q_size += 1
    order = np.argsort(-kinds.busy)
    while q_size > 0 and done < total:
        now = q_time[0]
        while q_size > 0 and q_time[0] == now:
            code = heap_pop(q_time, q_code, q_size)
            q_size -= 1
            if code < 0:
                queued[-code - 1] = False
                continue
            c, u = code // count, code % count
            for w in range(routes):
                place = c * count + kinds.end[w, u]
                if not taken[place]:
                    k = kinds.route_kind[w]
                    at = heap_ptr[k]
                    value = near[k, place] + noise * _random() + late * c
                    heap_push(heap_key[at:], heap_code[at:], heap_size[k], value, code * routes + w)
                    heap_size[k] += 1
        for k in order:
            at = heap_ptr[k]
            while heap_size[k] > 0 and now + kinds.arrive[k] <= deadline:
                ready = _ready(kinds, free, k)
                if ready > now:
                    if not queued[k]:
                        queued[k] = True
                        heap_push(q_time, q_code, q_size, ready, -k - 1)
                        q_size += 1
                    break
                seen = heap_key[at]
                code = heap_pop(heap_key[at:], heap_code[at:], heap_size[k])
                heap_size[k] -= 1
                w = code % routes
                c, u = code // routes // count, code // routes % count
                place = c * count + kinds.end[w, u]
                if taken[place]:
                    continue
                value = near[k, place] + late * c
                if value > seen:
                    heap_push(heap_key[at:], heap_code[at:], heap_size[k], value + noise * _random(), code)
                    heap_size[k] += 1
                    continue
                taken[place] = True
                _count_neighbour(kinds, near, c * count, kinds.end[w, u])
                for h in range(kinds.hop_ptr[k], kinds.hop_ptr[k + 1]):
                    free[kinds.hop_orbit[h]] = now + kinds.hop_offset[h] + kinds.busy[k]
                out_chunk[done], out_root[done], out_route[done], out_start[done] = c, u, w, now
                done += 1
                finish = max(finish, now + kinds.arrive[k])
                heap_push(q_time, q_code, q_size, now + kinds.arrive[k], place)
                q_size += 1
    return done == total, int(finish), out_chunk[:done], out_root[:done], out_route[:done], out_start[:done]


@compiled
def schedule_jobs(kinds: RouteKinds, job_kind: I64, before: I64, following: I64, rank: I64) -> tuple[int, I64]:
    """List scheduling of given transfers of GPU 0's data on orbits of links: the lowest rank goes first.

    Job j may start when job `before[j]` has arrived; job `following[j]` waits for it (-1: none).
    """
    jobs, num_kinds = len(job_kind), len(kinds.hop_ptr) - 1
    heap_ptr = np.zeros(num_kinds + 1, dtype=np.int64)
    for k in job_kind:
        heap_ptr[k + 1] += 1
    heap_ptr = np.cumsum(heap_ptr)
    heap_key, heap_job = np.empty(jobs, dtype=np.int64), np.empty(jobs, dtype=np.int64)
    heap_size = np.zeros(num_kinds, dtype=np.int64)
    free, start = np.zeros(kinds.orbits, dtype=np.int64), np.zeros(jobs, dtype=np.int64)
    q_time, q_code = np.empty(2 * jobs + 16, dtype=np.int64), np.empty(2 * jobs + 16, dtype=np.int64)
    queued = np.zeros(num_kinds, dtype=np.bool_)
    q_size, finish = 0, np.int64(0)
    for j in range(jobs):
        if before[j] < 0:
            heap_push(q_time, q_code, q_size, 0, j)
            q_size += 1
    while q_size > 0:
        now = q_time[0]
        while q_size > 0 and q_time[0] == now:
            code = heap_pop(q_time, q_code, q_size)
            q_size -= 1
            if code < 0:
                queued[-code - 1] = False
                continue
            k = job_kind[code]
            heap_push(heap_key[heap_ptr[k] :], heap_job[heap_ptr[k] :], heap_size[k], rank[code], code)
            heap_size[k] += 1
        for k in range(num_kinds):
            at = heap_ptr[k]
            while heap_size[k] > 0:
                ready = _ready(kinds, free, k)
                if ready > now:
                    if not queued[k]:
                        queued[k] = True
                        heap_push(q_time, q_code, q_size, ready, -k - 1)
                        q_size += 1
                    break
                j = heap_pop(heap_key[at:], heap_job[at:], heap_size[k])
                heap_size[k] -= 1
                start[j] = now
                for h in range(kinds.hop_ptr[k], kinds.hop_ptr[k + 1]):
                    free[kinds.hop_orbit[h]] = now + kinds.hop_offset[h] + kinds.busy[k]
                finish = max(finish, now + kinds.arrive[k])
                if following[j] >= 0:
                    heap_push(q_time, q_code, q_size, now + kinds.arrive[k], following[j])
                    q_size += 1
    return int(finish), start


@compiled
def balance(order: I64, busy: F64, own: F64, load: F64, scale: float, turn: I64, last: bool) -> None:
    """Choose a round again for each GPU of `order`: the least sum of the 8th powers of the loads of all orbits.

    In the `last` sweep, it is the least largest load instead, and of equal ones the least sum. GPU d occupies the
    orbits for `busy[r, d]` if it takes round r, and for `own[d]` now; `own`, `load` and `turn` change in place.
    """
    orbits = len(load)
    for d in order:
        best, best_total, chosen = np.inf, np.inf, 0
        for r in range(len(busy)):
            value, total = 0.0, 0.0
            for i in range(orbits):
                after = load[i] - own[d, i] + busy[r, d, i]
                total += after
                if last:
                    value = max(value, after)
                else:
                    second = (after / scale) * (after / scale)
                    value += second * second * (second * second)
            if value < best or (last and value == best and total < best_total):
                best, best_total, chosen = value, total, r
        for i in range(orbits):
            load[i] += busy[chosen, d, i] - own[d, i]
            own[d, i] = busy[chosen, d, i]
        turn[d] = chosen
