"""The compiled part of the event simulation of a file (estimate.py)."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I64, Bool, Queue, compiled, inner, maker, new_queue, put, take
from flowccl.schedule.generation.reservation_kernels import (
    Reservations,
    most_used,
    next_end,
    nothing_reserved,
    purge,
    reserve,
    with_space,
)

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
    found, gap = sends.copy(), len(sends) // 2
    while gap:  # Shell's sort
        for i in range(gap, len(found)):
            n, j = found[i], i
            while j >= gap and _is_earlier(n, found[j - gap], start_ps, since):
                found[j] = found[j - gap]
                j -= gap
            found[j] = n
        gap //= 2
    return found


@inner
def _is_earlier(n: int, other: int, start_ps: I64, since: I64) -> bool:
    if start_ps[n] != start_ps[other]:
        return bool(start_ps[n] < start_ps[other])
    return bool(since[n] < since[other] or (since[n] == since[other] and n < other))


class _SimulationState(NamedTuple):
    """The state of a simulation, and arrays that are written again for each send."""

    begin: I64  # of each step
    end: I64
    since: I64  # when each step could begin
    waits: I64  # the steps that each step waits for
    completed: I64  # one number
    proxy_free: I64  # of each rank
    late: I64  # of each number: how much later than its threadblock the last send was done
    sharing: I64  # of each link and limit: sends that wait for it at the current time
    resource: I64  # of a send: what it uses, from when and until when after its first byte
    low: I64
    high: I64
    left: F64  # the bandwidth that is left there
    times: I64


@maker
def _not_begun(steps: SimulatedSteps, ranks: int, numbers: int, resources: int, spans: int) -> _SimulationState:
    count = len(steps.rank)
    return _SimulationState(
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
        steps.waits.copy(),
        np.zeros(1, dtype=np.int64),
        np.zeros(ranks, dtype=np.int64),
        np.zeros(numbers, dtype=np.int64),
        np.zeros(resources, dtype=np.int64),
        np.empty(spans, dtype=np.int64),
        np.empty(spans, dtype=np.int64),
        np.empty(spans, dtype=np.int64),
        np.empty(spans),
        np.empty(4, dtype=np.int64),
    )


@inner
def _complete(steps: SimulatedSteps, run: _SimulationState, n: int, free: int, done: int, queue: Queue) -> None:
    """Complete a step: its threadblock continues at `free`, its data has left at `done`."""
    run.completed[0] += 1
    for k in range(steps.after_ptr[n], steps.after_ptr[n + 1]):
        other, ready = steps.after[k], free
        if steps.delay_ps[k] >= 0:
            ready = done + steps.delay_ps[k]
            if steps.last[k] >= 0:
                ready += run.late[steps.last[k]]
        run.since[other] = max(run.since[other], ready)
        run.waits[other] -= 1
        if run.waits[other] == 0:
            put(queue, run.since[other], other)


@inner
def _begin_send(
    steps: SimulatedSteps,
    kinds: SendKinds,
    routes: SimulatedRoutes,
    run: _SimulationState,
    n: int,
    c: int,
    now: int,
    rate: float,
) -> None:
    """Set the times of a send: (start, first byte, free threadblock, end of its data)."""
    r, size, rank = kinds.route[c], kinds.size_bytes[steps.kind[n]], steps.rank[n]
    start = max(now, run.proxy_free[rank]) if routes.is_proxied[r] else now
    flow = start + kinds.lead_ps[c]
    done = flow + _flow_ps(routes, r, size, rate, 1 << 30)
    free = flow + _flow_ps(routes, r, size, rate, 1)
    if routes.is_proxied[r]:
        run.proxy_free[rank] = flow
        free = now
    else:
        for k in range(steps.number_ptr[n], steps.number_ptr[n + 1]):
            run.late[steps.number[k]] = done - free
    run.times[0], run.times[1], run.times[2], run.times[3] = start, flow, free, done


@inner
def _used_by(kinds: SendKinds, routes: SimulatedRoutes, run: _SimulationState, kind: int, c: int, rate: float) -> int:
    """Write what a send of a kind uses on its route, at a rate; return how much that is."""
    return _spans(routes, kinds.route[c], kinds.size_bytes[kind], rate, run.resource, run.low, run.high)


@inner
def _share(kinds: SendKinds, routes: SimulatedRoutes, run: _SimulationState, kind: int, c: int, by: int) -> None:
    """Count a send at each resource that it uses, once each, or take it away."""
    for i in range(_used_by(kinds, routes, run, kind, c, kinds.most_GBps[c])):
        is_new = True
        for j in range(i):
            is_new &= run.resource[j] != run.resource[i]
        if is_new and (by > 0 or run.sharing[run.resource[i]] > 0):
            run.sharing[run.resource[i]] += by


@inner
def _clear(kinds: SendKinds, routes: SimulatedRoutes, run: _SimulationState, kind: int) -> None:
    """Set the counts of all resources that a send of a kind uses to 0."""
    c = kinds.choice_ptr[kind]
    for i in range(_used_by(kinds, routes, run, kind, c, kinds.most_GBps[c])):
        run.sharing[run.resource[i]] = 0


@inner
def _ready_sends(steps: SimulatedSteps, run: _SimulationState, queue: Queue, sends: I64, now: int) -> int:
    """Do the steps that are ready and no sends; write the sends that are ready and return their number."""
    ready = 0
    while queue.size[0] > 0 and queue.time[0] == now:
        n = take(queue)
        if steps.kind[n] < 0:
            run.begin[n], run.end[n] = now, now + steps.local_ps[n]
            _complete(steps, run, n, run.end[n], run.end[n], queue)
        else:
            sends[ready] = n
            ready += 1
    return ready


@inner
def _left_between(uses: Reservations, resource: int, most: float, begin: int, end: int) -> float:
    """Return the bandwidth that is left of a resource between two times."""
    total, count, cell = 0.0, 0, uses.head[resource]
    while cell >= 0:
        if uses.since[cell] < end and uses.until[cell] > begin:
            total += uses.rate[cell]
            count += 1
        cell = uses.following[cell]
    if count > 1 and total > most / 2:
        total = most_used(uses, resource, begin, end)
    return most - total


@inner
def _rate_now(
    steps: SimulatedSteps,
    kinds: SendKinds,
    routes: SimulatedRoutes,
    run: _SimulationState,
    uses: Reservations,
    n: int,
    c: int,
    now: int,
    asked: bool,
) -> tuple[float, int]:
    """The rate at which a send can start on a route now, and -1; or 0 and when to try again."""
    r, most = kinds.route[c], kinds.most_GBps[c]
    spans = _used_by(kinds, routes, run, steps.kind[n], c, most)
    first = (max(now, run.proxy_free[steps.rank[n]]) if routes.is_proxied[r] else now) + kinds.lead_ps[c]
    rate = most
    for i in range(spans):
        at, low, high = run.resource[i], first + run.low[i], first + run.high[i]
        purge(uses, at, now)
        run.left[i] = _left_between(uses, at, routes.GBps[at], low, high)
        if not asked:
            run.left[i] /= max(run.sharing[at], 1)
        rate = min(rate, run.left[i])
    if rate >= (most / _ALMOST if asked else most * _LEAST_SHARE):
        return (most if asked else rate), -1  # as planned: a lower rate by rounding would end a picosecond later
    soonest = _NEVER
    for i in range(spans):
        if run.left[i] < most:
            over = next_end(uses, run.resource[i], first + run.low[i], first + run.high[i])
            soonest = min(soonest, (over if over >= 0 else first + run.high[i]) - run.low[i] - first + now)
    return 0.0, max(soonest, now + 1)


@inner
def _start_send(
    steps: SimulatedSteps,
    kinds: SendKinds,
    routes: SimulatedRoutes,
    run: _SimulationState,
    uses: Reservations,
    queue: Queue,
    n: int,
    c: int,
    now: int,
    rate: float,
) -> None:
    """Start a send at a rate; `uses` has space for it."""
    _share(kinds, routes, run, steps.kind[n], c, -1)
    _begin_send(steps, kinds, routes, run, n, c, now, rate)
    flow, free, done = run.times[1], run.times[2], run.times[3]
    for i in range(_used_by(kinds, routes, run, steps.kind[n], c, rate)):
        reserve(uses, run.resource[i], flow + run.low[i], flow + run.high[i], rate)
    run.begin[n], run.end[n] = run.times[0], max(free, done)
    _complete(steps, run, n, free, done, queue)


@inner
def _due(steps: SimulatedSteps, queue: Queue, order: I64, now: int, keeps_starts: bool) -> int:
    """Put sends that keep a later start back into the queue; write the others first, and return their number."""
    size = 0
    for n in order:
        if keeps_starts and steps.start_ps[n] > now:
            put(queue, steps.start_ps[n], n)
        else:
            order[size] = n
            size += 1
    return size


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
    count = len(steps.rank)
    run = _not_begun(steps, ranks, numbers, len(routes.GBps), most_spans)
    uses = nothing_reserved(len(routes.GBps), 1024)
    sends, queue = np.empty(count, dtype=np.int64), new_queue(count + 16)
    for n in range(count):
        if run.waits[n] == 0:
            put(queue, 0, n)
    while queue.size[0] > 0:
        now = queue.time[0]
        ready = _ready_sends(steps, run, queue, sends, now)
        if ready == 0:
            continue
        order = _in_turn(sends[:ready], steps.start_ps, run.since)
        order = order[: _due(steps, queue, order, now, keeps_starts)]
        for n in order:
            if not kinds.is_asked[steps.kind[n]] and not in_turn:
                _share(kinds, routes, run, steps.kind[n], kinds.choice_ptr[steps.kind[n]], 1)
        for n in order:
            kind, wake = steps.kind[n], _NEVER
            asked = in_turn or kinds.is_asked[kind]
            for c in range(kinds.choice_ptr[kind], kinds.choice_ptr[kind + 1] if asked else kinds.choice_ptr[kind] + 1):
                rate, again = _rate_now(steps, kinds, routes, run, uses, n, c, now, asked)
                if again < 0:
                    if uses.used[0] + most_spans > len(uses.since):
                        uses = with_space(uses, most_spans)
                    _start_send(steps, kinds, routes, run, uses, queue, n, c, now, rate)
                    wake = -1
                    break
                wake = min(wake, again)
            if wake >= 0:
                put(queue, wake, n)
        if not in_turn:
            for n in order:
                _clear(kinds, routes, run, steps.kind[n])
    return run.begin, run.end, run.completed[0]
