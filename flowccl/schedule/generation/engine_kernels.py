"""The list-scheduling engine, compiled: messages start in the order of a priority, when all that they need is free.

A message needs the data of the messages before it, bandwidth on every link and limit of its route, a group of
threadblocks or the proxy of its sender, and a group of its receiver that works on it after its arrival. Links and
limits are shared by rate: several messages cross a link at once while their rates add up to at most its bandwidth.
"""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import (
    F64,
    I32,
    I64,
    Bool,
    Queue,
    compiled,
    heap_pop,
    heap_push,
    inner,
    lacks_space,
    larger,
    maker,
    new_queue,
    put,
    take,
)
from flowccl.schedule.generation.engine_state_kernels import (
    Capacity,
    EngineState,
    MessageArrays,
    Turns,
    flow_ps,
    new_state,
)
from flowccl.schedule.generation.issue_kernels import has_more, least_rates, try_issue
from flowccl.schedule.generation.reservation_kernels import Reservations, nothing_reserved, purge
from flowccl.schedule.generation.resource_queue_kernels import (
    NEVER,
    ResourceQueues,
    end_turn,
    next_waiting,
    nothing_waits,
    wait,
)
from flowccl.schedule.generation.work_kernels import is_ready, try_work


class _Progress(NamedTuple):
    """Where a run is: what messages wait for, and those that are due at the current time."""

    earliest: I64
    missing: I64  # messages that must come before each message
    origin: I64  # of each message: the resource in whose turn it is tried, or -1
    turn_rank: I64  # the messages to try now, as a heap
    turn: I64
    work: I64  # the messages to work on now
    is_listed: Bool  # messages among these
    along: I64  # messages on which the work begins together
    counts: I64  # messages to try now, messages to work on now, messages that are not over


_TRIED, _WORKS, _LEFT = range(3)


@maker
def _begun(messages: MessageArrays, capacity: Capacity) -> _Progress:
    count = len(messages.rank)
    missing, counts = np.zeros(count, dtype=np.int64), np.zeros(3, dtype=np.int64)
    for k in range(len(messages.after)):
        missing[messages.after[k]] += 1
    counts[_LEFT] = count
    return _Progress(
        messages.soonest_ps.copy(),
        missing,
        np.full(count, -1, dtype=np.int64),
        np.empty(count + 1, dtype=np.int64),
        np.empty(count + 1, dtype=np.int64),
        np.empty(count + 1, dtype=np.int64),
        np.zeros(count, dtype=np.bool_),
        np.empty(max(capacity.together, count) + 1, dtype=np.int64),
        counts,
    )


@inner
def _try_now(messages: MessageArrays, run: _Progress, i: int, resource: int) -> None:
    """Let a message be tried at the current time, in the turn of a resource or of none."""
    run.origin[i] = resource
    heap_push(run.turn_rank, run.turn, run.counts[_TRIED], messages.rank[i], i)
    run.counts[_TRIED] += 1


@inner
def _let_work(messages: MessageArrays, state: EngineState, queue: Queue, i: int, left_ps: int) -> None:
    """Let the work begin that waits until a message has left; it leaves at a time."""
    for k in range(messages.work_after_ptr[i], messages.work_after_ptr[i + 1]):
        j = messages.work_after[k]
        state.to_leave[j] -= 1
        state.work_from[j] = max(state.work_from[j], left_ps)
        if state.to_leave[j] == 0 and state.arrived[j] >= 0:
            put(queue, max(state.work_from[j], state.arrived[j]), len(messages.rank) + j)


@inner
def _release(
    messages: MessageArrays, run: _Progress, queue: Queue, i: int, now: int, left_ps: int, worked_ps: int
) -> None:
    """Let the successors of a message know when it ends; those that wait for nothing else become ready."""
    for k in range(messages.after_ptr[i], messages.after_ptr[i + 1]):
        j = messages.after[k]
        if messages.from_end[k] != (left_ps >= 0):
            continue
        ready = worked_ps if worked_ps >= 0 else left_ps + messages.after_ps[k]
        run.earliest[j] = max(run.earliest[j], ready if messages.from_end[k] else now)
        run.missing[j] -= 1
        if run.missing[j] == 0:
            put(queue, max(run.earliest[j], now), j)


