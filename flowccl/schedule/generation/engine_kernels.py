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
    grown,
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

ROUNDING = 5e-10  # relative error of the sum of rates: half of that of the verifier
NEVER = np.iinfo(np.int64).max


class MessageArrays(NamedTuple):
    """The messages to schedule, by number, and what they need.

    Hop h of a message occupies resource `hop_resource[h]` (a link, or a limit behind the links) `hop_weight[h]` times,
    from `hop_from_ps[h]` after the first byte left, for the time of the bytes; where the message is `rigid`, for
    `hop_for_ps[h]`, at `hop_GBps[h]`. Successor k of a message starts no earlier than `after_ps[k]` after its data is
    whole at the sender's side of the last link (`from_end[k]`), or after its start. Where the message is worked on,
    that is after the end of the work instead.
    """

    rank: I64
    soonest_ps: I64
    wire_bytes: I64
    rate_GBps: F64
    rigid: Bool
    operations: I64  # of the group that issues it
    sending_ps: I64  # of rigid messages: how long the issuer is busy with the bytes
    pack_ps: I64
    overhead_ps: I64
    work_ps: I64
    further_ps: I64  # that the work on others takes longer if the message is reduced in the same operation
    arrive_ps: I64  # from the last byte until it is whole at the end that works
    into_ptr: I64
    into: I64  # what the work reduces into, one message after the other
    source: I32
    target: I32
    peer: I32  # the other end, for the peers of a group of threadblocks
    proxied: Bool
    hop_ptr: I64
    hop_resource: I32
    hop_weight: F64
    hop_from_ps: I64
    hop_for_ps: I64
    hop_GBps: F64
    after_ptr: I64
    after: I64
    after_ps: I64
    from_end: Bool
    work_after_ptr: I64
    work_after: I64  # messages that are worked on once the message has left its sender


class Turns(NamedTuple):
    """Which groups of threadblocks issue messages and work on them, in a fixed order; empty where the engine chooses.

    Item 2 * i is the issue of message i, and item 2 * i + 1 the work on it. What is reduced into the same chunk has a
    fixed order, too. Messages that are reduced together have one item, that of the first one. What the same threadblock
    posts to a NIC also has a place, behind those of all groups: it is posted in order, and arrives in order.
    """

    place: I64  # of each item: the group of its node, as node * groups + group; -1: none
    following: I64  # of each item: the next one of its group, or -1
    head: I64  # of each place: the item whose turn it is
    parked: Bool  # items that are ready before their turn
    before: I64  # of each message: the one that is reduced into the same chunk before it, or -1
    after: I64  # of each message: the next one that is reduced into the same chunk, or -1
    worked: Bool  # messages on which the work has begun
    first: I64  # of each message: the first one that is reduced together with it
    following_in: I64  # of each message: the next one that is reduced together with it, or -1
    missing: I64  # of each first message: those that are not there yet


class Capacity(NamedTuple):
    """What there is: bandwidths of links and limits, groups of threadblocks, and the operations that a group holds."""

    bandwidth_GBps: F64
    groups: int
    receivers: int  # groups that work on a message together
    operations: int  # that a group can hold; 0: no limit
    receive_operations: int
    again_operations: int  # the same, where the group reduced into the same chunk last
    further_operations: int  # of a further message in the same operation
    together: int  # messages that one operation can reduce
    peers: int  # that a group can send to; 0: no limit
    nodes: int


class _Reservations(NamedTuple):
    head: I64  # of each resource; -1: none
    since: I64
    until: I64
    rate: F64
    following: I64
    used: I64  # one number
    free: I64  # one number


