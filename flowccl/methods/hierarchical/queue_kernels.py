"""List scheduling of transfers with precedences, where a link may have several lanes and each link has a queue."""

import numpy as np

from flowccl.compiled import I32, I64, Bool, compiled, inner, lacks_space, larger, new_queue, put, take

_NEVER = np.iinfo(np.int64).max


@inner
def _meld(rank: I64, child: I64, sibling: I64, one: int, other: int) -> int:
    """Merge two pairing heaps of transfers, each given by its first one; return the first of both."""
    if one < 0:
        return other
    if other < 0:
        return one
    if rank[other] < rank[one]:
        one, other = other, one
    sibling[other] = child[one]
    child[one] = other
    return one


@inner
def _without_first(rank: I64, child: I64, sibling: I64, first: int) -> int:
    """Remove the first transfer of a pairing heap; return the next one, or -1."""
    at, pairs = child[first], -1
    child[first] = -1
    while at >= 0:  # merge neighbours in pairs, then the pairs from the last to the first
        one, other = at, sibling[at]
        at = sibling[other] if other >= 0 else -1
        sibling[one] = -1
        if other >= 0:
            sibling[other] = -1
        pair = _meld(rank, child, sibling, one, other)
        sibling[pair] = pairs
        pairs = pair
    result = -1
    while pairs >= 0:
        rest = sibling[pairs]
        sibling[pairs] = -1
        result = _meld(rank, child, sibling, result, pairs)
        pairs = rest
    return result


@inner
def _lane(lane_ptr: I64, free_at: I64, gap_from: I64, gap_to: I64, link: int, begin: int, end: int) -> tuple[int, int]:
    """The lane of a link that is soonest free from `begin` to `end`, and how much later that is.

    A lane is free after its last transfer, and in the one gap before it that is known. Of lanes that are free as
    soon, the one that was idle for the shortest time.
    """
    best, least, since = lane_ptr[link], _NEVER, -1
    for lane in range(lane_ptr[link], lane_ptr[link + 1]):
        idle = free_at[lane]
        later = max(idle - begin, 0)
        if later > 0:
            shift = max(gap_from[lane] - begin, 0)
            if end + shift <= gap_to[lane]:
                idle, later = gap_from[lane], shift
        if later < least or (later == least and idle > since):
            best, least, since = lane, later, idle
    return best, least


@inner
def _occupy(free_at: I64, gap_from: I64, gap_to: I64, lane: int, begin: int, end: int) -> None:
    """Let a lane carry a transfer from `begin` to `end`; it keeps the last gap in which one more as long would fit."""
    takes = end - begin
    if begin >= free_at[lane]:
        if begin - free_at[lane] >= takes:
            gap_from[lane], gap_to[lane] = free_at[lane], begin
        free_at[lane] = end
    elif begin < gap_to[lane]:
        if gap_to[lane] - end >= takes:
            gap_from[lane] = end
        else:
            gap_to[lane] = begin


@inner
def _blocked(
    i: int,
    hop_ptr: I64,
    hop_link: I32,
    hop_from: I64,
    hop_to: I64,
    lane_ptr: I64,
    free_at: I64,
    gap_from: I64,
    gap_to: I64,
    now: int,
) -> tuple[int, int]:
    """The link that lets transfer i wait longest, and until when; -1 where it can start now."""
    until, which = now, -1
    for h in range(hop_ptr[i], hop_ptr[i + 1]):
        later = _lane(lane_ptr, free_at, gap_from, gap_to, hop_link[h], now + hop_from[h], now + hop_to[h])[1]
        if now + later > until:
            until, which = now + later, hop_link[h]
    return which, until