@inner
def _next_into(turns: Turns, queue: Queue, i: int, end: int) -> None:
    """Let the next message be reduced into the same chunk, if it has arrived."""
    turns.worked[i] = True
    other = turns.after[i]
    if other >= 0 and turns.parked[2 * other + 1]:
        turns.parked[2 * other + 1] = False
        put(queue, end, len(turns.place) // 2 + other)


@inner
def _next_turn(turns: Turns, state: EngineState, queue: Queue, item: int, now: int) -> None:
    """Let a group come to its next item, which is tried once the group is free, if it is ready."""
    place = turns.place[item]
    if place < 0:
        return
    item = turns.following[item]
    turns.head[place] = item
    if item >= 0 and turns.parked[item]:
        turns.parked[item] = False
        count = len(turns.place) // 2
        put(queue, max(now, state.group_free[place]), count * (item % 2) + item // 2)


@inner
def _note_events(
    messages: MessageArrays,
    state: EngineState,
    turns: Turns,
    waiting: ResourceQueues,
    queue: Queue,
    run: _Progress,
    now: int,
) -> None:
    """Take all events of the current time: a message is ready, it has arrived, or a resource may be free."""
    count = len(messages.rank)
    while queue.size[0] > 0 and queue.time[0] == now:
        code = take(queue)
        if code < count:
            _try_now(messages, run, code, -1)
        elif code < 2 * count:
            i = code - count
            if not state.is_done[i] and is_ready(messages, state, turns, queue, i, now):
                lead = turns.first[i] if len(turns.place) else i
                if not run.is_listed[lead]:
                    run.work[run.counts[_WORKS]] = lead
                    run.is_listed[lead] = True
                    run.counts[_WORKS] += 1
        elif waiting.event[code - 2 * count] == now:
            waiting.event[code - 2 * count] = NEVER
            i = next_waiting(waiting, messages.rank, code - 2 * count)
            if i >= 0:
                _try_now(messages, run, i, code - 2 * count)


@inner
def _begin_work(
    messages: MessageArrays,
    capacity: Capacity,
    state: EngineState,
    turns: Turns,
    queue: Queue,
    run: _Progress,
    i: int,
    now: int,
) -> tuple[int, int]:
    """Begin the work on a message and on those that go along; return their number and the end, or (-1, 0): never."""
    if state.is_done[i]:
        return 0, 0
    blocked, end, more = try_work(messages, capacity, state, turns, i, now, run.along)
    if blocked == -2:
        return -1, 0
    if blocked == 0:
        put(queue, end, len(messages.rank) + i)
    if blocked != -1:
        return 0, 0
    run.counts[_LEFT] -= more + 1
    return more + 1, end


@inner
def _issue_next(
    messages: MessageArrays,
    capacity: Capacity,
    state: EngineState,
    turns: Turns,
    table: Reservations,
    waiting: ResourceQueues,
    queue: Queue,
    run: _Progress,
    now: int,
    least: float,
) -> int:
    """Try to start the next message; return what blocks it, or -1, -2 or -3 as `try_issue` does."""
    i = heap_pop(run.turn_rank, run.turn, run.counts[_TRIED])
    run.counts[_TRIED] -= 1
    for h in range(messages.hop_ptr[i], messages.hop_ptr[i + 1]):
        purge(table, messages.hop_resource[h], now)
    blocker, again = try_issue(messages, capacity, state, turns, table, i, now, least)
    if blocker >= 0:
        wait(waiting, messages.rank, queue, blocker, i, again, blocker == run.origin[i])
    elif blocker == -3 and again >= 0:
        put(queue, again, i)
    elif blocker == -1:
        _leave(messages, state, turns, queue, run, i, now)
    return blocker


@inner
def _leave(
    messages: MessageArrays, state: EngineState, turns: Turns, queue: Queue, run: _Progress, i: int, now: int
) -> None:
    """A message has started: what waits for that, and for its arrival, goes on."""
    if len(turns.place):
        _next_turn(turns, state, queue, 2 * i, now)
    leave = now + messages.pack_ps[i] + messages.overhead_ps[i]
    gone = leave + (0 if messages.rigid[i] else flow_ps(messages.wire_bytes[i], state.rate[i]))
    _release(messages, run, queue, i, now, -1, -1)
    _let_work(messages, state, queue, i, leave)
    if messages.work_ps[i] > 0:
        put(queue, gone + messages.arrive_ps[i], len(messages.rank) + i)
    else:
        run.counts[_LEFT] -= 1
        _release(messages, run, queue, i, now, gone, -1)


@inner
def _go_on(
    messages: MessageArrays,
    capacity: Capacity,
    table: Reservations,
    waiting: ResourceQueues,
    rates: F64,
    run: _Progress,
    i: int,
    blocker: int,
    now: int,
) -> None:
    """Let a resource in whose turn a message was tried come to the next one, or end its turn."""
    resource = run.origin[i]
    if resource < 0:
        return
    j = -1
    if blocker != resource or has_more(messages, capacity, table, rates, resource, i, now):
        j = next_waiting(waiting, messages.rank, resource)
    if j >= 0:
        _try_now(messages, run, j, resource)
    else:
        end_turn(waiting, messages.rank, resource)
    run.origin[i] = -1


@inner
def _successors(messages: MessageArrays, i: int) -> int:
    """The most events that follow a message."""
    after = messages.after_ptr[i + 1] - messages.after_ptr[i]
    return int(after + messages.work_after_ptr[i + 1] - messages.work_after_ptr[i] + 4)


@compiled
def run_engine(
    messages: MessageArrays, capacity: Capacity, turns: Turns, least: float, give_up_ps: int
) -> tuple[bool, I64, F64, I32, I32, I64]:
    """Schedule all messages; return (whether all could start in time, starts, rates, issuers, receivers, work starts).

    Of the messages that wait for the same thing, the one with the least rank goes first. A message waits where it would
    get less than `least` of the rate that its route allows. The search ends where a message would start after
    `give_up_ps`.
    """
    count, links = len(messages.rank), len(capacity.bandwidth_GBps)
    state, run = new_state(messages, capacity, turns), _begun(messages, capacity)
    table = nothing_reserved(links, len(messages.hop_resource) + 1)
    waiting = nothing_waits(links + 2 * capacity.nodes, count)
    rates = least_rates(messages, capacity, least)
    queue = new_queue(4 * count + 64)
    for i in range(count):
        if run.missing[i] == 0:
            put(queue, run.earliest[i], i)
    can_start = True
    while can_start and queue.size[0] > 0 and queue.time[0] <= give_up_ps:
        now = queue.time[0]
        _note_events(messages, state, turns, waiting, queue, run, now)
        for k in range(run.counts[_WORKS]):
            i = run.work[k]
            run.is_listed[i] = False
            if lacks_space(queue, 4):
                queue = larger(queue)
            works, end = _begin_work(messages, capacity, state, turns, queue, run, i, now)
            can_start = can_start and works >= 0
            for j in run.along[: max(works, 0)]:
                while lacks_space(queue, _successors(messages, j)):
                    queue = larger(queue)
                _release(messages, run, queue, j, now, now, end)
            if works > 0 and len(turns.place):
                _next_turn(turns, state, queue, 2 * i + 1, now)
                _next_into(turns, queue, i, end)
        run.counts[_WORKS] = 0
        while can_start and run.counts[_TRIED] > 0:
            i = run.turn[0]
            while lacks_space(queue, _successors(messages, i)):
                queue = larger(queue)
            blocker = _issue_next(messages, capacity, state, turns, table, waiting, queue, run, now, least)
            can_start = blocker != -2
            _go_on(messages, capacity, table, waiting, rates, run, i, blocker, now)
    done = can_start and run.counts[_LEFT] == 0
    return done, state.start, state.rate, state.issuer, state.receiver, state.work_from
