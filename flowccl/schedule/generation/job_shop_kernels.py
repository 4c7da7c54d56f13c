"""Compiled loops of job-shop scheduling: jobs wait for routes, and start when all links of their route are free."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import (
    F64,
    I32,
    I64,
    Bool,
    Queue,
    compiled,
    heap_pop,
    heap_push,
    inlined,
    inner,
    lacks_space,
    larger,
    maker,
    new_queue,
    put,
    take,
)


class Bookings(NamedTuple):
    """The busy intervals of each link, as one list per link in order of time; all lists share the arrays."""

    used: I64  # one number: entries in use
    last: I64  # last entry of each link
    begin: I64
    end: I64
    before: I64
    after: I64


@maker
def new_bookings(links: int, capacity: int) -> Bookings:
    """Empty bookings with space for `capacity` entries."""
    space = [np.empty(capacity, dtype=np.int64) for _ in range(4)]
    return Bookings(
        np.zeros(1, dtype=np.int64), np.full(links, -1, dtype=np.int64), space[0], space[1], space[2], space[3]
    )


@inner
def free_from(bookings: Bookings, link: int, begin: int, end: int) -> int:
    """Return `begin` if the link is free from begin to end, else the next time at which it is free for that long."""
    entry = bookings.last[link]
    while entry >= 0 and bookings.begin[entry] >= end:
        entry = bookings.before[entry]
    if entry < 0 or bookings.end[entry] <= begin:
        return begin
    time: int = bookings.end[entry]
    entry = bookings.after[entry]
    while entry >= 0 and bookings.begin[entry] < time + end - begin:
        time = bookings.end[entry]
        entry = bookings.after[entry]
    return time


@inner
def book(bookings: Bookings, link: int, begin: int, end: int) -> None:
    """Add a busy interval; the link must be free then, and there must be space for another entry."""
    entry = bookings.used[0]
    bookings.used[0] += 1
    bookings.begin[entry], bookings.end[entry] = begin, end
    later, earlier = np.int64(-1), bookings.last[link]
    while earlier >= 0 and bookings.begin[earlier] >= end:
        later = earlier
        earlier = bookings.before[earlier]
    bookings.before[entry], bookings.after[entry] = earlier, later
    if earlier >= 0:
        bookings.after[earlier] = entry
    if later >= 0:
        bookings.before[later] = entry
    else:
        bookings.last[link] = entry


class Shop(NamedTuple):
    """Routes with their hops and segments, and jobs: one chunk on one route each, fed by another job's hop."""

    hop_ptr: I64  # of each route
    hop_link: I32
    hop_offset: I64
    hop_segment: I64  # counted from 0 in each route
    hop_latency: I64
    segment_ptr: I64
    segment_GBps: F64
    queue_ptr: I64  # of each route: the start of its queue of waiting jobs
    job_route: I64
    job_bytes: I64
    child_ptr: I64  # of each job: the jobs it feeds
    child: I64
    feeding_hop: I64  # of each job: the hop (in the route of its parent) that feeds it; -1 at a source


class ShopState(NamedTuple):
    """The state of the shop: jobs that have started, jobs that wait, and the events of the current time."""

    start: I64  # of each job
    left: I64  # one number: jobs that have not started
    finish: I64  # one number
    waiting: I64  # of each route: the number of jobs that wait for it, in a heap by rank from `queue_ptr` on
    wait_rank: I64
    wait_job: I64
    retry_at: I64  # of each route: when its links become free, if jobs wait for them
    now: I64  # one number
    size: I64  # one number: routes that may be free now
    turn: I64  # one number: how many of these have been tried
    route: I64  # the routes that may be free now
    marked: Bool  # of each route: whether it is in `route`
    key: I64  # sort keys of `route`
    begin: I64  # of each hop of the current job, if it starts at 0
    until: I64


