"""Compiled loops of the routed method: trees that share the links evenly, and a shop that works them off."""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]


class Graph(NamedTuple):
    """The machine: links that leave each node, their ends, and what nodes can do."""

    out_ptr: I64
    out_link: I32
    link_src: I32
    link_dst: I32
    link_GBps: F64
    hold: F64  # time that a chunk holds the link: what gets dearer the fuller it is
    latency: F64
    stores: Bool
    copies: Bool


class Trees(NamedTuple):
    """A tree per chunk: hops `ptr[c]:ptr[c + 1]`, each a link and the hop that feeds it (-1 at the source)."""

    ptr: I64
    link: I32
    parent: I32


class Scratch(NamedTuple):
    """Work space for growing one tree."""

    far: F64  # of each node: cost of reaching it from the tree
    depth: F64  # of each node in the tree: cost of reaching it from the source
    via: I64  # link by which a node is reached
    member: Bool  # in the tree, and able to feed more links
    wanted: Bool
    feeder: I64  # of each node in the tree: the hop that feeds it
    queue_key: F64
    queue_node: I64
    path: I64


@njit(cache=True, nogil=True)
def scratch(nodes: int, links: int) -> Scratch:
    """Fresh work space."""
    room = 4 * links + 4 * nodes + 16
    return Scratch(
        np.empty(nodes),
        np.empty(nodes),
        np.empty(nodes, dtype=np.int64),
        np.zeros(nodes, dtype=np.bool_),
        np.zeros(nodes, dtype=np.bool_),
        np.empty(nodes, dtype=np.int64),
        np.empty(room),
        np.empty(room, dtype=np.int64),
        np.empty(nodes, dtype=np.int64),
    )


@njit(cache=True, nogil=True)
def _sift_up(key, what, size, value, code):  # type: ignore[no-untyped-def]  # used for floats and for ints
    i = size
    while i > 0 and key[(i - 1) >> 1] > value:
        key[i], what[i] = key[(i - 1) >> 1], what[(i - 1) >> 1]
        i = (i - 1) >> 1
    key[i], what[i] = value, code


@njit(cache=True, nogil=True)
def _take_first(key, what, size):  # type: ignore[no-untyped-def]  # used for floats and for ints
    code = what[0]
    value, last = key[size - 1], what[size - 1]
    i, size = 0, size - 1
    while True:
        j = 2 * i + 1
        if j >= size:
            break
        if j + 1 < size and key[j + 1] < key[j]:
            j += 1
        if key[j] >= value:
            break
        key[i], what[i] = key[j], what[j]
        i = j
    key[i], what[i] = value, last
    return code


@njit(cache=True, nogil=True)
def _relax(graph: Graph, length: F64, work: Scratch, size: int, node: int) -> int:
    """Offer the links that leave a node; returns the size of the queue."""
    for k in range(graph.out_ptr[node], graph.out_ptr[node + 1]):
        link = graph.out_link[k]
        end = graph.link_dst[link]
        far = work.far[node] + length[link]
        if not work.member[end] and far < work.far[end] and size < len(work.queue_key):
            work.far[end] = far
            work.via[end] = link
            _sift_up(work.queue_key, work.queue_node, size, far, end)
            size += 1
    return size


@njit(cache=True, nogil=True)
def _graft(graph: Graph, work: Scratch, node: int, deep: float, link_out: I32, parent_out: I32, hops: int) -> int:
    """Add the way from the tree to a node: its hops, and its nodes as members. Returns the number of hops."""
    steps = 0
    at = node
    while not work.member[at]:
        work.path[steps] = work.via[at]
        at = graph.link_src[work.via[at]]
        steps += 1
    feeder = work.feeder[at]
    depth = work.depth[at]
    for i in range(steps - 1, -1, -1):
        link = work.path[i]
        end = graph.link_dst[link]
        link_out[hops], parent_out[hops] = link, feeder
        feeder = hops
        depth += graph.hold[link] + graph.latency[link]
        hops += 1
        if graph.stores[end] or graph.copies[end]:
            work.member[end] = True
            work.feeder[end], work.depth[end], work.far[end] = feeder, depth, deep * depth
    return hops


