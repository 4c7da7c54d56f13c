"""Compiled loops of the symmetric method: list scheduling of one source's data while all others do the same."""

from typing import Any, NamedTuple

import numpy as np

from flowccl.compiled import F64, I32, I64, Bool, Queue, compiled, heap_pop, heap_push, maker, new_queue, put, take


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


class OrbitShop(NamedTuple):
    """What waits for each kind of routes, the least key first, and when orbits are free."""

    heap_ptr: I64
    key: F64
    code: I64
    size: I64
    free: I64  # of each orbit
    queued: Bool  # of each kind: whether there is an event for when its orbits are free
    events: Queue


@maker
def _new_shop(kinds: RouteKinds, space: I64, events: int) -> Any:
    """Nothing waits yet; `space` is the most that may wait for each kind."""
    num_kinds = len(kinds.busy)
    heap_ptr = np.zeros(num_kinds + 1, dtype=np.int64)
    heap_ptr[1:] = np.cumsum(space)
    key, code = np.empty(heap_ptr[-1]), np.empty(heap_ptr[-1], dtype=np.int64)
    size = np.zeros(num_kinds, dtype=np.int64)
    free, queued = np.zeros(kinds.orbits, dtype=np.int64), np.zeros(num_kinds, dtype=np.bool_)
    return OrbitShop(heap_ptr, key, code, size, free, queued, new_queue(events))


@maker
def _wait(shop: Any, kind: int, key: float, code: int) -> None:
    """Let a code wait for the orbits of a kind."""
    at = shop.heap_ptr[kind]
    heap_push(shop.key[at:], shop.code[at:], shop.size[kind], key, code)
    shop.size[kind] += 1


@maker
def _first(shop: Any, kind: int) -> int:
    """Remove the code with the least key of a kind; return it."""
    at = shop.heap_ptr[kind]
    shop.size[kind] -= 1
    return heap_pop(shop.key[at:], shop.code[at:], shop.size[kind] + 1)


@maker
def _is_free(kinds: RouteKinds, shop: Any, kind: int, now: int) -> bool:
    """Whether all orbits of a kind are free for its next transfer; if not, there will be an event when they are."""
    at = np.int64(0)
    for h in range(kinds.hop_ptr[kind], kinds.hop_ptr[kind + 1]):
        at = max(at, shop.free[kinds.hop_orbit[h]] - kinds.hop_offset[h])
    if at > now and not shop.queued[kind]:
        shop.queued[kind] = True
        put(shop.events, int(at), -kind - 1)
    return bool(at <= now)


@maker
def _occupy(kinds: RouteKinds, shop: Any, kind: int, now: int) -> None:
    """A transfer of a kind starts."""
    for h in range(kinds.hop_ptr[kind], kinds.hop_ptr[kind + 1]):
        shop.free[kinds.hop_orbit[h]] = now + kinds.hop_offset[h] + kinds.busy[kind]


