"""When and at which rate a transfer occupies the links of its route, and whether links and limits are free."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I64, inlined, inner, maker
from flowccl.methods.greedy.inputs import GreedyNetwork


class Hops(NamedTuple):
    """The hops of the current route: the interval in which each occupies its link, and its rate."""

    begin: I64
    until: I64
    GBps: F64


class LimitUse(NamedTuple):
    """The current and future use of each limit (row)."""

    size: I64  # entries of each row
    begin: I64
    until: I64
    GBps: F64
    own: I64  # of each limit: number of hops of the current transfer that share it
    most: I64  # one number: at least the number of entries of the fullest row


@maker
def new_hops(net: GreedyNetwork) -> Hops:
    """Space for the longest route."""
    longest = 1
    for route in range(len(net.hop_ptr) - 1):
        longest = max(longest, net.hop_ptr[route + 1] - net.hop_ptr[route])
    return Hops(np.zeros(longest, dtype=np.int64), np.zeros(longest, dtype=np.int64), np.zeros(longest))


@maker
def new_limit_use(net: GreedyNetwork) -> LimitUse:
    """No entries, with space for a few per link."""
    limits = len(net.limit_GBps)
    space = 4 * len(net.link_src) + 16 if limits else 1
    time = np.empty((limits, space), dtype=np.int64)
    count = np.zeros(limits, dtype=np.int64)
    return LimitUse(count, time, time.copy(), np.empty((limits, space)), count.copy(), np.zeros(1, dtype=np.int64))


@maker
def larger_limit_use(limit_use: LimitUse) -> LimitUse:
    """The same entries in rows twice as long."""
    limits, space = limit_use.begin.shape
    time = np.empty((limits, 2 * space), dtype=np.int64)
    larger = LimitUse(limit_use.size, time, time.copy(), np.empty((limits, 2 * space)), limit_use.own, limit_use.most)
    for limit in range(limits):
        for i in range(limit_use.size[limit]):
            larger.begin[limit, i], larger.until[limit, i] = limit_use.begin[limit, i], limit_use.until[limit, i]
            larger.GBps[limit, i] = limit_use.GBps[limit, i]
    return larger


@inner
def free_route(net: GreedyNetwork, free_at: I64, pair: int, now: int) -> tuple[int, int]:
    """A route of a pair whose first segment is free now, or -1; and the time at which the first route is free."""
    soonest = -1
    for route in range(net.route_ptr[pair], net.route_ptr[pair + 1]):
        ready = now
        for h in range(net.hop_ptr[route], net.hop_ptr[route + 1]):
            if net.hop_segment[h] == 0:
                ready = max(ready, free_at[net.hop_link[h]] - net.hop_offset[h])
        if ready <= now:
            return route, ready
        if soonest < 0 or ready < soonest:
            soonest = ready
    return -1, soonest


@inner
def fill_hops(net: GreedyNetwork, route: int, size: int, at: int, hops: Hops) -> int:
    """Fill in the hops of a route for a start at `at`; return the arrival.

    A segment runs at the rate of its slowest link; where bandwidths change over time, at the lowest rate meanwhile.
    """
    first, last = net.hop_ptr[route], net.hop_ptr[route + 1] - 1
    delay = np.int64(0)
    for s in range(net.segment_ptr[route], net.segment_ptr[route + 1]):
        rate = net.segment_GBps[s]
        while True:
            busy = np.int64(np.ceil(size * 1000.0 / rate))
            lowest = rate
            for h in range(first, last + 1):
                if net.hop_segment[h] == s - net.segment_ptr[route]:
                    begin = at + net.hop_offset[h] + delay
                    hops.begin[h - first], hops.until[h - first], hops.GBps[h - first] = begin, begin + busy, rate
                    if changes(net, net.hop_link[h]):
                        lowest = _slowest(net, net.hop_link[h], begin, begin + busy, lowest)
            if lowest >= rate:
                break
            rate = lowest
        delay += busy
    return int(hops.until[last - first] + net.link_latency[net.hop_link[last]])


@inlined
def changes(net: GreedyNetwork, link: int) -> bool:
    """Whether the bandwidth of a link changes over time."""
    return bool(net.change_ptr[link + 1] - net.change_ptr[link] > 1)


@inner
def _slowest(net: GreedyNetwork, link: int, begin: int, until: int, rate: float) -> float:
    """The lowest bandwidth of a link between two times, and at most `rate`."""
    for k in range(net.change_ptr[link], net.change_ptr[link + 1]):
        after = k + 1 == net.change_ptr[link + 1] or net.change_from[k + 1] > begin
        if after and net.change_from[k] < max(until, begin + 1):
            rate = min(rate, net.change_GBps[k])
    return rate


@inner
def route_wait(net: GreedyNetwork, limit_use: LimitUse, free_at: I64, hops: Hops, route: int, now: int) -> int:
    """0 if the links and limits are free for all hops that were filled in, else the time at which to try again.

    Stores in `limit_use.own` how many hops of the route share each limit.
    """
    wait = np.int64(0)
    first = net.hop_ptr[route]
    for h in range(first, net.hop_ptr[route + 1]):
        link, begin = net.hop_link[h], hops.begin[h - first]
        if h > first and net.hop_segment[h] != net.hop_segment[h - 1]:
            limit_use.own[:] = 0  # beyond a store-and-forward switch, the hops before it have ended
        if free_at[link] > begin:
            wait = max(wait, now + free_at[link] - begin)
        elif len(limit_use.own) > 0:
            later = limit_wait(net, limit_use, link, begin, hops.until[h - first], hops.GBps[h - first])
            if later > 0:
                wait = max(wait, now + later - begin)
            count_own(net, limit_use, link)
    return int(wait)


@inner
def limit_wait(net: GreedyNetwork, limit_use: LimitUse, link: int, begin: int, until: int, rate: float) -> int:
    """0 if the limits of a link admit a hop beside the transfer's other hops, else the time at which to try again."""
    for k in range(net.limit_ptr[link], net.limit_ptr[link + 1]):
        limit = net.limit_of[k]
        space = net.limit_GBps[limit] * (1 + 1e-12)
        for i in range(limit_use.size[limit] + 1):
            at = begin if i == limit_use.size[limit] else limit_use.begin[limit, i]
            if at < begin or at >= until:
                continue
            use = rate * (1 + limit_use.own[limit])
            for j in range(limit_use.size[limit]):
                if limit_use.begin[limit, j] <= at and limit_use.until[limit, j] > at:
                    use += limit_use.GBps[limit, j]
            if use > space:
                return max(_first_end(limit_use, limit, begin), begin + 1)
    return 0


