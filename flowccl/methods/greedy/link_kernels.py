"""When the links of a path are held, at what rate, and whether links and limits let it in."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I64, inlined, inner, maker
from flowccl.methods.greedy.problem import Net


class Hops(NamedTuple):
    """The hops of the path in hand: from when to when each holds its link, and how fast."""

    begin: I64
    until: I64
    GBps: F64


class Shares(NamedTuple):
    """What goes over each limit (row), now or later."""

    size: I64  # entries of each row
    begin: I64
    until: I64
    GBps: F64
    own: I64  # of each limit: hops of the transfer in hand that share it
    most: I64  # one number: entries of the fullest row, or more


@maker
def new_hops(net: Net) -> Hops:
    """Space for the longest path."""
    longest = 1
    for path in range(len(net.hop_ptr) - 1):
        longest = max(longest, net.hop_ptr[path + 1] - net.hop_ptr[path])
    return Hops(np.zeros(longest, dtype=np.int64), np.zeros(longest, dtype=np.int64), np.zeros(longest))


@maker
def new_shares(net: Net) -> Shares:
    """Nothing yet, and room for a few entries of each link."""
    limits = len(net.limit_GBps)
    room = 4 * len(net.link_src) + 16 if limits else 1
    time = np.empty((limits, room), dtype=np.int64)
    count = np.zeros(limits, dtype=np.int64)
    return Shares(count, time, time.copy(), np.empty((limits, room)), count.copy(), np.zeros(1, dtype=np.int64))


@maker
def larger_shares(shares: Shares) -> Shares:
    """The same entries, in rows twice as long."""
    limits, room = shares.begin.shape
    time = np.empty((limits, 2 * room), dtype=np.int64)
    larger = Shares(shares.size, time, time.copy(), np.empty((limits, 2 * room)), shares.own, shares.most)
    for limit in range(limits):
        for i in range(shares.size[limit]):
            larger.begin[limit, i], larger.until[limit, i] = shares.begin[limit, i], shares.until[limit, i]
            larger.GBps[limit, i] = shares.GBps[limit, i]
    return larger


@inner
def free_path(net: Net, free_at: I64, pair: int, now: int) -> tuple[int, int]:
    """A path of a pair whose first links are free now, or -1; then, when the first of its paths is."""
    soonest = -1
    for path in range(net.path_ptr[pair], net.path_ptr[pair + 1]):
        ready = now
        for h in range(net.hop_ptr[path], net.hop_ptr[path + 1]):
            if net.hop_segment[h] == 0:
                ready = max(ready, free_at[net.hop_link[h]] - net.hop_offset[h])
        if ready <= now:
            return path, ready
        if soonest < 0 or ready < soonest:
            soonest = ready
    return -1, soonest


@inner
def place(net: Net, path: int, size: int, at: int, hops: Hops) -> int:
    """Fill in the hops of a path for a start at `at`; returns the arrival.

    A segment goes at the rate of its slowest link, which may be slower still where links change on the way.
    """
    first, last = net.hop_ptr[path], net.hop_ptr[path + 1] - 1
    delay = np.int64(0)
    for s in range(net.segment_ptr[path], net.segment_ptr[path + 1]):
        rate = net.segment_GBps[s]
        while True:
            hold = np.int64(np.ceil(size * 1000.0 / rate))
            lowest = rate
            for h in range(first, last + 1):
                if net.hop_segment[h] == s - net.segment_ptr[path]:
                    begin = at + net.hop_offset[h] + delay
                    hops.begin[h - first], hops.until[h - first], hops.GBps[h - first] = begin, begin + hold, rate
                    if changes(net, net.hop_link[h]):
                        lowest = _slowest(net, net.hop_link[h], begin, begin + hold, lowest)
            if lowest >= rate:
                break
            rate = lowest
        delay += hold
    return int(hops.until[last - first] + net.link_latency[net.hop_link[last]])


@inlined
def changes(net: Net, link: int) -> bool:
    """Whether the bandwidth of a link changes over time."""
    return bool(net.change_ptr[link + 1] - net.change_ptr[link] > 1)


@inner
def _slowest(net: Net, link: int, begin: int, until: int, rate: float) -> float:
    """The least bandwidth of a link that changes, between two times, and at most `rate`."""
    for k in range(net.change_ptr[link], net.change_ptr[link + 1]):
        after = k + 1 == net.change_ptr[link + 1] or net.change_from[k + 1] > begin
        if after and net.change_from[k] < max(until, begin + 1):
            rate = min(rate, net.change_GBps[k])
    return rate


@inner
def path_wait(net: Net, shares: Shares, free_at: I64, hops: Hops, path: int, now: int) -> int:
    """0 if all hops that were filled in can be as they are, else when to try again.

    Leaves in `shares.own` what the path takes of each limit.
    """
    wait = np.int64(0)
    first = net.hop_ptr[path]
    for h in range(first, net.hop_ptr[path + 1]):
        link, begin = net.hop_link[h], hops.begin[h - first]
        if h > first and net.hop_segment[h] != net.hop_segment[h - 1]:
            shares.own[:] = 0  # behind a store-and-forward switch the hops before are over
        if free_at[link] > begin:
            wait = max(wait, now + free_at[link] - begin)
        elif len(shares.own) > 0:
            later = limit_wait(net, shares, link, begin, hops.until[h - first], hops.GBps[h - first])
            if later > 0:
                wait = max(wait, now + later - begin)
            count_own(net, shares, link)
    return int(wait)


@inner
def limit_wait(net: Net, shares: Shares, link: int, begin: int, until: int, rate: float) -> int:
    """0 if the limits of a link let a hop in beside what the same transfer takes already, else when to try again."""
    for k in range(net.limit_ptr[link], net.limit_ptr[link + 1]):
        limit = net.limit_of[k]
        room = net.limit_GBps[limit] * (1 + 1e-12)
        for i in range(shares.size[limit] + 1):
            at = begin if i == shares.size[limit] else shares.begin[limit, i]
            if at < begin or at >= until:
                continue
            use = rate * (1 + shares.own[limit])
            for j in range(shares.size[limit]):
                if shares.begin[limit, j] <= at and shares.until[limit, j] > at:
                    use += shares.GBps[limit, j]
            if use > room:
                return max(_first_end(shares, limit, begin), begin + 1)
    return 0


@inner
def _first_end(shares: Shares, limit: int, time: int) -> int:
    """When the first of what goes over a limit is over after a time; 0 if nothing is."""
    soonest = np.int64(0)
    for j in range(shares.size[limit]):
        if shares.until[limit, j] > time and (soonest == 0 or shares.until[limit, j] < soonest):
            soonest = shares.until[limit, j]
    return int(soonest)


@inlined
def count_own(net: Net, shares: Shares, link: int) -> None:
    """Count a hop of the transfer in hand at the limits of its link."""
    for k in range(net.limit_ptr[link], net.limit_ptr[link + 1]):
        shares.own[net.limit_of[k]] += 1


@inner
def book_limits(net: Net, shares: Shares, link: int, begin: int, until: int, rate: float) -> None:
    """Write a hop down at the limits of its link; there must be room."""
    for k in range(net.limit_ptr[link], net.limit_ptr[link + 1]):
        limit = net.limit_of[k]
        at = shares.size[limit]
        shares.begin[limit, at], shares.until[limit, at], shares.GBps[limit, at] = begin, until, rate
        shares.size[limit] = at + 1
        shares.most[0] = max(shares.most[0], at + 1)


@inner
def shares_lack_room(net: Net, shares: Shares) -> bool:
    """Whether the hops of another transfer may not fit."""
    return bool(shares.most[0] + len(net.link_src) > shares.begin.shape[1] and len(shares.own) > 0)


@inner
def forget(shares: Shares, now: int) -> None:
    """Drop what has ended."""
    shares.most[0] = 0
    for limit in range(len(shares.size)):
        kept = 0
        for i in range(shares.size[limit]):
            if shares.until[limit, i] > now:
                shares.begin[limit, kept] = shares.begin[limit, i]
                shares.until[limit, kept] = shares.until[limit, i]
                shares.GBps[limit, kept] = shares.GBps[limit, i]
                kept += 1
        shares.size[limit] = kept
        shares.most[0] = max(shares.most[0], kept)
