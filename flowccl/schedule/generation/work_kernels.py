"""The engine begins the work on messages that have arrived: reductions and copies of their receivers; compiled."""

import numpy as np

from flowccl.compiled import I64, Queue, inner, put
from flowccl.schedule.generation.engine_state_kernels import Capacity, EngineState, MessageArrays, Turns


@inner
def _team_free(state: EngineState, capacity: Capacity, first: int, operations: int) -> int:
    """When all groups are free that work on a message together, the first of them at a place; -1: one lacks space."""
    free = np.int64(0)
    for place in range(first, first + capacity.receivers):
        if state.group_operations[place] + operations > capacity.operations:
            return -1
        free = max(free, state.group_free[place])
    return int(free)


@inner
def _best_team(state: EngineState, capacity: Capacity, node: int, now: int, operations: int) -> tuple[int, int]:
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
def _chosen_team(
    state: EngineState, capacity: Capacity, node: int, now: int, last: int, own: int
) -> tuple[int, int, int]:
    """The first group of those that work on a message now, or as `_best_team`; then their operations.

    Those that worked into the same chunk last come first, then those of the number of the group that issued the
    message: between groups of the same number there always is a channel.
    """
    again, place = capacity.again_operations, node * capacity.groups
    if last >= 0 and 0 <= _team_free(state, capacity, place + last, again) <= now:
        return last, now, again
    operations, group = capacity.receive_operations, own // capacity.receivers * capacity.receivers
    is_whole = own >= 0 and group + capacity.receivers <= capacity.groups
    if is_whole and 0 <= _team_free(state, capacity, place + group, operations) <= now:
        return group, now, operations
    group, free = _best_team(state, capacity, node, now, operations)
    return group, free, operations


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
def _take_along(messages: MessageArrays, capacity: Capacity, state: EngineState, i: int, space: int, along: I64) -> int:
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
def try_work(
    messages: MessageArrays, capacity: Capacity, state: EngineState, turns: Turns, i: int, now: int, along: I64
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
        own = -1 if messages.proxied[i] else state.issuer[i]
        group, free, operations = _chosen_team(state, capacity, target, now, last, own)
        if group == -2:
            return -2, 0, 0
        if group < 0:
            return 0, max(free, now + 1), 0
        place = target * capacity.groups + group
        space = capacity.operations - operations - state.group_operations[place]
        count = _take_along(messages, capacity, state, i, space, along)
        state.group_operations[place] += count * capacity.further_operations  # the first one waits for all of them
        for k in range(place, place + capacity.receivers):
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
def is_ready(messages: MessageArrays, state: EngineState, turns: Turns, queue: Queue, i: int, now: int) -> bool:
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
