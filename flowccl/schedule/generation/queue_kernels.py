"""List scheduling of transfers with precedences, where a link may have several lanes and each link has a queue."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import (
    I32,
    I64,
    Bool,
    Queue,
    compiled,
    inner,
    lacks_space,
    larger,
    maker,
    new_queue,
    put,
    take,
)
from flowccl.schedule.generation.pairing_kernels import meld, without_top

NEVER = np.iinfo(np.int64).max


class QueuedJobs(NamedTuple):
    """Transfers to schedule, the least `rank` first where several wait.

    `after[ptr[i]:ptr[i + 1]]` start no earlier than `lag` after transfer i, and none before `soonest`; where one would
    start later than `latest`, the search ends. Hop h of a transfer occupies a lane of its link from `hop_from` to
    `hop_to` after the start; a join, which only waits for others, has no hops. Transfers of one `kind` use the same
    links at the same times after their start.
    """

    rank: I64
    kind: I64
    ptr: I64
    after: I64
    lag: I64
    soonest: I64
    latest: I64
    hop_ptr: I64
    hop_link: I32
    hop_from: I64
    hop_to: I64
    lane_ptr: I64


class Waiting(NamedTuple):
    """The transfers that wait, in pairing heaps: of each kind the first one in the queue of a link, the others apart.

    So a link that becomes free looks at few of the transfers that wait for it. A former first one is set `aside`, on a
    stack of its kind: it leaves the queue of its link when that link looks at it, or becomes the first one again.
    """

    rank: I64
    child: I64
    sibling: I64
    first: I64  # of each link: the first transfer in its queue, or -1
    others: I64  # of each kind: the first of those that are in no queue of a link
    leader: I64  # of each kind: the one in the queue of a link
    top: I64  # of each kind: the last one set aside
    below: I64  # the one set aside before it
    aside: Bool


class LaneTimes(NamedTuple):
    """When the lanes of links are free: after their last transfer, and in the one gap before it that is known."""

    ptr: I64
    free_at: I64
    gap_from: I64
    gap_to: I64


@inner
def _merged(waiting: Waiting, one: int, other: int) -> int:
    """Merge two heaps of transfers, each given by its first one; return the first of both."""
    return meld(waiting.child, waiting.sibling, waiting.rank, one, other)


@inner
def _without_first(waiting: Waiting, first: int) -> int:
    """Remove the first transfer of a heap; return the next one, or -1."""
    return without_top(waiting.child, waiting.sibling, waiting.rank, first)


@inner
def lane_of(lanes: LaneTimes, link: int, begin: int, end: int) -> tuple[int, int]:
    """The lane of a link that is soonest free from `begin` to `end`, and how much later that is.

    Of lanes that are free as soon, the one that was idle for the shortest time.
    """
    best, least, since = lanes.ptr[link], NEVER, -1
    for lane in range(lanes.ptr[link], lanes.ptr[link + 1]):
        idle = lanes.free_at[lane]
        later = max(idle - begin, 0)
        if later > 0:
            shift = max(lanes.gap_from[lane] - begin, 0)
            if end + shift <= lanes.gap_to[lane]:
                idle, later = lanes.gap_from[lane], shift
        if later < least or (later == least and idle > since):
            best, least, since = lane, later, idle
    return best, least


@inner
def occupy(lanes: LaneTimes, jobs: QueuedJobs, i: int, now: int) -> None:
    """Transfer i starts: each lane keeps the last gap in which one more as long would fit."""
    for h in range(jobs.hop_ptr[i], jobs.hop_ptr[i + 1]):
        begin, end = now + jobs.hop_from[h], now + jobs.hop_to[h]
        lane = lane_of(lanes, jobs.hop_link[h], begin, end)[0]
        takes = end - begin
        if begin >= lanes.free_at[lane]:
            if begin - lanes.free_at[lane] >= takes:
                lanes.gap_from[lane], lanes.gap_to[lane] = lanes.free_at[lane], begin
            lanes.free_at[lane] = end
        elif begin < lanes.gap_to[lane]:
            if lanes.gap_to[lane] - end >= takes:
                lanes.gap_from[lane] = end
            else:
                lanes.gap_to[lane] = begin


@inner
def blocked(lanes: LaneTimes, jobs: QueuedJobs, i: int, now: int) -> tuple[int, int]:
    """The link that lets transfer i wait longest, and until when; -1 where it can start now."""
    until, which = now, -1
    for h in range(jobs.hop_ptr[i], jobs.hop_ptr[i + 1]):
        later = lane_of(lanes, jobs.hop_link[h], now + jobs.hop_from[h], now + jobs.hop_to[h])[1]
        if now + later > until:
            until, which = now + later, jobs.hop_link[h]
    return which, until


@inner
def _join(jobs: QueuedJobs, waiting: Waiting, i: int) -> int:
    """The data of transfer i is there: it joins the others of its kind (-1), or the queue of a link that it needs."""
    kind = jobs.kind[i]
    former = waiting.leader[kind]
    if former >= 0 and jobs.rank[i] > jobs.rank[former]:
        waiting.others[kind] = _merged(waiting, waiting.others[kind], i)
        return -1
    if former >= 0:
        waiting.aside[former], waiting.below[former], waiting.top[kind] = True, waiting.top[kind], former
    waiting.leader[kind] = i
    link: int = jobs.hop_link[jobs.hop_ptr[i]]
    waiting.first[link] = _merged(waiting, waiting.first[link], i)
    return link


@inner
def _follow(jobs: QueuedJobs, waiting: Waiting, link: int, kind: int) -> None:
    """A transfer has left the queue of a link and started: the next one of its kind takes its place."""
    while waiting.top[kind] >= 0 and not waiting.aside[waiting.top[kind]]:
        waiting.top[kind] = waiting.below[waiting.top[kind]]
    former, following = waiting.top[kind], waiting.others[kind]
    waiting.leader[kind] = following
    if former >= 0 and (following < 0 or jobs.rank[former] < jobs.rank[following]):
        waiting.leader[kind], waiting.top[kind] = former, waiting.below[former]
        waiting.aside[former] = False
    elif following >= 0:
        waiting.others[kind] = _without_first(waiting, following)
        waiting.first[link] = _merged(waiting, waiting.first[link], following)


@inner
def _look(
    jobs: QueuedJobs, waiting: Waiting, lanes: LaneTimes, due: I64, events: Queue, link: int, now: int
) -> tuple[bool, bool]:
    """A link looks at the first transfer of its queue; return whether that left the queue, and whether it started.

    A transfer that cannot start waits in the queue of the link that is free last.
    """
    i = waiting.first[link]
    kind = jobs.kind[i]
    if waiting.aside[i]:
        waiting.aside[i] = False
        waiting.first[link] = _without_first(waiting, i)
        waiting.others[kind] = _merged(waiting, waiting.others[kind], i)
        return True, False
    which, until = blocked(lanes, jobs, i, now)
    if which >= 0 and until < due[which]:
        due[which] = until
        put(events, until, -1 - which)
    if which == link:
        return False, False
    waiting.first[link] = _without_first(waiting, i)
    if which >= 0:
        waiting.first[which] = _merged(waiting, waiting.first[which], i)
        return True, False
    _follow(jobs, waiting, link, kind)
    occupy(lanes, jobs, i, now)
    return True, True


@inner
def release(jobs: QueuedJobs, earliest: I64, missing: I64, events: Queue, i: int, now: int) -> None:
    """Transfer i has started: those that wait for nothing else have their data, now or later."""
    for e in range(jobs.ptr[i], jobs.ptr[i + 1]):
        j = jobs.after[e]
        earliest[j] = max(earliest[j], now + jobs.lag[e])
        missing[j] -= 1
        if missing[j] == 0:
            put(events, max(earliest[j], now), j)


@maker
def nothing(length: int) -> I64:
    """No transfers: -1 in all places."""
    return np.full(length, -1, np.int64)


@maker
def predecessors(jobs: QueuedJobs) -> I64:
    """For each transfer, how many others it waits for."""
    missing = np.zeros(len(jobs.rank), np.int64)
    for k in range(len(jobs.after)):
        missing[jobs.after[k]] += 1
    return missing


@maker
def first_events(jobs: QueuedJobs, missing: I64) -> Queue:
    """The transfers that wait for no others."""
    events = new_queue(2 * len(missing) + len(jobs.lane_ptr) + 64)
    for i in range(len(missing)):
        if missing[i] == 0:
            put(events, jobs.soonest[i], i)
    return events


@maker
def free_lanes(jobs: QueuedJobs) -> LaneTimes:
    """All lanes are free."""
    width = jobs.lane_ptr[-1]
    return LaneTimes(jobs.lane_ptr, np.zeros(width, np.int64), np.zeros(width, np.int64), np.zeros(width, np.int64))


class QueueProgress(NamedTuple):
    """Where a run is; the last four are one number each."""

    start: I64
    earliest: I64
    missing: I64  # transfers that must come before each one
    due: I64  # when each link looks at its queue next
    left: I64  # transfers that have not started; -1: one would have started too late
    now: I64
    looks: I64  # whether all events of the time have been taken, and links look at their queues
    most: I64  # events that follow a transfer


@compiled
def in_queues(jobs: QueuedJobs) -> tuple[bool, I64]:
    """Starts of all transfers: each as soon as its data and links allow, the least rank first where several wait.

    A transfer may start before one that started earlier on a longer way to a link. Returns (whether all transfers
    started in time, starts).
    """
    count, links = len(jobs.rank), len(jobs.lane_ptr) - 1
    kinds, most = jobs.kind.max() + 1 if count else 0, np.int64(0)
    for i in range(count):
        most = max(most, jobs.ptr[i + 1] - jobs.ptr[i])
    waiting = Waiting(
        jobs.rank, nothing(count), nothing(count), nothing(links), nothing(kinds), nothing(kinds),
        nothing(kinds), nothing(count), np.zeros(count, np.bool_),
    )  # fmt: skip
    run = QueueProgress(
        nothing(count), jobs.soonest.copy(), predecessors(jobs), np.full(links, NEVER, np.int64),
        np.full(1, count), nothing(1), np.zeros(1, np.int64), np.full(1, most + 4),
    )  # fmt: skip
    lanes, events = free_lanes(jobs), first_events(jobs, run.missing)
    turns = new_queue(links + 64)  # links that look at their queues now, by their first transfer
    while not _run(jobs, waiting, lanes, run, events, turns):
        events, turns = larger(events), larger(turns)
    return run.left[0] == 0, run.start


@inner
def _run(jobs: QueuedJobs, waiting: Waiting, lanes: LaneTimes, run: QueueProgress, events: Queue, turns: Queue) -> bool:
    """Run until all transfers have started or one is too late; False if the queues must be enlarged first."""
    while True:
        if not run.looks[0]:
            if events.size[0] == 0:
                return True
            if turns.size[0] == 0:
                run.now[0] = events.time[0]
            while events.size[0] > 0 and events.time[0] == run.now[0]:
                if lacks_space(events, run.most[0]) or lacks_space(turns, 4):
                    return False
                _take_event(jobs, waiting, run, events, turns)
            run.looks[0] = 1
        while turns.size[0] > 0:
            if lacks_space(events, run.most[0]) or lacks_space(turns, 4):
                return False
            asked, link = turns.time[0], take(turns)
            i = waiting.first[link]
            if i < 0 or jobs.rank[i] != asked:
                continue
            has_left, has_started = _look(jobs, waiting, lanes, run.due, events, link, run.now[0])
            if has_started and run.now[0] > jobs.latest[i]:
                run.left[0] = -1
                return True
            if has_started:
                _start(jobs, run, events, i)
            if has_left and waiting.first[link] >= 0:
                put(turns, jobs.rank[waiting.first[link]], link)
        run.looks[0] = 0


@inner
def _take_event(jobs: QueuedJobs, waiting: Waiting, run: QueueProgress, events: Queue, turns: Queue) -> None:
    """Take an event: a transfer has its data, or a link looks at its queue again."""
    code = take(events)
    if code >= 0 and jobs.hop_ptr[code] == jobs.hop_ptr[code + 1]:
        _start(jobs, run, events, code)
        return
    link = _join(jobs, waiting, code) if code >= 0 else -1 - code
    if code < 0:
        if run.due[link] != run.now[0]:
            return
        run.due[link] = NEVER
    if link >= 0 and waiting.first[link] >= 0:
        put(turns, jobs.rank[waiting.first[link]], link)


@inner
def _start(jobs: QueuedJobs, run: QueueProgress, events: Queue, i: int) -> None:
    """Transfer i starts now."""
    run.start[i] = run.now[0]
    run.left[0] -= 1
    release(jobs, run.earliest, run.missing, events, i, run.now[0])


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
