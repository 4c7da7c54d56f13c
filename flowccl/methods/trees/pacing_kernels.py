"""Compiled loops of the shop: jobs worked off so that no link falls behind."""

from flowccl.compiled import F64, I64, Queue, compiled, inner, lacks_room, larger
from flowccl.schedule.generation.job_shop_kernels import (
    Bookings,
    Floor,
    Shop,
    all_hops,
    first_jobs,
    gather,
    most_events,
    new_floor,
    start_next,
)

_ALL = 1e-3  # weight of all links of a route beside the one with most to do


@compiled
def work_evenly(shop: Shop, rank: I64, work: F64, give_up_ps: int) -> tuple[bool, int, I64]:
    """List scheduling: of the routes that are free, the one whose links have most left to do; there the least rank.

    `work` is how long each link is busy in all. Returns (done, finish, start of every job).
    """
    left, floor, held = work.copy(), new_floor(shop), all_hops(shop, len(work))
    queue, events = first_jobs(shop), most_events(shop)
    while not _go_on(shop, floor, held, queue, rank, left, events, give_up_ps):
        queue = larger(queue)
    done = floor.left[0] == 0 and floor.finish[0] < give_up_ps
    return done, floor.finish[0], floor.start


@inner
def _go_on(
    shop: Shop, floor: Floor, held: Bookings, queue: Queue, rank: I64, left: F64, events: int, give_up_ps: int
) -> bool:
    """Go on until all is done or it is too late; False where the queue must be larger first."""
    while queue.size[0] > 0 or floor.size[0] > 0:
        if floor.size[0] == 0:
            gather(shop, floor, queue, rank)
        if lacks_room(queue, events):
            return False
        place = _behind(shop, floor, left)
        route = floor.route[place]
        if not start_next(shop, floor, held, queue, route):
            floor.marked[route] = False
            floor.size[0] -= 1
            floor.route[place] = floor.route[floor.size[0]]
            continue
        for h in range(shop.hop_ptr[route], shop.hop_ptr[route + 1]):
            i = h - shop.hop_ptr[route]
            left[shop.hop_link[h]] -= floor.until[i] - floor.begin[i]
        if floor.finish[0] >= give_up_ps:
            break
    return True


@inner
def _behind(shop: Shop, floor: Floor, left: F64) -> int:
    """The place of the route one of whose links has most left to do."""
    best, most = 0, -1.0
    for i in range(floor.size[0]):
        peak, total = 0.0, 0.0
        for h in range(shop.hop_ptr[floor.route[i]], shop.hop_ptr[floor.route[i] + 1]):
            peak = max(peak, left[shop.hop_link[h]])
            total += left[shop.hop_link[h]]
        if peak + _ALL * total > most:
            best, most = i, peak + _ALL * total
    return best