@compiled
def in_queues(
    rank: I64,
    kind: I64,
    ptr: I64,
    after: I64,
    lag: I64,
    hop_ptr: I64,
    hop_link: I32,
    hop_from: I64,
    hop_to: I64,
    lane_ptr: I64,
) -> tuple[bool, I64]:
    """Starts of all transfers: each as soon as its data and links allow, the least rank first where several wait.

    Transfers of one `kind` use the same links. Of these, only the first one waits in the queue of a link, the others in
    a queue of the kind: so a link that becomes free looks at few of the transfers that wait for it. A former first one
    is set `aside`: it leaves the queue of its link when that link looks at it, or becomes the first one again.

    `after[ptr[i]:ptr[i + 1]]` start no earlier than `lag` after transfer i. Hop h of a transfer occupies a lane of its
    link from `hop_from` to `hop_to` after the start, maybe before one that started earlier on a longer way to the link.
    A transfer that cannot start waits in the queue of the link that is free last. Returns (whether all transfers
    started, starts).
    """
    count, links = len(rank), len(lane_ptr) - 1
    start, earliest, missing = np.full(count, -1, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64)
    child, sibling = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    first, free_at = np.full(links, -1, np.int64), np.zeros(lane_ptr[-1], np.int64)
    gap_from, gap_to = np.zeros(lane_ptr[-1], np.int64), np.zeros(lane_ptr[-1], np.int64)
    due = np.full(links, _NEVER, np.int64)  # when each link looks at its queue next
    kinds = kind.max() + 1 if count else 0
    others, leader, top = np.full(kinds, -1, np.int64), np.full(kinds, -1, np.int64), np.full(kinds, -1, np.int64)
    aside, below = np.zeros(count, np.bool_), np.full(count, -1, np.int64)  # a stack per kind, from its `top` on
    for k in range(len(after)):
        missing[after[k]] += 1
    queue = new_queue(2 * count + 64)
    for i in range(count):
        if missing[i] == 0:
            put(queue, 0, i)
    left, turns = count, new_queue(links + 64)  # links that look at their queues now, by their first transfer
    while queue.size[0] > 0:
        now = queue.time[0]
        while queue.size[0] > 0 and queue.time[0] == now:
            code = take(queue)
            link = -1 - code
            if code < 0:
                if due[link] != now:
                    continue
                due[link] = _NEVER
            else:  # its data is there: it joins the queue of its kind, or of a link that it needs
                of = kind[code]
                former = leader[of]
                if former >= 0 and rank[code] > rank[former]:
                    others[of] = _meld(rank, child, sibling, others[of], code)
                    continue
                if former >= 0:
                    aside[former], below[former], top[of] = True, top[of], former
                leader[of] = code
                link = hop_link[hop_ptr[code]]
                first[link] = _meld(rank, child, sibling, first[link], code)
            if first[link] >= 0:
                if lacks_space(turns, 4):
                    turns = larger(turns)
                put(turns, rank[first[link]], link)
        while turns.size[0] > 0:
            if lacks_space(turns, 4):
                turns = larger(turns)
            asked = turns.time[0]
            link = take(turns)
            i = first[link]
            if i >= 0 and rank[i] == asked:
                of = kind[i]
                if aside[i]:
                    aside[i] = False
                    first[link] = _without_first(rank, child, sibling, i)
                    others[of] = _meld(rank, child, sibling, others[of], i)
                    if first[link] >= 0:
                        put(turns, rank[first[link]], link)
                    continue
                which, until = _blocked(
                    i, hop_ptr, hop_link, hop_from, hop_to, lane_ptr, free_at, gap_from, gap_to, now
                )
                if lacks_space(queue, ptr[i + 1] - ptr[i] + 4):
                    queue = larger(queue)
                if which >= 0 and until < due[which]:
                    due[which] = until
                    put(queue, until, -1 - which)
                if which == link:
                    continue
                first[link] = _without_first(rank, child, sibling, i)
                if which >= 0:
                    first[which] = _meld(rank, child, sibling, first[which], i)
                    if first[link] >= 0:
                        put(turns, rank[first[link]], link)
                    continue
                start[i] = now
                left -= 1
                while top[of] >= 0 and not aside[top[of]]:
                    top[of] = below[top[of]]
                former, following = top[of], others[of]
                leader[of] = following
                if former >= 0 and (following < 0 or rank[former] < rank[following]):
                    leader[of], top[of], aside[former] = former, below[former], False
                elif following >= 0:
                    others[of] = _without_first(rank, child, sibling, following)
                    first[link] = _meld(rank, child, sibling, first[link], following)
                for h in range(hop_ptr[i], hop_ptr[i + 1]):
                    begin, end = now + hop_from[h], now + hop_to[h]
                    lane = _lane(lane_ptr, free_at, gap_from, gap_to, hop_link[h], begin, end)[0]
                    _occupy(free_at, gap_from, gap_to, lane, begin, end)
                for e in range(ptr[i], ptr[i + 1]):
                    j = after[e]
                    earliest[j] = max(earliest[j], now + lag[e])
                    missing[j] -= 1
                    if missing[j] == 0:
                        put(queue, max(earliest[j], now), j)
                if first[link] >= 0:
                    put(turns, rank[first[link]], link)
    return left == 0, start


@compiled
def queued_tails(
    ptr: I64, after: I64, lag: I64, takes: I64, hop_ptr: I64, hop_link: I32, hop_from: I64, hop_to: I64, counts: Bool
) -> I64:
    """The tail of each transfer where the links marked in `counts` carry their transfers in the given order.

    The tail is the time from its start to the end of its last successor; a link's next transfer is a successor.
    """
    tail = takes.copy()
    behind = np.zeros(len(counts), np.int64)  # per link, the tail of the transfers that come later
    for i in range(len(takes) - 1, -1, -1):
        for k in range(ptr[i], ptr[i + 1]):
            tail[i] = max(tail[i], lag[k] + tail[after[k]])
        for h in range(hop_ptr[i], hop_ptr[i + 1]):
            if counts[hop_link[h]]:
                tail[i] = max(tail[i], hop_to[h] + behind[hop_link[h]])
        for h in range(hop_ptr[i], hop_ptr[i + 1]):
            behind[hop_link[h]] = max(behind[hop_link[h]], tail[i] - hop_from[h])
    return tail
