"""What the list-scheduling engine works on: messages, what there is, and what is in use; compiled."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I32, I64, Bool, inner, maker

ROUNDING = 5e-10  # relative error of the sum of rates: half of that of the verifier


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


class EngineState(NamedTuple):
    """What is in use, and where each message is."""

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


@maker
def new_state(messages: MessageArrays, capacity: Capacity, turns: Turns) -> EngineState:
    """The state before the first message starts."""
    count, accumulators, peers = len(messages.rank), 0, 0
    for i in range(count):
        peers = max(peers, messages.peer[i] + 1)
    for k in range(len(messages.into)):
        accumulators = max(accumulators, messages.into[k] + 1)
    places = max(capacity.nodes * capacity.groups, 1)
    to_leave = np.zeros(count, dtype=np.int64)
    for k in range(len(messages.work_after)):
        to_leave[messages.work_after[k]] += 1
    return EngineState(
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
        to_leave,
        np.zeros(count, dtype=np.bool_),
        np.zeros(count, dtype=np.bool_),
        np.full(accumulators, -1, dtype=np.int64),
        np.full(count, -1, dtype=np.int64),
    )


@inner
def best_group(state: EngineState, capacity: Capacity, node: int, by: int, operations: int, peer: int) -> int:
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
def earliest_group(state: EngineState, capacity: Capacity, node: int, operations: int) -> int:
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
def flow_ps(size: int, rate: float) -> int:
    """The time that some bytes take at a rate."""
    return int(np.ceil(size * 1000.0 / rate)) if size > 0 else 0
