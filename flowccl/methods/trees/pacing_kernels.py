"""Compiled loops of dispatching by the remaining work of links."""

from flowccl.compiled import F64, I64, Queue, compiled, inner, lacks_space, larger
from flowccl.schedule.generation.job_shop_kernels import (
    Bookings,
    Shop,
    ShopState,
    all_hops,
    first_jobs,
    most_events,
    new_shop_state,
    start_next,
    take_events,
)

_ALL = 1e-3  # weight of all links of a route, beside its link with most work


@compiled
def dispatch_balanced(shop: Shop, rank: I64, work: F64, give_up_ps: int) -> tuple[bool, int, I64]:
    """List scheduling: of the free routes, the one whose links have most work left; there the least rank.

    `work` is the total time that each link is busy. Returns (done, completion time, start of every job).
    """
    left, state, bookings = work.copy(), new_shop_state(shop), all_hops(shop, len(work))
    queue, events = first_jobs(shop), most_events(shop)
    while not _advance(shop, state, bookings, queue, rank, left, events, give_up_ps):
        queue = larger(queue)
    done = state.left[0] == 0 and state.finish[0] < give_up_ps
    return done, state.finish[0], state.start


@inner
def _advance(
    shop: Shop, state: ShopState, bookings: Bookings, queue: Queue, rank: I64, left: F64, events: int, give_up_ps: int
) -> bool:
    """Advance until all jobs are done or it is too late; False if the queue must be enlarged first."""
    while queue.size[0] > 0 or state.size[0] > 0:
        if state.size[0] == 0:
            take_events(shop, state, queue, rank)
        if lacks_space(queue, events):
            return False
        place = _most_loaded(shop, state, left)
        route = state.route[place]
        if not start_next(shop, state, bookings, queue, route):
            state.marked[route] = False
            state.size[0] -= 1
            state.route[place] = state.route[state.size[0]]
            continue
        for h in range(shop.hop_ptr[route], shop.hop_ptr[route + 1]):
            i = h - shop.hop_ptr[route]
            left[shop.hop_link[h]] -= state.until[i] - state.begin[i]
        if state.finish[0] >= give_up_ps:
            break
    return True


@inner
def _most_loaded(shop: Shop, state: ShopState, left: F64) -> int:
    """The index of the route with the link that has most work left."""
    best, most = 0, -1.0
    for i in range(state.size[0]):
        peak, total = 0.0, 0.0
        for h in range(shop.hop_ptr[state.route[i]], shop.hop_ptr[state.route[i] + 1]):
            peak = max(peak, left[shop.hop_link[h]])
            total += left[shop.hop_link[h]]
        if peak + _ALL * total > most:
            best, most = i, peak + _ALL * total
    return best