@njit(cache=True, nogil=True)
def grow(
    graph: Graph,
    length: F64,
    source: int,
    wanted: I32,
    deep: float,
    work: Scratch,
    link_out: I32,
    parent_out: I32,
) -> int:
    """A tree from the source to all wanted nodes; returns its number of hops.

    Always the node that is cheapest to reach joins next. `deep` weighs the way from the source: 0 gives the tree with
    the least cost, 1 the shortest ways.
    """
    work.far[:] = np.inf
    work.member[:] = False
    for node in wanted:
        work.wanted[node] = True
    work.member[source] = True
    work.far[source], work.depth[source], work.feeder[source] = 0.0, 0.0, -1
    size = _relax(graph, length, work, 0, source)
    left, hops = len(wanted), 0
    while left > 0 and size > 0:
        key = work.queue_key[0]
        node = _take_first(work.queue_key, work.queue_node, size)
        size -= 1
        if work.member[node] or key > work.far[node]:
            continue
        if not work.wanted[node]:
            size = _relax(graph, length, work, size, node)
            continue
        before = hops
        hops = _graft(graph, work, node, deep, link_out, parent_out, hops)
        for hop in range(before, hops):
            end = graph.link_dst[link_out[hop]]
            if work.member[end]:
                if work.wanted[end]:
                    work.wanted[end] = False
                    left -= 1
                size = _relax(graph, length, work, size, end)
    for node in wanted:
        work.wanted[node] = False
    return hops if left == 0 else -1


@njit(cache=True, nogil=True)
def reroute(
    graph: Graph,
    source: I32,
    wanted_ptr: I64,
    wanted: I32,
    size: I64,
    order: I64,
    steep: float,
    deep: float,
    full_ps: float,
    load: F64,
    old: Trees,
) -> Trees:
    """One sweep: every chunk gives up its tree and takes the cheapest, where a link costs more the fuller it is.

    `load` is the time that each link is busy, in ps, and is kept up to date. A link of load x costs
    latency + hold * exp(steep * x / full). Returns the new trees.
    """
    nodes, chunks = len(graph.stores), len(source)
    work = scratch(nodes, len(graph.link_src))
    length = graph.latency + graph.hold * np.exp(steep * load / full_ps)
    joins = int((graph.stores | graph.copies).sum())
    room = joins * (nodes - joins + 1)  # no tree has more hops: plain switches may be passed on the way to every node
    link = np.empty(len(wanted) * 2 + room, dtype=np.int32)
    parent = np.empty(len(link), dtype=np.int32)
    first = np.zeros(chunks, dtype=np.int64)
    count = np.zeros(chunks, dtype=np.int64)
    used = 0
    for c in order:
        for k in range(old.ptr[c], old.ptr[c + 1]):
            a = old.link[k]
            load[a] -= size[c] * 1000.0 / graph.link_GBps[a]
            length[a] = graph.latency[a] + graph.hold[a] * np.exp(steep * load[a] / full_ps)
        if used + room > len(link):
            more = np.empty(2 * len(link), dtype=np.int32)
            more[:used] = link[:used]
            link = more
            more = np.empty(len(link), dtype=np.int32)
            more[:used] = parent[:used]
            parent = more
        ends = wanted[wanted_ptr[c] : wanted_ptr[c + 1]]
        first[c] = used
        count[c] = max(grow(graph, length, source[c], ends, deep, work, link[used:], parent[used:]), 0)
        for k in range(used, used + count[c]):
            a = link[k]
            load[a] += size[c] * 1000.0 / graph.link_GBps[a]
            length[a] = graph.latency[a] + graph.hold[a] * np.exp(steep * load[a] / full_ps)
        used += count[c]
    ptr = np.zeros(chunks + 1, dtype=np.int64)
    ptr[1:] = np.cumsum(count)
    link_out, parent_out = np.empty(used, dtype=np.int32), np.empty(used, dtype=np.int32)
    for c in range(chunks):
        link_out[ptr[c] : ptr[c + 1]] = link[first[c] : first[c] + count[c]]
        parent_out[ptr[c] : ptr[c + 1]] = parent[first[c] : first[c] + count[c]]
    return Trees(ptr, link_out, parent_out)