class _EngineState(NamedTuple):
    group_free: I64
    group_operations: I64
    group_peers: I64
    accumulator_free: I64
    accumulator_group: I64  # that reduced into a chunk last; -1: none
    sends_to: Bool  # (group, node)
    proxy_free: I64
    posted_until: I64  # of each threadblock that posts in turn: when its last message has crossed
    start: I64
    rate: F64
    issuer: I32
    receiver: I32
    work_from: I64
    arrived: I64  # when a message could be worked on: -1 before it has arrived
    to_leave: I64  # messages that must leave before the work on a message
    is_ready: Bool  # messages that can be worked on
    is_done: Bool  # messages on which the work has begun
    ready_into: I64  # of each chunk of a GPU: the last message that is ready to be reduced into it, or -1
    before_ready: I64  # of each message: the one that was ready for the same chunk before it, or -1


@inner
def _purge(table: _Reservations, resource: int, now: int) -> None:
    """Drop the reservations of a resource that are over."""
    before, cell = -1, table.head[resource]
    while cell >= 0:
        after = table.following[cell]
        if table.until[cell] <= now:
            if before < 0:
                table.head[resource] = after
            else:
                table.following[before] = after
            table.following[cell] = table.free[0]
            table.free[0] = cell
        else:
            before = cell
        cell = after


@inner
def _most_used(table: _Reservations, resource: int, begin: int, end: int) -> float:
    """The largest sum of rates on a resource between two times."""
    most = 0.0
    at = begin
    cell = table.head[resource]
    while True:
        total = 0.0
        other = table.head[resource]
        while other >= 0:
            if table.since[other] <= at < table.until[other]:
                total += table.rate[other]
            other = table.following[other]
        most = max(most, total)
        while cell >= 0 and not begin < table.since[cell] < end:
            cell = table.following[cell]
        if cell < 0:
            return most
        at = table.since[cell]
        cell = table.following[cell]


@inner
def _next_end(table: _Reservations, resource: int, begin: int, end: int) -> int:
    """The first time at which a reservation that overlaps an interval ends."""
    first = -1
    cell = table.head[resource]
    while cell >= 0:
        if table.since[cell] < end and table.until[cell] > begin and (first < 0 or table.until[cell] < first):
            first = table.until[cell]
        cell = table.following[cell]
    return first


@inner
def _reserve(table: _Reservations, resource: int, since: int, until: int, rate: float) -> None:
    cell = table.free[0]
    if cell >= 0:
        table.free[0] = table.following[cell]
    else:
        cell = table.used[0]
        table.used[0] += 1
    table.since[cell], table.until[cell], table.rate[cell] = since, until, rate
    table.following[cell] = table.head[resource]
    table.head[resource] = cell


@inner
def _best_group(state: _EngineState, capacity: Capacity, node: int, by: int, operations: int, peer: int) -> int:
    """The group of a node that is free at a time, with space for operations; of those, the one that waits least.

    A group that already sends to the peer comes before others. -1: none is free; -2: none has space.
    """
    best, best_free, best_known, has_space = -1, -1, False, False
    for group in range(capacity.groups):
        place = node * capacity.groups + group
        if capacity.operations and state.group_operations[place] + operations > capacity.operations:
            continue
        known = peer >= 0 and state.sends_to[place, peer]
        if peer >= 0 and not known and capacity.peers and state.group_peers[place] >= capacity.peers:
            continue
        has_space = True
        free = state.group_free[place]
        if free <= by and (free > best_free or (free == best_free and known and not best_known)):
            best, best_free, best_known = group, free, known
    if best < 0 and not has_space:
        return -2
    return best


@inner
def _earliest_group(state: _EngineState, capacity: Capacity, node: int, operations: int) -> int:
    """When the first group of a node with space for some operations is free."""
    first = -1
    for group in range(capacity.groups):
        place = node * capacity.groups + group
        if capacity.operations and state.group_operations[place] + operations > capacity.operations:
            continue
        if first < 0 or state.group_free[place] < first:
            first = state.group_free[place]
    return first


@inner
def _team_free(state: _EngineState, capacity: Capacity, first: int, operations: int) -> int:
    """When all groups are free that work on a message together, the first of them at a place; -1: one lacks space."""
    free = np.int64(0)
    for place in range(first, first + capacity.receivers):
        if state.group_operations[place] + operations > capacity.operations:
            return -1
        free = max(free, state.group_free[place])
    return int(free)