@maker
def new_shop_state(shop: Shop) -> ShopState:
    """The state in which no job has started."""
    routes, jobs = len(shop.hop_ptr) - 1, len(shop.job_route)
    widest = 1
    for r in range(routes):
        widest = max(widest, shop.hop_ptr[r + 1] - shop.hop_ptr[r])
    return ShopState(
        np.zeros(jobs, dtype=np.int64),
        np.full(1, jobs),
        np.zeros(1, dtype=np.int64),
        np.zeros(routes, dtype=np.int64),
        np.empty(jobs, dtype=np.int64),
        np.empty(jobs, dtype=np.int64),
        np.full(routes, -1, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
        np.empty(routes, dtype=np.int64),
        np.zeros(routes, dtype=np.bool_),
        np.empty(routes, dtype=np.int64),
        np.zeros(widest, dtype=np.int64),
        np.zeros(widest, dtype=np.int64),
    )


@maker
def all_hops(shop: Shop, links: int) -> Bookings:
    """Empty bookings with space for the hops of all jobs."""
    capacity = 0
    for job in range(len(shop.job_route)):
        capacity += shop.hop_ptr[shop.job_route[job] + 1] - shop.hop_ptr[shop.job_route[job]]
    return new_bookings(links, capacity)


@maker
def first_jobs(shop: Shop) -> Queue:
    """The event queue at time 0: all jobs that no other job feeds."""
    queue = new_queue(len(shop.job_route) + len(shop.hop_ptr) + 16)
    for job in range(len(shop.job_route)):
        if shop.feeding_hop[job] < 0:
            put(queue, 0, job)
    return queue


@inner
def most_events(shop: Shop) -> int:
    """The largest number of events that the start of a job adds to the queue."""
    most = 0
    for job in range(len(shop.job_route)):
        most = max(most, shop.child_ptr[job + 1] - shop.child_ptr[job])
    return most + 1


@inlined
def take_events(shop: Shop, state: ShopState, queue: Queue, rank: I64) -> None:
    """Take all events of the earliest time: jobs that are fed now, and routes (-r - 1) to try again."""
    state.now[0], state.size[0], state.turn[0] = queue.time[0], 0, 0
    while queue.size[0] > 0 and queue.time[0] == state.now[0]:
        code = take(queue)
        if code < 0:
            route = -code - 1
            state.retry_at[route] = -1
        else:
            route = shop.job_route[code]
            at = shop.queue_ptr[route]
            heap_push(state.wait_rank[at:], state.wait_job[at:], state.waiting[route], rank[code], code)
            state.waiting[route] += 1
        if not state.marked[route]:
            state.marked[route] = True
            state.route[state.size[0]] = route
            state.size[0] += 1


@inlined
def start_next(shop: Shop, state: ShopState, bookings: Bookings, queue: Queue, route: int) -> bool:
    """Start the first job that waits for a route if the links are free; else add an event for when they are."""
    now = state.now[0]
    if state.waiting[route] == 0:
        return False
    first, hops, at = shop.hop_ptr[route], shop.hop_ptr[route + 1] - shop.hop_ptr[route], shop.queue_ptr[route]
    _timing(shop, state.wait_job[at], state.begin, state.until)
    ready = now
    for h in range(hops):
        begin, until = state.begin[h], state.until[h]
        ready = max(ready, free_from(bookings, shop.hop_link[first + h], now + begin, now + until) - begin)
    if ready > now:
        if state.retry_at[route] < 0 or ready < state.retry_at[route]:
            state.retry_at[route] = ready
            put(queue, ready, -route - 1)
        return False
    job = heap_pop(state.wait_rank[at:], state.wait_job[at:], state.waiting[route])
    state.waiting[route] -= 1
    state.start[job] = now
    state.left[0] -= 1
    for h in range(hops):
        book(bookings, shop.hop_link[first + h], now + state.begin[h], now + state.until[h])
        state.finish[0] = max(state.finish[0], now + state.until[h] + shop.hop_latency[first + h])
    for k in range(shop.child_ptr[job], shop.child_ptr[job + 1]):
        hop = shop.feeding_hop[shop.child[k]]
        put(queue, now + state.until[hop] + shop.hop_latency[first + hop], shop.child[k])
    return True


@inner
def _timing(shop: Shop, job: int, begin: I64, until: I64) -> None:
    """The busy interval of each hop of a job that starts at 0."""
    route = shop.job_route[job]
    first = shop.hop_ptr[route]
    delay = np.int64(0)
    for s in range(shop.segment_ptr[route], shop.segment_ptr[route + 1]):
        busy_ps = np.int64(np.ceil(shop.job_bytes[job] * 1000.0 / shop.segment_GBps[s]))
        for h in range(first, shop.hop_ptr[route + 1]):
            if shop.hop_segment[h] == s - shop.segment_ptr[route]:
                begin[h - first] = shop.hop_offset[h] + delay
                until[h - first] = begin[h - first] + busy_ps
        delay += busy_ps


@inner
def _by_rank(shop: Shop, state: ShopState) -> None:
    """Order the routes that may be free by the rank of the first job that waits for each."""
    size = state.size[0]
    for i in range(size):
        heap_push(state.key, state.route, i, -_first_rank(shop, state, state.route[i]), state.route[i])
    for i in range(size - 1, 0, -1):  # the largest rank to the end
        state.route[i] = heap_pop(state.key, state.route, i + 1)


@inner
def _first_rank(shop: Shop, state: ShopState, route: int) -> int:
    return int(state.wait_rank[shop.queue_ptr[route]]) if state.waiting[route] else 2**62


@compiled
def dispatch(shop: Shop, rank: I64, links: int, give_up_ps: int) -> tuple[bool, int, I64]:
    """List scheduling: whenever the links of a route are free, the waiting job with the least rank starts.

    Returns (whether all jobs finish before `give_up_ps`, finish, start of every job).
    """
    state, bookings, queue, events = new_shop_state(shop), all_hops(shop, links), first_jobs(shop), most_events(shop)
    while not _run(shop, state, bookings, queue, rank, events, give_up_ps):
        queue = larger(queue)
    done = state.left[0] == 0 and state.finish[0] < give_up_ps
    return done, state.finish[0], state.start


@inner
def _run(
    shop: Shop, state: ShopState, bookings: Bookings, queue: Queue, rank: I64, events: int, give_up_ps: int
) -> bool:
    """Run until all jobs have started or the finish is too late; False if the queue must be enlarged first."""
    while queue.size[0] > 0 or state.turn[0] < state.size[0]:
        if state.turn[0] == state.size[0]:
            take_events(shop, state, queue, rank)
            _by_rank(shop, state)
        if lacks_space(queue, events):
            return False
        route = state.route[state.turn[0]]
        if not start_next(shop, state, bookings, queue, route):
            state.marked[route] = False
            state.turn[0] += 1
        elif state.finish[0] >= give_up_ps:
            break
    return True


@compiled
def tails(shop: Shop, order: I64) -> F64:
    """Return the tail of every job: the time from its start until the last node behind it has the chunk, without waits.

    `order` lists children before parents.
    """
    result = np.zeros(len(shop.job_route))
    widest = 1
    for r in range(len(shop.hop_ptr) - 1):
        widest = max(widest, shop.hop_ptr[r + 1] - shop.hop_ptr[r])
    begin, until = np.zeros(widest, dtype=np.int64), np.zeros(widest, dtype=np.int64)
    for job in order:
        _timing(shop, job, begin, until)
        first = shop.hop_ptr[shop.job_route[job]]
        longest = 0.0
        for h in range(shop.hop_ptr[shop.job_route[job] + 1] - first):
            longest = max(longest, until[h] + shop.hop_latency[first + h])
        for k in range(shop.child_ptr[job], shop.child_ptr[job + 1]):
            child = shop.child[k]
            hop = shop.feeding_hop[child]
            longest = max(longest, until[hop] + shop.hop_latency[first + hop] + result[child])
        result[job] = longest
    return result
