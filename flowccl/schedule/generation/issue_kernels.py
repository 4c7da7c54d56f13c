"""The engine starts a message: at a rate that its route has, by a group of threadblocks that is free; compiled."""

import numpy as np

from flowccl.compiled import F64, inner, maker
from flowccl.schedule.generation.engine_state_kernels import (
    ROUNDING,
    Capacity,
    EngineState,
    MessageArrays,
    Turns,
    best_group,
    earliest_group,
    flow_ps,
)
from flowccl.schedule.generation.reservation_kernels import Reservations, most_used, next_end, reserve


@inner
def fitting_rate(
    messages: MessageArrays, capacity: Capacity, table: Reservations, i: int, leave: int, least: float
) -> tuple[float, int, int]:
    """The rate at which a message can cross its route from a time on; else (0, what blocks it, when to try again)."""
    rate = messages.rate_GBps[i]
    for _ in range(4):
        flow = flow_ps(messages.wire_bytes[i], rate)
        worst, blocker, again = rate, -1, -1
        for h in range(messages.hop_ptr[i], messages.hop_ptr[i + 1]):
            resource, begin = messages.hop_resource[h], leave + messages.hop_from_ps[h]
            own = messages.hop_GBps[h] if messages.rigid[i] else rate
            end = begin + (messages.hop_for_ps[h] if messages.rigid[i] else flow)
            free = capacity.bandwidth_GBps[resource] * (1 + ROUNDING) - most_used(table, resource, begin, end)
            possible = free / messages.hop_weight[h]
            if possible < own:
                if messages.rigid[i] or possible < least * messages.rate_GBps[i]:
                    until = next_end(table, resource, begin, end) - messages.hop_from_ps[h]
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
        again = next_end(table, resource, begin, begin + 1)
        if again > leave:
            return 0.0, resource, again - messages.hop_from_ps[h]
    return 0.0, messages.hop_resource[messages.hop_ptr[i]], leave + 1


@maker
def least_rates(messages: MessageArrays, capacity: Capacity, least: float) -> F64:
    """For each link and limit, the least rate of any message on it, in GB/s."""
    rates = np.full(len(capacity.bandwidth_GBps), np.inf)
    for i in range(len(messages.rank)):
        for h in range(messages.hop_ptr[i], messages.hop_ptr[i + 1]):
            own = messages.hop_GBps[h] if messages.rigid[i] else least * messages.rate_GBps[i]
            rates[messages.hop_resource[h]] = min(rates[messages.hop_resource[h]], own * messages.hop_weight[h])
    return rates


@inner
def has_more(
    messages: MessageArrays, capacity: Capacity, table: Reservations, rates: F64, resource: int, i: int, now: int
) -> bool:
    """Whether a resource for which a message waits may have enough bandwidth for another one at that time."""
    if resource >= len(rates):
        return False
    at = now + messages.pack_ps[i] + messages.overhead_ps[i]
    left = capacity.bandwidth_GBps[resource] * (1 + ROUNDING) - most_used(table, resource, at, at + 1)
    return bool(left >= rates[resource])


@inner
def _reserve_route(messages: MessageArrays, table: Reservations, i: int, leave: int, flow: int, rate: float) -> None:
    """Reserve what a message needs on its route whose first byte leaves at a time."""
    for h in range(messages.hop_ptr[i], messages.hop_ptr[i + 1]):
        begin = leave + messages.hop_from_ps[h]
        length = messages.hop_for_ps[h] if messages.rigid[i] else flow
        own = messages.hop_GBps[h] if messages.rigid[i] else rate
        if length > 0:
            reserve(table, messages.hop_resource[h], begin, begin + length, own * messages.hop_weight[h])


@inner
def try_issue(
    messages: MessageArrays,
    capacity: Capacity,
    state: EngineState,
    turns: Turns,
    table: Reservations,
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
        issuer = best_group(state, capacity, source, now, messages.operations[i], peer)
        if issuer == -2:
            return -2, 0
        if issuer < 0:
            return links + source, max(earliest_group(state, capacity, source, messages.operations[i]), now + 1)
    if messages.proxied[i] and state.proxy_free[source] > now + messages.pack_ps[i]:
        return links + capacity.nodes + source, state.proxy_free[source] - messages.pack_ps[i]
    rate, blocker, again = fitting_rate(messages, capacity, table, i, leave, least)
    if blocker >= 0:
        return blocker, max(again - (leave - now), now + 1)
    flow = messages.sending_ps[i] if messages.rigid[i] else flow_ps(messages.wire_bytes[i], rate)
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
