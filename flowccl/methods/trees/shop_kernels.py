"""Compiled loops of the shop: jobs worked off so that no link falls behind."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from flowccl.methods.routed.kernels import Shop, _grown, _sift_up, _take_first, _timing, book, bookings, free_from

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

_ALL = 1e-3  # weight of all links of a route beside the one with most to do


@njit(cache=True)
def work_evenly(shop: Shop, rank: I64, work: F64, give_up_ps: int) -> tuple[bool, int, I64]:
    """List scheduling: of the routes that are free, the one whose links have most left to do; there the least rank.

    `work` is how long each link is busy in all. Returns (done, finish, start of every job).
    """
    routes, jobs = len(shop.hop_ptr) - 1, len(shop.job_route)
    left, start, waits = work.copy(), np.zeros(jobs, dtype=np.int64), jobs
    room, widest = 0, 1
    for job in range(jobs):
        hops = shop.hop_ptr[shop.job_route[job] + 1] - shop.hop_ptr[shop.job_route[job]]
        room, widest = room + hops, max(widest, hops)
    held, booked = bookings(len(work), room), 0
    begin, until = np.zeros(widest, dtype=np.int64), np.zeros(widest, dtype=np.int64)
    wait_rank, wait_job = np.empty(jobs, dtype=np.int64), np.empty(jobs, dtype=np.int64)
    waiting, retry_at = np.zeros(routes, dtype=np.int64), np.full(routes, -1, dtype=np.int64)
    dirty, is_dirty = np.empty(routes, dtype=np.int64), np.zeros(routes, dtype=np.bool_)
    q_time, q_what = np.empty(jobs + routes + 16, dtype=np.int64), np.empty(jobs + routes + 16, dtype=np.int64)
    q_size, finish = 0, np.int64(0)
    for job in range(jobs):
        if shop.feeding_hop[job] < 0:
            _sift_up(q_time, q_what, q_size, np.int64(0), np.int64(job))
            q_size += 1
    while q_size > 0:
        now, dirt = q_time[0], 0
        while q_size > 0 and q_time[0] == now:
            code = _take_first(q_time, q_what, q_size)
            q_size -= 1
            route = shop.job_route[code] if code >= 0 else -code - 1
            if code >= 0:
                at = shop.queue_ptr[route]
                _sift_up(wait_rank[at:], wait_job[at:], waiting[route], rank[code], code)
                waiting[route] += 1
            else:
                retry_at[route] = -1
            if not is_dirty[route]:
                is_dirty[route] = True
                dirty[dirt] = route
                dirt += 1
        while dirt > 0:
            place = _behind(shop, dirty, dirt, left)
            route = dirty[place]
            first, hops, at = shop.hop_ptr[route], shop.hop_ptr[route + 1] - shop.hop_ptr[route], shop.queue_ptr[route]
            ready = now
            if waiting[route] > 0:
                _timing(shop, wait_job[at], begin, until)
                for h in range(hops):
                    link = shop.hop_link[first + h]
                    ready = max(ready, free_from(held, link, now + begin[h], now + until[h]) - begin[h])
            if q_size + 2 >= len(q_time):
                q_time, q_what = _grown(q_time, q_size), _grown(q_what, q_size)
            if ready > now and (retry_at[route] < 0 or ready < retry_at[route]):
                retry_at[route] = ready
                _sift_up(q_time, q_what, q_size, ready, np.int64(-route - 1))
                q_size += 1
            if ready > now or waiting[route] == 0:
                is_dirty[route] = False
                dirt -= 1
                dirty[place] = dirty[dirt]
                continue
            job = _take_first(wait_rank[at:], wait_job[at:], waiting[route])
            waiting[route] -= 1
            start[job] = now
            waits -= 1
            for h in range(hops):
                link = shop.hop_link[first + h]
                book(held, booked, link, now + begin[h], now + until[h])
                left[link] -= until[h] - begin[h]
                booked += 1
                finish = max(finish, now + until[h] + shop.hop_latency[first + h])
            if finish >= give_up_ps:
                return False, int(finish), start
            for k in range(shop.child_ptr[job], shop.child_ptr[job + 1]):
                child = shop.child[k]
                if q_size + 2 >= len(q_time):
                    q_time, q_what = _grown(q_time, q_size), _grown(q_what, q_size)
                hop = shop.feeding_hop[child]
                _sift_up(q_time, q_what, q_size, now + until[hop] + shop.hop_latency[first + hop], np.int64(child))
                q_size += 1
    return waits == 0, int(finish), start


@njit(cache=True)
def _behind(shop: Shop, dirty: I64, dirt: int, left: F64) -> int:
    """The place of the route one of whose links has most left to do."""
    best, most = 0, -1.0
    for i in range(dirt):
        peak, total = 0.0, 0.0
        for h in range(shop.hop_ptr[dirty[i]], shop.hop_ptr[dirty[i] + 1]):
            peak = max(peak, left[shop.hop_link[h]])
            total += left[shop.hop_link[h]]
        if peak + _ALL * total > most:
            best, most = i, peak + _ALL * total
    return best