@inner
def _best_team(state: _EngineState, capacity: Capacity, node: int, now: int, operations: int) -> tuple[int, int]:
    """The first of the groups of a node that can work on a message together now; of several, those that wait least.

    Else -1 and when the first of them are free, or -2 where none have space. Where they are several, those with the
    highest numbers come first, since single groups with low numbers issue messages.
    """
    best, best_free, first = -1, np.int64(-1), np.int64(-1)
    count = capacity.groups // capacity.receivers
    for k in range(count):
        group = (count - 1 - k if capacity.receivers > 1 else k) * capacity.receivers
        free = _team_free(state, capacity, node * capacity.groups + group, operations)
        if free < 0:
            continue
        if first < 0 or free < first:
            first = np.int64(free)
        if free <= now and free > best_free:
            best, best_free = group, np.int64(free)
    if best < 0 and first < 0:
        return -2, 0
    return best, int(first)


@inner
def _flow_ps(size: int, rate: float) -> int:
    return int(np.ceil(size * 1000.0 / rate)) if size > 0 else 0


@inner
def _fitting_rate(
    messages: MessageArrays, capacity: Capacity, table: _Reservations, i: int, leave: int, least: float
) -> tuple[float, int, int]:
    """The rate at which a message can cross its route from a time on; else (0, what blocks it, when to try again)."""
    rate = messages.rate_GBps[i]
    for _ in range(4):
        flow = _flow_ps(messages.wire_bytes[i], rate)
        worst, blocker, again = rate, -1, -1
        for h in range(messages.hop_ptr[i], messages.hop_ptr[i + 1]):
            resource, begin = messages.hop_resource[h], leave + messages.hop_from_ps[h]
            own = messages.hop_GBps[h] if messages.rigid[i] else rate
            end = begin + (messages.hop_for_ps[h] if messages.rigid[i] else flow)
            free = capacity.bandwidth_GBps[resource] * (1 + ROUNDING) - _most_used(table, resource, begin, end)
            possible = free / messages.hop_weight[h]
            if possible < own:
                if messages.rigid[i] or possible < least * messages.rate_GBps[i]:
                    until = _next_end(table, resource, begin, end) - messages.hop_from_ps[h]
                    if until > again:
                        blocker, again = resource, until
                worst = min(worst, possible / (1 + ROUNDING))
        if blocker >= 0:
            return 0.0, blocker, again
        if worst >= rate:
            return rate, -1, -1
        rate = worst
    for h in range(messages.hop_ptr[i], messages.hop_ptr[i + 1]):  # a slower message meets later reservations
        resource, begin = messages.hop_resource[h], leave + messages.hop_from_ps[h]
        again = _next_end(table, resource, begin, begin + 1)
        if again > leave:
            return 0.0, resource, again - messages.hop_from_ps[h]
    return 0.0, messages.hop_resource[messages.hop_ptr[i]], leave + 1


@maker
def _least_rates(messages: MessageArrays, capacity: Capacity, least: float) -> F64:
    """For each link and limit, the least rate of any message on it, in GB/s."""
    rates = np.full(len(capacity.bandwidth_GBps), np.inf)
    for i in range(len(messages.rank)):
        for h in range(messages.hop_ptr[i], messages.hop_ptr[i + 1]):
            own = messages.hop_GBps[h] if messages.rigid[i] else least * messages.rate_GBps[i]
            rates[messages.hop_resource[h]] = min(rates[messages.hop_resource[h]], own * messages.hop_weight[h])
    return rates


@inner
def _has_more(
    messages: MessageArrays, capacity: Capacity, table: _Reservations, rates: F64, resource: int, i: int, now: int
) -> bool:
    """Whether a resource for which a message waits may have enough bandwidth for another one at that time."""
    if resource >= len(rates):
        return False
    at = now + messages.pack_ps[i] + messages.overhead_ps[i]
    left = capacity.bandwidth_GBps[resource] * (1 + ROUNDING) - _most_used(table, resource, at, at + 1)
    return bool(left >= rates[resource])