@maker
def _random() -> float:
    """A random number from 0 to 1; `schedule_broadcast` sets the seed."""
    return np.random.random()  # noqa: NPY002


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
    kinds: RouteKinds, order: I64, chunks: int, noise: float, late: float, deadline: int, seed: int
) -> tuple[bool, int, I32, I32, I32, I64]:
    """List scheduling of all chunks of GPU 0 to all GPUs, on orbits of links.

    Whenever the orbits of a kind are free, it sends a chunk to the node with the fewest neighbours that have the chunk,
    with noise; `order` has the kinds, the slowest first, and `late` delays later chunks. No transfer arrives after the
    deadline. Return (done, finish, and for every transfer its chunk, the sending GPU, the route and the start).
    """
    np.random.seed(seed)  # noqa: NPY002  # compiled code has no Generator of its own
    routes, count = kinds.end.shape
    total = chunks * (count - 1)
    # For each kind: neighbours that have or will have the chunk and could send it by another kind that is as fast.
    near = np.zeros((len(kinds.busy), chunks * count))
    taken = np.zeros(chunks * count, dtype=np.bool_)
    space = np.zeros(len(kinds.busy), dtype=np.int64)
    for w in range(routes):
        space[kinds.route_kind[w]] += chunks * count
    shop = _new_shop(kinds, space, 2 * total + 4 * len(kinds.busy) + chunks + 16)
    done, finish = 0, np.int64(0)
    out_chunk, out_root = np.empty(total, dtype=np.int32), np.empty(total, dtype=np.int32)
    out_route, out_start = np.empty(total, dtype=np.int32), np.empty(total, dtype=np.int64)
    for c in range(chunks):
        taken[c * count] = True
        _count_neighbour(kinds, near, c * count, 0)
        put(shop.events, 0, c * count)
    while shop.events.size[0] > 0 and done < total:
        now = shop.events.time[0]
        _offer(kinds, shop, now, near, taken, noise, late)
        for k in order:
            while shop.size[k] > 0 and now + kinds.arrive[k] <= deadline and _is_free(kinds, shop, k, now):
                seen = shop.key[shop.heap_ptr[k]]
                code = _first(shop, k)
                w = code % routes
                c, u = code // routes // count, code // routes % count
                place = c * count + kinds.end[w, u]
                if taken[place]:
                    continue
                value = near[k, place] + late * c
                if value > seen:
                    _wait(shop, k, value + noise * _random(), code)
                    continue
                taken[place] = True
                _count_neighbour(kinds, near, c * count, kinds.end[w, u])
                _occupy(kinds, shop, k, now)
                out_chunk[done], out_root[done], out_route[done], out_start[done] = c, u, w, now
                done += 1
                finish = max(finish, now + kinds.arrive[k])
                put(shop.events, now + kinds.arrive[k], place)
    return done == total, int(finish), out_chunk[:done], out_root[:done], out_route[:done], out_start[:done]


@maker
def _offer(kinds: RouteKinds, shop: Any, now: int, near: F64, taken: Bool, noise: float, late: float) -> None:
    """Take the events of now: what arrived waits to be sent on to all nodes that have no sender yet."""
    routes, count = kinds.end.shape
    while shop.events.size[0] > 0 and shop.events.time[0] == now:
        code = take(shop.events)
        if code < 0:
            shop.queued[-code - 1] = False
            continue
        c, u = code // count, code % count
        for w in range(routes):
            place = c * count + kinds.end[w, u]
            if not taken[place]:
                k = kinds.route_kind[w]
                _wait(shop, k, near[k, place] + noise * _random() + late * c, code * routes + w)


@compiled
def schedule_jobs(kinds: RouteKinds, job_kind: I64, before: I64, following: I64, rank: I64) -> tuple[int, I64]:
    """List scheduling of given transfers of GPU 0's data on orbits of links: the lowest rank goes first.

    Job j may start when job `before[j]` has arrived; job `following[j]` waits for it (-1: none).
    """
    jobs, num_kinds = len(job_kind), len(kinds.busy)
    space = np.zeros(num_kinds, dtype=np.int64)
    for k in job_kind:
        space[k] += 1
    shop = _new_shop(kinds, space, 2 * jobs + 16)
    start, finish = np.zeros(jobs, dtype=np.int64), np.int64(0)
    for j in range(jobs):
        if before[j] < 0:
            put(shop.events, 0, j)
    while shop.events.size[0] > 0:
        now = shop.events.time[0]
        while shop.events.size[0] > 0 and shop.events.time[0] == now:
            code = take(shop.events)
            if code < 0:
                shop.queued[-code - 1] = False
            else:
                _wait(shop, job_kind[code], float(rank[code]), code)
        for k in range(num_kinds):
            while shop.size[k] > 0 and _is_free(kinds, shop, k, now):
                j = _first(shop, k)
                start[j] = now
                _occupy(kinds, shop, k, now)
                finish = max(finish, now + kinds.arrive[k])
                if following[j] >= 0:
                    put(shop.events, now + kinds.arrive[k], following[j])
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