@inner
def _first_end(limit_use: LimitUse, limit: int, time: int) -> int:
    """The first time after `time` at which an entry of a limit ends; 0 if there is none."""
    soonest = np.int64(0)
    for j in range(limit_use.size[limit]):
        if limit_use.until[limit, j] > time and (soonest == 0 or limit_use.until[limit, j] < soonest):
            soonest = limit_use.until[limit, j]
    return int(soonest)


@inlined
def count_own(net: GreedyNetwork, limit_use: LimitUse, link: int) -> None:
    """Count a hop of the current transfer at the limits of its link."""
    for k in range(net.limit_ptr[link], net.limit_ptr[link + 1]):
        limit_use.own[net.limit_of[k]] += 1


@inner
def book_limits(net: GreedyNetwork, limit_use: LimitUse, link: int, begin: int, until: int, rate: float) -> None:
    """Record a hop at the limits of its link; there must be space."""
    for k in range(net.limit_ptr[link], net.limit_ptr[link + 1]):
        limit = net.limit_of[k]
        at = limit_use.size[limit]
        limit_use.begin[limit, at], limit_use.until[limit, at], limit_use.GBps[limit, at] = begin, until, rate
        limit_use.size[limit] = at + 1
        limit_use.most[0] = max(limit_use.most[0], at + 1)


@inner
def limit_use_lacks_space(net: GreedyNetwork, limit_use: LimitUse) -> bool:
    """Whether the space may not suffice for another transfer."""
    return bool(limit_use.most[0] + len(net.link_src) > limit_use.begin.shape[1] and len(limit_use.own) > 0)


@inner
def drop_ended(limit_use: LimitUse, now: int) -> None:
    """Drop the entries that have ended."""
    limit_use.most[0] = 0
    for limit in range(len(limit_use.size)):
        kept = 0
        for i in range(limit_use.size[limit]):
            if limit_use.until[limit, i] > now:
                limit_use.begin[limit, kept] = limit_use.begin[limit, i]
                limit_use.until[limit, kept] = limit_use.until[limit, i]
                limit_use.GBps[limit, kept] = limit_use.GBps[limit, i]
                kept += 1
        limit_use.size[limit] = kept
        limit_use.most[0] = max(limit_use.most[0], kept)