@inner
def _reserve_route(messages: MessageArrays, table: _Reservations, i: int, leave: int, flow: int, rate: float) -> None:
    """Reserve what a message needs on its route whose first byte leaves at a time."""
    for h in range(messages.hop_ptr[i], messages.hop_ptr[i + 1]):
        begin = leave + messages.hop_from_ps[h]
        length = messages.hop_for_ps[h] if messages.rigid[i] else flow
        own = messages.hop_GBps[h] if messages.rigid[i] else rate
        if length > 0:
            _reserve(table, messages.hop_resource[h], begin, begin + length, own * messages.hop_weight[h])


@inner
def _try(
    messages: MessageArrays,
    capacity: Capacity,
    state: _EngineState,
    turns: Turns,
    table: _Reservations,
    i: int,
    now: int,
    least: float,
) -> tuple[int, int]:
    """Start a message now and return (-1, 0), or what blocks it and when to try again; (-2, 0) if it never can.

    (-3, time): its group has not come to it; it is tried again at that time, or in its turn.
    """
    links = len(capacity.bandwidth_GBps)
    source = messages.source[i]
    issuer, place, posts = -1, -1, capacity.nodes * capacity.groups
    leave = now + messages.pack_ps[i] + messages.overhead_ps[i]
    if len(turns.place):
        place = turns.place[2 * i]
        if place >= 0:
            if turns.head[place] != 2 * i:
                turns.parked[2 * i] = True
                return -3, -1
            if state.group_free[place] > now:
                return -3, state.group_free[place]
            issuer = place - source * capacity.groups if place < posts else -1
    elif capacity.groups and (not messages.proxied[i] or messages.pack_ps[i]):
        peer = -1 if messages.proxied[i] else messages.peer[i]
        issuer = _best_group(state, capacity, source, now, messages.operations[i], peer)
        if issuer == -2:
            return -2, 0
        if issuer < 0:
            return links + source, max(_earliest_group(state, capacity, source, messages.operations[i]), now + 1)
    if messages.proxied[i] and state.proxy_free[source] > now + messages.pack_ps[i]:
        return links + capacity.nodes + source, state.proxy_free[source] - messages.pack_ps[i]
    rate, blocker, again = _fitting_rate(messages, capacity, table, i, leave, least)
    if blocker >= 0:
        return blocker, max(again - (leave - now), now + 1)
    flow = messages.sending_ps[i] if messages.rigid[i] else _flow_ps(messages.wire_bytes[i], rate)
    if len(turns.place) and place >= posts:
        if state.posted_until[place - posts] > leave + flow:
            return -3, now + state.posted_until[place - posts] - leave - flow
        state.posted_until[place - posts] = leave + flow
    state.start[i], state.rate[i] = now, rate
    state.issuer[i] = issuer
    _reserve_route(messages, table, i, leave, flow, rate)
    if messages.proxied[i]:
        state.proxy_free[source] = leave
    if issuer >= 0:
        place = source * capacity.groups + issuer
        state.group_free[place] = now + messages.pack_ps[i] if messages.proxied[i] else leave + flow
    if issuer >= 0 and not len(turns.place):
        state.group_operations[place] += messages.operations[i]
        if not messages.proxied[i] and not state.sends_to[place, messages.peer[i]]:
            state.sends_to[place, messages.peer[i]] = True
            state.group_peers[place] += 1
    return -1, 0


@inner
def _same_chunks(messages: MessageArrays, i: int, j: int) -> bool:
    """Whether two messages are reduced into the same chunks."""
    first, other = messages.into_ptr[i], messages.into_ptr[j]
    count = messages.into_ptr[i + 1] - first
    if messages.into_ptr[j + 1] - other != count:
        return False
    same = True
    for k in range(count):
        same &= messages.into[first + k] == messages.into[other + k]
    return same