class Bookings(NamedTuple):
    """When each link is held, as one list per link in order of time; entries share common arrays."""

    last: I64  # of each link
    begin: I64
    end: I64
    before: I64
    after: I64


@njit(cache=True, nogil=True)
def bookings(links: int, room: int) -> Bookings:
    """No bookings yet, and room for so many."""
    space = [np.empty(room, dtype=np.int64) for _ in range(4)]
    return Bookings(np.full(links, -1, dtype=np.int64), space[0], space[1], space[2], space[3])


@njit(cache=True, nogil=True)
def free_from(held: Bookings, link: int, begin: int, end: int) -> int:
    """`begin` if the link is free from begin to end, else the next time at which it is free for as long."""
    entry = held.last[link]
    while entry >= 0 and held.begin[entry] >= end:
        entry = held.before[entry]
    if entry < 0 or held.end[entry] <= begin:
        return begin
    time: int = held.end[entry]
    entry = held.after[entry]
    while entry >= 0 and held.begin[entry] < time + end - begin:
        time = held.end[entry]
        entry = held.after[entry]
    return time


@njit(cache=True, nogil=True)
def book(held: Bookings, entry: int, link: int, begin: int, end: int) -> None:
    """Write a booking into entry number `entry`, which must be fresh; the time must be free."""
    held.begin[entry], held.end[entry] = begin, end
    later, earlier = np.int64(-1), held.last[link]
    while earlier >= 0 and held.begin[earlier] >= end:
        later = earlier
        earlier = held.before[earlier]
    held.before[entry], held.after[entry] = earlier, later
    if earlier >= 0:
        held.after[earlier] = entry
    if later >= 0:
        held.before[later] = entry
    else:
        held.last[link] = entry


class Shop(NamedTuple):
    """Routes with their hops and segments, and jobs: one chunk on one route each, fed by another job's hop."""

    hop_ptr: I64  # of each route
    hop_link: I32
    hop_offset: I64
    hop_segment: I64  # counted from 0 in each route
    hop_latency: I64
    segment_ptr: I64
    segment_GBps: F64
    queue_ptr: I64  # of each route: where its waiting jobs are kept
    job_route: I64
    job_bytes: I64
    child_ptr: I64  # of each job: the jobs it feeds
    child: I64
    feeding_hop: I64  # of each job: the hop (in the route of its parent) that feeds it; -1 at a source


@njit(cache=True, nogil=True)
def _timing(shop: Shop, job: int, begin: I64, until: I64) -> None:
    """Hold of each hop of a job that starts at 0."""
    route = shop.job_route[job]
    first = shop.hop_ptr[route]
    delay = np.int64(0)
    for s in range(shop.segment_ptr[route], shop.segment_ptr[route + 1]):
        hold = np.int64(np.ceil(shop.job_bytes[job] * 1000.0 / shop.segment_GBps[s]))
        for h in range(first, shop.hop_ptr[route + 1]):
            if shop.hop_segment[h] == s - shop.segment_ptr[route]:
                begin[h - first] = shop.hop_offset[h] + delay
                until[h - first] = begin[h - first] + hold
        delay += hold


@njit(cache=True, nogil=True)
def _grown(array: I64, size: int) -> I64:
    more = np.empty(2 * len(array), dtype=np.int64)
    more[:size] = array[:size]
    return more


@njit(cache=True, nogil=True)
def _by_rank(shop: Shop, dirty: I64, dirt: int, waiting: I64, wait_rank: I64) -> None:
    """Order routes by the rank of the first job that waits for each."""
    for i in range(1, dirt):
        route = dirty[i]
        key = wait_rank[shop.queue_ptr[route]] if waiting[route] else np.int64(2**62)
        j = i - 1
        while j >= 0:
            other = wait_rank[shop.queue_ptr[dirty[j]]] if waiting[dirty[j]] else np.int64(2**62)
            if other <= key:
                break
            dirty[j + 1] = dirty[j]
            j -= 1
        dirty[j + 1] = route


