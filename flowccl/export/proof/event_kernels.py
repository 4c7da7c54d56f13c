"""The compiled part of the event simulation of a file (estimate.py)."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I64, Bool, Queue, compiled, grown, inner, maker, new_queue, put, take

_LEAST_SHARE = 0.01  # of the rate that a send could have alone; with less it waits
_ALMOST = 1 + 1e-6  # ratio up to which rates count as equal
_NEVER = 1 << 62


class SimulatedSteps(NamedTuple):
    """The steps of a file. `kind[n]` is the kind of a send, or -1; other steps take `local_ps[n]`.

    Step `after[k]`, for k from `after_ptr[n]`, waits for step n: in the same threadblock if `delay_ps[k]` is -1, else
    for its data, which it sees `delay_ps[k]` later, and later still by what the last send with number `last[k]` takes
    after it has left its threadblock. A send has the numbers `number[number_ptr[n]:number_ptr[n + 1]]`.
    """

    rank: I64
    kind: I64
    local_ps: I64
    start_ps: I64
    waits: I64
    after_ptr: I64
    after: I64
    delay_ps: I64
    last: I64
    number_ptr: I64
    number: I64


class SendKinds(NamedTuple):
    """The kinds of sends: their bytes, whether they have a rate of their own, and the choices of a route.

    Choice c takes route `route[c]` at most at `most_GBps[c]`, `lead_ps[c]` after the start of the send.
    """

    size_bytes: I64
    is_asked: Bool
    choice_ptr: I64
    route: I64
    lead_ps: I64
    most_GBps: F64


class SimulatedRoutes(NamedTuple):
    """Routes: hop h is on `link[h]`, `offset_ps[h]` after the first one, in segment `segment[h]` of the route."""

    hop_ptr: I64
    link: I64
    offset_ps: I64
    segment: I64
    segment_ptr: I64
    segment_GBps: F64
    overhead_ps: I64
    is_proxied: Bool
    is_limited: Bool
    limit_ptr: I64  # of links
    limit: I64
    GBps: F64  # of links, and of limits behind them


class _Uses(NamedTuple):
    """Uses of links and limits, from `head[resource]` on, in the order in which they began."""

    head: I64
    tail: I64
    after: I64
    begin: I64
    end: I64
    rate: F64
    free: I64  # the first entry that is not used


@maker
def _no_uses(resources: int, space: int) -> _Uses:
    after = np.arange(1, space + 1)
    after[space - 1] = -1
    return _Uses(
        np.full(resources, -1, dtype=np.int64),
        np.full(resources, -1, dtype=np.int64),
        after,
        np.zeros(space, dtype=np.int64),
        np.zeros(space, dtype=np.int64),
        np.zeros(space),
        np.zeros(1, dtype=np.int64),
    )


@maker
def _more_uses(uses: _Uses) -> _Uses:
    """Return the same uses with twice the space."""
    space = len(uses.begin)
    after = grown(uses.after)
    for i in range(space, 2 * space):
        after[i] = i + 1
    after[2 * space - 1] = uses.free[0]
    uses.free[0] = space
    return _Uses(uses.head, uses.tail, after, grown(uses.begin), grown(uses.end), grown(uses.rate), uses.free)


@inner
def _add_use(uses: _Uses, resource: int, begin: int, end: int, rate: float) -> None:
    entry = uses.free[0]
    uses.free[0] = uses.after[entry]
    uses.begin[entry], uses.end[entry], uses.rate[entry], uses.after[entry] = begin, end, rate, -1
    if uses.head[resource] < 0:
        uses.head[resource] = entry
    else:
        uses.after[uses.tail[resource]] = entry
    uses.tail[resource] = entry


@inner
def _remove_past(uses: _Uses, resource: int, now: int) -> None:
    entry, previous = uses.head[resource], -1
    while entry >= 0:
        following = uses.after[entry]
        if uses.end[entry] <= now:
            if previous < 0:
                uses.head[resource] = following
            else:
                uses.after[previous] = following
            if uses.tail[resource] == entry:
                uses.tail[resource] = previous
            uses.after[entry], uses.free[0] = uses.free[0], entry
        else:
            previous = entry
        entry = following


@inner
def _sum_at(uses: _Uses, resource: int, at: int, begin: int, end: int) -> float:
    """Return the rates at a time of those uses that are between two times."""
    total = 0.0
    entry = uses.head[resource]
    while entry >= 0:
        is_between = uses.begin[entry] < end and uses.end[entry] > begin
        if is_between and uses.begin[entry] <= at and at < uses.end[entry]:
            total += uses.rate[entry]
        entry = uses.after[entry]
    return total


@inner
def _left(uses: _Uses, resource: int, most: float, begin: int, end: int) -> float:
    """Return the bandwidth that is left of a resource between two times."""
    total, count = 0.0, 0
    entry = uses.head[resource]
    while entry >= 0:
        if uses.begin[entry] < end and uses.end[entry] > begin:
            total += uses.rate[entry]
            count += 1
        entry = uses.after[entry]
    if count > 1 and total > most / 2:
        total = _sum_at(uses, resource, begin, begin, end)
        entry = uses.head[resource]
        while entry >= 0:
            if begin < uses.begin[entry] < end and uses.end[entry] > begin:
                total = max(total, _sum_at(uses, resource, uses.begin[entry], begin, end))
            entry = uses.after[entry]
    return most - total


@inner
def _next_end(uses: _Uses, resource: int, begin: int, end: int) -> int:
    """Return when the first of the uses between two times is over."""
    found, some = end, False
    entry = uses.head[resource]
    while entry >= 0:
        if uses.begin[entry] < end and uses.end[entry] > begin and (not some or uses.end[entry] < found):
            found, some = uses.end[entry], True
        entry = uses.after[entry]
    return found


@inner
def _busy_ps(size: int, rate: float) -> int:
    return int(np.ceil(size * 1000.0 / rate))


@inner
def _spans(routes: SimulatedRoutes, r: int, size: int, rate: float, resource: I64, begin: I64, end: I64) -> int:
    """Write which resources a send uses, and when, after its first byte has left; return their number."""
    count = 0
    for h in range(routes.hop_ptr[r], routes.hop_ptr[r + 1]):
        since, first = routes.offset_ps[h], routes.segment_ptr[r]
        for s in range(routes.segment[h]):
            since += _busy_ps(size, min(routes.segment_GBps[first + s], rate))
        busy = _busy_ps(size, min(routes.segment_GBps[first + routes.segment[h]], rate))
        until = since + busy + routes.overhead_ps[r]
        link = routes.link[h]
        resource[count], begin[count], end[count] = link, since, until
        count += 1
        for k in range(routes.limit_ptr[link], routes.limit_ptr[link + 1] if routes.is_limited[r] else 0):
            resource[count], begin[count], end[count] = routes.limit[k], since, until
            count += 1
    return count


@inner
def _flow_ps(routes: SimulatedRoutes, r: int, size: int, rate: float, segments: int) -> int:
    """Return the time that the bytes take on the first segments of a route."""
    first = routes.segment_ptr[r]
    total: int = routes.overhead_ps[r]
    for s in range(min(segments, routes.segment_ptr[r + 1] - first)):
        total += _busy_ps(size, min(routes.segment_GBps[first + s], rate))
    return total


@maker
def _in_turn(sends: I64, start_ps: I64, since: I64) -> I64:
    """Return sends in the order of their starts, then of the times since when they are ready, then of their numbers."""
    found = np.sort(sends)
    if len(found) > 1:
        found = found[np.argsort(since[found], kind="mergesort")]
        found = found[np.argsort(start_ps[found], kind="mergesort")]
    return found


@inner
def _complete(
    steps: SimulatedSteps, n: int, free: int, done: int, late: I64, since: I64, waits: I64, queue: Queue
) -> None:
    """Complete a step: its threadblock continues at `free`, its data has left at `done`."""
    for k in range(steps.after_ptr[n], steps.after_ptr[n + 1]):
        other, ready = steps.after[k], free
        if steps.delay_ps[k] >= 0:
            ready = done + steps.delay_ps[k]
            if steps.last[k] >= 0:
                ready += late[steps.last[k]]
        since[other] = max(since[other], ready)
        waits[other] -= 1
        if waits[other] == 0:
            put(queue, since[other], other)


@inner
def _begin_send(
    steps: SimulatedSteps,
    kinds: SendKinds,
    routes: SimulatedRoutes,
    n: int,
    c: int,
    now: int,
    rate: float,
    proxy_free: I64,
    late: I64,
    times: I64,
) -> None:
    """Set the times of a send: (start, first byte, free threadblock, end of its data)."""
    r, size, rank = kinds.route[c], kinds.size_bytes[steps.kind[n]], steps.rank[n]
    start = max(now, proxy_free[rank]) if routes.is_proxied[r] else now
    flow = start + kinds.lead_ps[c]
    done = flow + _flow_ps(routes, r, size, rate, 1 << 30)
    free = flow + _flow_ps(routes, r, size, rate, 1)
    if routes.is_proxied[r]:
        proxy_free[rank] = flow
        free = now
    else:
        for k in range(steps.number_ptr[n], steps.number_ptr[n + 1]):
            late[steps.number[k]] = done - free
    times[0], times[1], times[2], times[3] = start, flow, free, done


@inner
def _share(
    kinds: SendKinds,
    routes: SimulatedRoutes,
    kind: int,
    c: int,
    by: int,
    sharing: I64,
    resource: I64,
    low: I64,
    high: I64,
) -> None:
    """Count a send at each resource that it uses, once each, or take it away."""
    spans = _spans(routes, kinds.route[c], kinds.size_bytes[kind], kinds.most_GBps[c], resource, low, high)
    for i in range(spans):
        is_new = True
        for j in range(i):
            is_new &= resource[j] != resource[i]
        if is_new and (by > 0 or sharing[resource[i]] > 0):
            sharing[resource[i]] += by


@inner
def _clear(
    kinds: SendKinds, routes: SimulatedRoutes, kind: int, sharing: I64, resource: I64, low: I64, high: I64
) -> None:
    """Set the counts of all resources that a send of a kind uses to 0."""
    c = kinds.choice_ptr[kind]
    spans = _spans(routes, kinds.route[c], kinds.size_bytes[kind], kinds.most_GBps[c], resource, low, high)
    for i in range(spans):
        sharing[resource[i]] = 0


@compiled
def simulate(
    steps: SimulatedSteps,
    kinds: SendKinds,
    routes: SimulatedRoutes,
    ranks: int,
    numbers: int,
    most_spans: int,
    keeps_starts: bool,
    in_turn: bool,
) -> tuple[I64, I64, int]:
    """Return when each step begins and ends, and how many steps are complete at the end."""
    count, resources = len(steps.rank), len(routes.GBps)
    begin, end = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    since, waits = np.zeros(count, dtype=np.int64), steps.waits.copy()
    proxy_free, late = np.zeros(ranks, dtype=np.int64), np.zeros(numbers, dtype=np.int64)
    sharing, uses = np.zeros(resources, dtype=np.int64), _no_uses(resources, 1024)
    resource, low, high = np.empty(most_spans, np.int64), np.empty(most_spans, np.int64), np.empty(most_spans, np.int64)
    left, times = np.empty(most_spans), np.empty(4, dtype=np.int64)
    sends, completed = np.empty(64, dtype=np.int64), 0
    queue = new_queue(count + 16)
    for n in range(count):
        if waits[n] == 0:
            put(queue, 0, n)
    while queue.size[0] > 0:
        now, ready = queue.time[0], 0
        while queue.size[0] > 0 and queue.time[0] == now:
            n = take(queue)
            if steps.kind[n] < 0:
                begin[n], end[n] = now, now + steps.local_ps[n]
                completed += 1
                _complete(steps, n, end[n], end[n], late, since, waits, queue)
            else:
                if ready == len(sends):
                    sends = grown(sends)
                sends[ready] = n
                ready += 1
        if ready == 0:
            continue
        order, size = _in_turn(sends[:ready], steps.start_ps, since), 0
        for n in order:
            if keeps_starts and steps.start_ps[n] > now:
                put(queue, steps.start_ps[n], n)
                continue
            order[size] = n
            size += 1
            if not kinds.is_asked[steps.kind[n]] and not in_turn:
                _share(kinds, routes, steps.kind[n], kinds.choice_ptr[steps.kind[n]], 1, sharing, resource, low, high)
        for n in order[:size]:
            kind, wake, started = steps.kind[n], _NEVER, False
            asked = in_turn or kinds.is_asked[kind]
            last = kinds.choice_ptr[kind + 1] if asked else kinds.choice_ptr[kind] + 1
            for c in range(kinds.choice_ptr[kind], last):
                r, most = kinds.route[c], kinds.most_GBps[c]
                spans = _spans(routes, r, kinds.size_bytes[kind], most, resource, low, high)
                first = (max(now, proxy_free[steps.rank[n]]) if routes.is_proxied[r] else now) + kinds.lead_ps[c]
                rate = most
                for i in range(spans):
                    _remove_past(uses, resource[i], now)
                    left[i] = _left(uses, resource[i], routes.GBps[resource[i]], first + low[i], first + high[i])
                    if not asked:
                        left[i] /= max(sharing[resource[i]], 1)
                    rate = min(rate, left[i])
                if rate < (most / _ALMOST if asked else most * _LEAST_SHARE):
                    soonest = _NEVER
                    for i in range(spans):
                        if left[i] < most:
                            over = _next_end(uses, resource[i], first + low[i], first + high[i])
                            soonest = min(soonest, over - low[i] - first + now)
                    wake = min(wake, max(soonest, now + 1))
                    continue
                started = True
                if asked:  # exactly as planned: a lower rate by rounding would end a picosecond later
                    rate = most
                _share(kinds, routes, kind, c, -1, sharing, resource, low, high)
                _begin_send(steps, kinds, routes, n, c, now, rate, proxy_free, late, times)
                spans = _spans(routes, r, kinds.size_bytes[kind], rate, resource, low, high)
                for i in range(spans):
                    if uses.free[0] < 0:
                        uses = _more_uses(uses)
                    _add_use(uses, resource[i], times[1] + low[i], times[1] + high[i], rate)
                begin[n], end[n] = times[0], max(times[2], times[3])
                completed += 1
                _complete(steps, n, times[2], times[3], late, since, waits, queue)
                break
            if not started:
                put(queue, wake, n)
        if not in_turn:
            for n in order[:size]:
                _clear(kinds, routes, steps.kind[n], sharing, resource, low, high)
    return begin, end, completed