@inner
def _take_along(
    messages: MessageArrays, capacity: Capacity, state: _EngineState, i: int, space: int, along: I64
) -> int:
    """Write the messages that are reduced together with one: those that are there; return their number.

    `space` is how many operations the group has left for them.
    """
    count, later = 0, -1
    if messages.into_ptr[i] == messages.into_ptr[i + 1] or not messages.further_ps[i]:
        return 0
    chunk = messages.into[messages.into_ptr[i]]
    j = state.ready_into[chunk]
    while j >= 0:
        before = state.before_ready[j]
        fits = count + 1 < capacity.together and (count + 1) * capacity.further_operations <= space
        if state.is_done[j] or j == i or (fits and _same_chunks(messages, i, j)):
            if j != i and not state.is_done[j]:
                along[count] = j
                count += 1
            if later < 0:
                state.ready_into[chunk] = before
            else:
                state.before_ready[later] = before
        else:
            later = j
        j = before
    return count


@inner
def _try_work(
    messages: MessageArrays, capacity: Capacity, state: _EngineState, turns: Turns, i: int, now: int, along: I64
) -> tuple[int, int, int]:
    """Start the work on a message that has arrived and return (-1, its end, number of those that it takes along).

    Else return (0, when to try again, 0), or (-2, 0, 0) if it never can. (-3, 0, 0): its group has not come to it; it
    is tried again in its turn.
    """
    target, group, free, last, count = messages.target[i], -1, now, -1, 0
    for k in range(messages.into_ptr[i], messages.into_ptr[i + 1]):
        free = max(free, state.accumulator_free[messages.into[k]])
        last = state.accumulator_group[messages.into[k]]
    if free > now:
        return 0, free, 0
    if len(turns.place):
        place, before = turns.place[2 * i + 1], turns.before[i]
        if turns.head[place] != 2 * i + 1 or (before >= 0 and not turns.worked[before]):
            turns.parked[2 * i + 1] = True
            return -3, 0, 0
        if state.group_free[place] > now:
            return 0, state.group_free[place], 0
        group = place - target * capacity.groups
        j = turns.following_in[i]
        while j >= 0:
            along[count] = j
            count, j = count + 1, turns.following_in[j]
    elif capacity.groups:
        place = target * capacity.groups + last
        operations = capacity.again_operations
        if last >= 0 and 0 <= _team_free(state, capacity, place, operations) <= now:
            group = last
        if group < 0:
            operations = capacity.receive_operations
            group, free = _best_team(state, capacity, target, now, operations)
        if group == -2:
            return -2, 0, 0
        if group < 0:
            return 0, max(free, now + 1), 0
        place = target * capacity.groups + group
        space, team = capacity.operations - operations, range(place, place + capacity.receivers)
        space -= state.group_operations[place]
        count = _take_along(messages, capacity, state, i, space, along)
        state.group_operations[place] += count * capacity.further_operations  # the first one waits for all of them
        for k in team:
            state.group_operations[k] += operations
    end = now + messages.work_ps[i]
    for k in range(count):
        end += messages.further_ps[along[k]]
    if capacity.groups:
        for k in range(capacity.receivers):
            state.group_free[target * capacity.groups + group + k] = end
    for k in range(messages.into_ptr[i], messages.into_ptr[i + 1]):
        state.accumulator_free[messages.into[k]], state.accumulator_group[messages.into[k]] = end, group
    along[count] = i
    for k in range(count + 1):
        state.receiver[along[k]], state.work_from[along[k]], state.is_done[along[k]] = group, now, True
    return -1, end, count