@njit(cache=True, nogil=True)
def work_off(shop: Shop, rank: I64, links: int, give_up_ps: int) -> tuple[bool, int, I64]:
    """List scheduling: whenever the links of a route are free, the waiting job with the least rank goes.

    Returns (done, finish, start of every job).
    """
    routes, jobs = len(shop.hop_ptr) - 1, len(shop.job_route)
    start = np.zeros(jobs, dtype=np.int64)
    room = 0
    for job in range(jobs):
        room += shop.hop_ptr[shop.job_route[job] + 1] - shop.hop_ptr[shop.job_route[job]]
    held, booked = bookings(links, room), 0
    wait_rank, wait_job = np.empty(jobs, dtype=np.int64), np.empty(jobs, dtype=np.int64)
    waiting = np.zeros(routes, dtype=np.int64)
    q_time, q_what = np.empty(jobs + routes + 16, dtype=np.int64), np.empty(jobs + routes + 16, dtype=np.int64)
    q_size = 0
    retry_at = np.full(routes, -1, dtype=np.int64)
    widest = 1
    for r in range(routes):
        widest = max(widest, shop.hop_ptr[r + 1] - shop.hop_ptr[r])
    begin, until = np.zeros(widest, dtype=np.int64), np.zeros(widest, dtype=np.int64)
    dirty, is_dirty = np.empty(routes, dtype=np.int64), np.zeros(routes, dtype=np.bool_)
    for job in range(jobs):
        if shop.feeding_hop[job] < 0:
            _sift_up(q_time, q_what, q_size, np.int64(0), np.int64(job))
            q_size += 1
    finish, left = np.int64(0), jobs
    while q_size > 0:
        now = q_time[0]
        dirt = 0
        while q_size > 0 and q_time[0] == now:
            code = _take_first(q_time, q_what, q_size)
            q_size -= 1
            if code < 0:
                route = -code - 1
                retry_at[route] = -1
            else:
                route = shop.job_route[code]
                at = shop.queue_ptr[route]
                _sift_up(wait_rank[at:], wait_job[at:], waiting[route], rank[code], code)
                waiting[route] += 1
            if not is_dirty[route]:
                is_dirty[route] = True
                dirty[dirt] = route
                dirt += 1
        _by_rank(shop, dirty, dirt, waiting, wait_rank)
        for i in range(dirt):
            route = dirty[i]
            is_dirty[route] = False
            first, hops = shop.hop_ptr[route], shop.hop_ptr[route + 1] - shop.hop_ptr[route]
            while waiting[route] > 0:
                at = shop.queue_ptr[route]
                job = wait_job[at]
                _timing(shop, job, begin, until)
                ready = now
                for h in range(hops):
                    link = shop.hop_link[first + h]
                    ready = max(ready, free_from(held, link, now + begin[h], now + until[h]) - begin[h])
                if q_size + 2 >= len(q_time):
                    q_time, q_what = _grown(q_time, q_size), _grown(q_what, q_size)
                if ready > now:
                    if retry_at[route] < 0 or ready < retry_at[route]:
                        retry_at[route] = ready
                        _sift_up(q_time, q_what, q_size, ready, np.int64(-route - 1))
                        q_size += 1
                    break
                _take_first(wait_rank[at:], wait_job[at:], waiting[route])
                waiting[route] -= 1
                start[job] = now
                left -= 1
                for h in range(hops):
                    book(held, booked, shop.hop_link[first + h], now + begin[h], now + until[h])
                    booked += 1
                    finish = max(finish, now + until[h] + shop.hop_latency[first + h])
                if finish >= give_up_ps:
                    return False, int(finish), start
                for k in range(shop.child_ptr[job], shop.child_ptr[job + 1]):
                    child = shop.child[k]
                    hop = shop.feeding_hop[child]
                    if q_size + 2 >= len(q_time):
                        q_time, q_what = _grown(q_time, q_size), _grown(q_what, q_size)
                    came = now + until[hop] + shop.hop_latency[first + hop]
                    _sift_up(q_time, q_what, q_size, came, np.int64(child))
                    q_size += 1
    return left == 0, int(finish), start


@njit(cache=True, nogil=True)
def tails(shop: Shop, order: I64) -> F64:
    """For every job: the time from its start until the last node behind it has the chunk, if nothing waits.

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
