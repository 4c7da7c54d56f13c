"""When and at which rate a transfer occupies the links of its route, and whether these are free."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I64, inlined, inner, maker
from flowccl.methods.greedy.inputs import GreedyNetwork


class Hops(NamedTuple):
    """The hops of the current route: the interval in which each occupies its link, and its rate."""

    begin: I64
    until: I64
    GBps: F64


@maker
def new_hops(net: GreedyNetwork) -> Hops:
    """Space for the longest route."""
    longest = 1
    for route in range(len(net.hop_ptr) - 1):
        longest = max(longest, net.hop_ptr[route + 1] - net.hop_ptr[route])
    return Hops(np.zeros(longest, dtype=np.int64), np.zeros(longest, dtype=np.int64), np.zeros(longest))


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
def route_wait(net: GreedyNetwork, free_at: I64, hops: Hops, route: int, now: int) -> int:
    """0 if the links are free for all hops that were filled in, else the time at which to try again."""
    wait = np.int64(0)
    first = net.hop_ptr[route]
    for h in range(first, net.hop_ptr[route + 1]):
        link, begin = net.hop_link[h], hops.begin[h - first]
        if free_at[link] > begin:
            wait = max(wait, now + free_at[link] - begin)
    return int(wait)