@inner
def _is_ready(messages: MessageArrays, state: _EngineState, turns: Turns, queue: Queue, i: int, now: int) -> bool:
    """Note that a message has arrived; return whether the work on it, and on all that comes with it, may begin now."""
    state.arrived[i] = now
    if state.to_leave[i] > 0:
        return False
    if state.work_from[i] > now:
        put(queue, state.work_from[i], len(messages.rank) + i)
        return False
    if not state.is_ready[i]:
        state.is_ready[i] = True
        if len(turns.place):
            turns.missing[turns.first[i]] -= 1
        elif messages.into_ptr[i] < messages.into_ptr[i + 1]:
            chunk = messages.into[messages.into_ptr[i]]
            state.before_ready[i] = state.ready_into[chunk]
            state.ready_into[chunk] = i
    return not len(turns.place) or turns.missing[turns.first[i]] == 0


class _Waiting(NamedTuple):
    """The messages that wait for each resource, in pairing heaps, and when the first of them is tried again."""

    top: I64
    event: I64  # NEVER: none is due
    aside: I64  # messages that were tried in the turn of the resource and still wait for it
    child: I64
    sibling: I64


@maker
def _nothing_waits(resources: int, count: int) -> _Waiting:
    return _Waiting(
        np.full(resources, -1, dtype=np.int64),
        np.full(resources, NEVER, dtype=np.int64),
        np.full(resources, -1, dtype=np.int64),
        np.full(count, -1, dtype=np.int64),
        np.full(count, -1, dtype=np.int64),
    )


@inner
def _wait(waiting: _Waiting, rank: I64, queue: Queue, resource: int, i: int, again: int, is_tried: bool) -> None:
    """Let a message wait for a resource until a time at least; one that was tried in its turn is put aside."""
    if is_tried:
        waiting.sibling[i] = waiting.aside[resource]
        waiting.aside[resource] = i
    else:
        waiting.top[resource] = _meld(waiting.child, waiting.sibling, rank, waiting.top[resource], i)
    if again < waiting.event[resource]:
        waiting.event[resource] = again
        put(queue, again, 2 * len(rank) + resource)


@inner
def _next_waiting(waiting: _Waiting, rank: I64, resource: int) -> int:
    """Take the first message that waits for a resource; -1 where there is none."""
    i: int = waiting.top[resource]
    if i >= 0:
        waiting.top[resource] = _without_top(waiting.child, waiting.sibling, rank, i)
    return i


@inner
def _end_turn(waiting: _Waiting, rank: I64, resource: int) -> None:
    """Let the messages that were put aside wait again."""
    i = waiting.aside[resource]
    waiting.aside[resource] = -1
    while i >= 0:
        after = waiting.sibling[i]
        waiting.sibling[i] = -1
        waiting.top[resource] = _meld(waiting.child, waiting.sibling, rank, waiting.top[resource], i)
        i = after


@inner
def _meld(child: I64, sibling: I64, rank: I64, a: int, b: int) -> int:
    """Join two pairing heaps of messages, the least rank on top."""
    if a < 0:
        return b
    if b < 0:
        return a
    if rank[b] < rank[a]:
        a, b = b, a
    sibling[b] = child[a]
    child[a] = b
    return a


@inner
def _without_top(child: I64, sibling: I64, rank: I64, top: int) -> int:
    """The heap without its top."""
    cell, pairs = child[top], -1
    while cell >= 0:
        a, b = cell, sibling[cell]
        cell = sibling[b] if b >= 0 else -1
        sibling[a] = -1
        if b >= 0:
            sibling[b] = -1
        melded = _meld(child, sibling, rank, a, b)
        sibling[melded] = pairs
        pairs = melded
    root = -1
    while pairs >= 0:
        after = sibling[pairs]
        sibling[pairs] = -1
        root = _meld(child, sibling, rank, root, pairs)
        pairs = after
    child[top], sibling[top] = -1, -1
    return root


@maker
def _new_state(messages: MessageArrays, capacity: Capacity, turns: Turns) -> _EngineState:
    count, accumulators, peers = len(messages.rank), 0, 0
    for i in range(count):
        peers = max(peers, messages.peer[i] + 1)
    for k in range(len(messages.into)):
        accumulators = max(accumulators, messages.into[k] + 1)
    places = max(capacity.nodes * capacity.groups, 1)
    return _EngineState(
        np.zeros(max(places, len(turns.head)), dtype=np.int64),
        np.zeros(places, dtype=np.int64),
        np.zeros(places, dtype=np.int64),
        np.zeros(accumulators, dtype=np.int64),
        np.full(accumulators, -1, dtype=np.int64),
        np.zeros((places, peers), dtype=np.bool_),
        np.zeros(capacity.nodes, dtype=np.int64),
        np.zeros(max(len(turns.head) - places, 0), dtype=np.int64),
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.float64),
        np.full(count, -1, dtype=np.int32),
        np.full(count, -1, dtype=np.int32),
        np.full(count, -1, dtype=np.int64),
        np.full(count, -1, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.bool_),
        np.zeros(count, dtype=np.bool_),
        np.full(accumulators, -1, dtype=np.int64),
        np.full(count, -1, dtype=np.int64),
    )


@inner
def _let_work(messages: MessageArrays, state: _EngineState, queue: Queue, i: int, left_ps: int) -> None:
    """Let the work begin that waits until a message has left; it leaves at a time."""
    for k in range(messages.work_after_ptr[i], messages.work_after_ptr[i + 1]):
        j = messages.work_after[k]
        state.to_leave[j] -= 1
        state.work_from[j] = max(state.work_from[j], left_ps)
        if state.to_leave[j] == 0 and state.arrived[j] >= 0:
            put(queue, max(state.work_from[j], state.arrived[j]), len(messages.rank) + j)


@inner
def _release(
    messages: MessageArrays, earliest: I64, missing: I64, queue: Queue, i: int, now: int, left_ps: int, worked_ps: int
) -> None:
    """Let the successors of a message know when it ends; those that wait for nothing else become ready."""
    for k in range(messages.after_ptr[i], messages.after_ptr[i + 1]):
        j = messages.after[k]
        if messages.from_end[k] != (left_ps >= 0):
            continue
        ready = worked_ps if worked_ps >= 0 else left_ps + messages.after_ps[k]
        earliest[j] = max(earliest[j], ready if messages.from_end[k] else now)
        missing[j] -= 1
        if missing[j] == 0:
            put(queue, max(earliest[j], now), j)


@inner
def _next_into(turns: Turns, queue: Queue, i: int, end: int) -> None:
    """Let the next message be reduced into the same chunk, if it has arrived."""
    turns.worked[i] = True
    other = turns.after[i]
    if other >= 0 and turns.parked[2 * other + 1]:
        turns.parked[2 * other + 1] = False
        put(queue, end, len(turns.place) // 2 + other)


@inner
def _next_turn(turns: Turns, state: _EngineState, queue: Queue, item: int, now: int) -> None:
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
    state = _new_state(messages, capacity, turns)
    resources = links + 2 * capacity.nodes
    hops = len(messages.hop_resource)
    table = _Reservations(
        np.full(links, -1, dtype=np.int64),
        np.empty(hops + 1, dtype=np.int64),
        np.empty(hops + 1, dtype=np.int64),
        np.empty(hops + 1, dtype=np.float64),
        np.empty(hops + 1, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
        np.full(1, -1, dtype=np.int64),
    )
    waiting, rates = _nothing_waits(resources, count), _least_rates(messages, capacity, least)
    missing = np.zeros(count, dtype=np.int64)
    for k in range(len(messages.after)):
        missing[messages.after[k]] += 1
    for k in range(len(messages.work_after)):
        state.to_leave[messages.work_after[k]] += 1
    earliest = messages.soonest_ps.copy()
    queue = new_queue(4 * count + 64)  # events: a message is ready, it has arrived, or a resource may be free
    turn_rank, turn, tried = np.empty(count + 1, dtype=np.int64), np.empty(count + 1, dtype=np.int64), 0
    origin = np.full(count, -1, dtype=np.int64)
    work, works, along = np.empty(64, dtype=np.int64), 0, np.empty(max(capacity.together, count) + 1, dtype=np.int64)
    for i in range(count):
        if missing[i] == 0:
            put(queue, earliest[i], i)
    left = count
    while queue.size[0] > 0:
        now = queue.time[0]
        if now > give_up_ps:
            break
        while queue.size[0] > 0 and queue.time[0] == now:
            code = take(queue)
            if code < count:
                origin[code] = -1
                heap_push(turn_rank, turn, tried, messages.rank[code], code)
                tried += 1
            elif code < 2 * count:
                i = code - count
                if not state.is_done[i] and _is_ready(messages, state, turns, queue, i, now):
                    if works == len(work):
                        work = grown(work)
                    work[works] = turns.first[i] if len(turns.place) else i
                    works += 1
            else:
                resource = code - 2 * count
                if waiting.event[resource] != now:
                    continue
                waiting.event[resource] = NEVER
                i = _next_waiting(waiting, messages.rank, resource)
                if i >= 0:
                    origin[i] = resource
                    heap_push(turn_rank, turn, tried, messages.rank[i], i)
                    tried += 1
        for i in work[:works]:
            if state.is_done[i]:
                continue
            blocked, end, more = _try_work(messages, capacity, state, turns, i, now, along)
            if blocked == -2:
                return False, state.start, state.rate, state.issuer, state.receiver, state.work_from
            if blocked == 0:
                put(queue, end, count + i)
            for k in range(more + 1 if blocked == -1 else 0):
                while lacks_space(queue, messages.after_ptr[along[k] + 1] - messages.after_ptr[along[k]] + 4):
                    queue = larger(queue)
                left -= 1
                _release(messages, earliest, missing, queue, along[k], now, now, end)
            if blocked == -1 and len(turns.place):
                _next_turn(turns, state, queue, 2 * i + 1, now)
                _next_into(turns, queue, i, end)
        works = 0
        while tried > 0:
            i = heap_pop(turn_rank, turn, tried)
            tried -= 1
            for h in range(messages.hop_ptr[i], messages.hop_ptr[i + 1]):
                _purge(table, messages.hop_resource[h], now)
            successors = messages.after_ptr[i + 1] - messages.after_ptr[i]
            successors += messages.work_after_ptr[i + 1] - messages.work_after_ptr[i]
            while lacks_space(queue, successors + 3):
                queue = larger(queue)
            blocker, again = _try(messages, capacity, state, turns, table, i, now, least)
            if blocker == -2:
                return False, state.start, state.rate, state.issuer, state.receiver, state.work_from
            resource = origin[i]
            if blocker >= 0:
                _wait(waiting, messages.rank, queue, blocker, i, again, blocker == resource)
            elif blocker == -3:
                if again >= 0:
                    put(queue, again, i)
            else:
                if len(turns.place):
                    _next_turn(turns, state, queue, 2 * i, now)
                gone = now + messages.pack_ps[i] + messages.overhead_ps[i]
                gone += 0 if messages.rigid[i] else _flow_ps(messages.wire_bytes[i], state.rate[i])
                _release(messages, earliest, missing, queue, i, now, -1, -1)
                _let_work(messages, state, queue, i, now + messages.pack_ps[i] + messages.overhead_ps[i])
                if messages.work_ps[i] > 0:
                    put(queue, gone + messages.arrive_ps[i], count + i)
                else:
                    left -= 1
                    _release(messages, earliest, missing, queue, i, now, gone, -1)
            if resource < 0:
                continue
            j = -1
            if blocker != resource or _has_more(messages, capacity, table, rates, resource, i, now):
                j = _next_waiting(waiting, messages.rank, resource)
            if j >= 0:
                origin[j] = resource
                heap_push(turn_rank, turn, tried, messages.rank[j], j)
                tried += 1
            else:
                _end_turn(waiting, messages.rank, resource)
            origin[i] = -1
    return left == 0, state.start, state.rate, state.issuer, state.receiver, state.work_from
