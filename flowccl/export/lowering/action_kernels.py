"""The compiled part of `build`: the actions of all messages, one message after the other."""

from typing import Any, NamedTuple

import numpy as np

from flowccl.compiled import I64, compiled, inner, maker
from flowccl.export.lowering.actions import (
    LOAD,
    MASK,
    PACK,
    POST,
    SEND,
    SIGNAL,
    STORE,
    WAIT,
    WORK,
    Actions,
    Channels,
    Pairs,
    Ranges,
)
from flowccl.schedule.placement import BUFFER_BITS, SCRATCH

_MEMORY, _NIC, _STORE, _LOAD = range(4)
_ACTION, _RANGE, _ADDED, _ID, _PAIR, _ROW, _ROW_ADDED, _CHANNELS, _PORTS = range(9)
"""What is counted."""


class Carried(NamedTuple):
    """The messages: where each of them is read and written, when, and by which threadblocks.

    Places are those of `Places` in the buffers of the call. `waiter` is the threadblock that waits for a message inside
    a host, or -1 where `group` does. `lead` are messages that are reduced in one operation, with their first one;
    `delivery` are the deliveries of each message in the order of their chunks. `member` are the GPUs of the group of an
    operation of a switch. `peer` is the receiver as its sender numbers it, and `back` the sender as its receiver does.
    """

    kind: I64
    src: I64
    peer: I64
    back: I64
    issuer: I64
    receiver: I64
    ptr: I64
    end_ptr: I64
    end: I64
    delivery_ptr: I64
    sent: I64
    packed: I64
    arrives: I64
    place: I64
    added: I64
    start: I64
    posted: I64
    whole: I64
    usable: I64
    work_from: I64
    group: I64
    waiter: I64
    waits_from: I64
    poster: I64
    awaiter: I64
    lead_ptr: I64
    lead: I64
    delivery: I64
    member_ptr: I64
    member: I64


class Written(NamedTuple):
    """What is written: space for all of it, and how much there is of each."""

    actions: Actions
    ranges: Ranges
    ids: I64  # channels of actions
    pairs: Pairs
    memory: Channels
    port: Channels
    rows: Ranges  # of one action, in chunks
    counts: I64


@compiled
def work_times(order: I64, delivery_ptr: I64, added_version: I64, owner: I64, time: I64) -> None:
    """Let no receiver work on a message before those whose results it reduces further; `time` is changed."""
    for m in order:
        for d in range(delivery_ptr[m], delivery_ptr[m + 1]):
            if added_version[d] >= 0:
                time[m] = max(time[m], time[owner[added_version[d]]])


class GroupShape(NamedTuple):
    """Threadblocks of a group, slots of a chunk, most threadblocks of a GPU, and whether messages are packets."""

    width: int
    slots: int
    blocks: int
    packets: bool


@inner
def _slot(place: int, slots: int, part: int) -> int:
    """A slot of the chunk at a place."""
    return (place & ~MASK) | ((place & MASK) * slots + part)


@inner
def _row(w: Written, source: int, target: int) -> None:
    """Note what an action moves, in chunks."""
    row = w.counts[_ROW]
    w.rows.source[row], w.rows.target[row], w.rows.added_low[row] = source, target, w.counts[_ROW_ADDED]
    w.rows.added_high[row] = w.counts[_ROW_ADDED]
    w.counts[_ROW] += 1


@inner
def _row_added(w: Written, place: int) -> None:
    """Note what the last row is reduced with."""
    w.rows.added[w.counts[_ROW_ADDED]] = place
    w.counts[_ROW_ADDED] += 1
    w.rows.added_high[w.counts[_ROW] - 1] = w.counts[_ROW_ADDED]


@inner
def _no_rows(w: Written) -> None:
    w.counts[_ROW], w.counts[_ROW_ADDED] = 0, 0


@inner
def _continues(w: Written, r: int, row: int, slots: int, sub: int) -> bool:
    """Whether a slot of a row lies behind those of a range."""
    size, rows, ranges = w.ranges.slots[r], w.rows, w.ranges
    same = _slot(rows.source[row], slots, sub) == ranges.source[r] + size
    same &= _slot(rows.target[row], slots, sub) == ranges.target[r] + size
    low, more = rows.added_low[row], rows.added_high[row] - rows.added_low[row]
    same &= more == ranges.added_high[r] - ranges.added_low[r]
    for k in range(more if same else 0):
        same &= _slot(rows.added[low + k], slots, sub) == ranges.added[ranges.added_low[r] + k] + size
    return bool(same)


@inner
def _ranges(w: Written, a: int, slots: int, width: int, part: int) -> None:
    """Give an action the ranges that threadblock `part` of `width` together carries of the rows.

    Each of them carries the same number of slots, one after the other.
    """
    ranges, count = w.ranges, w.counts[_ROW] * slots // width
    w.actions.range_low[a] = w.counts[_RANGE]
    for index in range(part * count, (part + 1) * count):
        row, sub, r = index // slots, index % slots, w.counts[_RANGE] - 1
        if r >= w.actions.range_low[a] and _continues(w, r, row, slots, sub):
            ranges.slots[r] += 1
            continue
        r += 1
        ranges.source[r], ranges.target[r] = (
            _slot(w.rows.source[row], slots, sub),
            _slot(w.rows.target[row], slots, sub),
        )
        ranges.slots[r], ranges.added_low[r] = 1, w.counts[_ADDED]
        for k in range(w.rows.added_low[row], w.rows.added_high[row]):
            ranges.added[w.counts[_ADDED]] = _slot(w.rows.added[k], slots, sub)
            w.counts[_ADDED] += 1
        ranges.added_high[r] = w.counts[_ADDED]
        w.counts[_RANGE] += 1
    w.actions.range_high[a] = w.counts[_RANGE]


@inner
def _add(w: Written, kind: int, rank: int, block: int, time: int, m: int) -> int:
    """Add an action of a message; return its number."""
    a: int = w.counts[_ACTION]
    actions = w.actions
    actions.kind[a], actions.rank[a], actions.block[a], actions.time[a] = kind, rank, block, time
    actions.tie[a], actions.message[a], actions.peer[a], actions.once[a] = m, m, -1, 0
    actions.range_low[a], actions.range_high[a], actions.channel_low[a], actions.channel_high[a] = 0, 0, 0, 0
    w.counts[_ACTION] += 1
    return a


@inner
def _as(w: Written, a: int, other: int) -> None:
    """Give an action the ranges and the channels of another one."""
    actions = w.actions
    actions.range_low[a], actions.range_high[a] = actions.range_low[other], actions.range_high[other]
    actions.channel_low[a], actions.channel_high[a] = actions.channel_low[other], actions.channel_high[other]


@maker
def _open(
    w: Written, known: Any, port: bool, src: int, block: int, peer: int, other: int, ends: tuple[int, int], blocks: int
) -> int:
    """Add a channel over which a threadblock sends to another to the list of ids; return its direction.

    `ends` are the receiver, and the sender as the receiver numbers it.
    """
    dst, back = ends
    swaps = back > peer or (back == peer and block > other)
    a, here, b, there = (dst, other, back, block) if swaps else (src, block, peer, other)
    key = ((a * blocks + here) << 31) + b * blocks + there
    what, channels = (_PORTS, w.port) if port else (_CHANNELS, w.memory)
    if key not in known:
        n = w.counts[what]
        known[key] = n
        channels.ends[n, 0], channels.ends[n, 1], channels.ends[n, 2], channels.ends[n, 3] = a, here, b, there
        w.counts[what] += 1
    direction: int = 2 * known[key] + swaps
    channels.used[direction] = True
    w.ids[w.counts[_ID]] = direction // 2
    w.counts[_ID] += 1
    return direction


@inner
def _pair(w: Written, direction: int, send: int, wait: int) -> None:
    n = w.counts[_PAIR]
    w.pairs.direction[n], w.pairs.send[n], w.pairs.wait[n] = direction, send, wait
    w.counts[_PAIR] += 1


@inner
def _work(c: Carried, w: Written, m: int, shape: GroupShape) -> None:
    """Add what the receiver does with a message: reduce it, read its packets, or copy what is not in its place.

    The first of the messages that are reduced together stands for all of them. Where the GPU has no data of a chunk
    yet, the first delivery takes its place.
    """
    low, high = c.lead_ptr[m], c.lead_ptr[m + 1]
    if low == high:
        return
    _no_rows(w)
    for k in range(c.delivery_ptr[m + 1] - c.delivery_ptr[m]):
        first = c.delivery[c.delivery_ptr[m] + k]
        last, has, begin = c.delivery[c.delivery_ptr[c.lead[high - 1]] + k], c.added[first], low
        if has < 0:
            has, begin = c.place[first], low + 1
            if c.arrives[first] != has:
                _row(w, c.arrives[first], has)
        if begin < high:
            _row(w, c.arrives[c.delivery[c.delivery_ptr[c.lead[begin]] + k]], c.place[last])
            _row_added(w, has)
            for j in range(begin + 1, high):
                _row_added(w, c.arrives[c.delivery[c.delivery_ptr[c.lead[j]] + k]])
    receivers = shape.slots // shape.width
    for part in range(shape.slots if w.counts[_ROW] else 0):
        group = max(c.receiver[m], 0) + part % receivers  # one after the other, so that each takes a part of every send
        rank, block = c.end[c.end_ptr[m]], group * shape.width + part // receivers
        work = _add(w, WORK, rank, block, c.work_from[m], m)
        w.actions.tie[work] = c.usable[m]
        _ranges(w, work, shape.slots, shape.slots, part)


@maker
def _memory(c: Carried, w: Written, known: Any, m: int, shape: GroupShape) -> None:
    """Add a message inside a host, and the wait for it."""
    width = shape.width
    src, dst = c.src[m], c.end[c.end_ptr[m]]
    for part in range(width):
        _no_rows(w)
        for k in range(c.ptr[m + 1] - c.ptr[m]):
            _row(w, c.sent[c.ptr[m] + k], c.arrives[c.delivery_ptr[m] + k])
        send = _add(w, SEND, src, c.issuer[m] * width + part, c.start[m], m)
        _ranges(w, send, shape.slots, width, part)
        w.actions.peer[send] = c.peer[m]
        if not shape.packets:
            other = c.waiter[m] if c.waiter[m] >= 0 else c.group[m] * width + part
            w.actions.channel_low[send] = w.counts[_ID]
            ends = dst, c.back[m]
            direction = _open(w, known, False, src, w.actions.block[send], c.peer[m], other, ends, shape.blocks)
            w.actions.channel_high[send] = w.counts[_ID]
            wait = _add(w, WAIT, dst, other, c.waits_from[m], m)
            _as(w, wait, send)
            _pair(w, direction, send, wait)
    _work(c, w, m, shape)


@maker
def _nic(c: Carried, w: Written, known: Any, m: int, shape: GroupShape) -> None:
    """Add a message over a NIC: what is packed, what posts it, and what waits for it."""
    width, slots = shape.width, shape.slots
    src, dst = c.src[m], c.end[c.end_ptr[m]]
    _no_rows(w)
    for e in range(c.ptr[m], c.ptr[m + 1]):
        if c.packed[e] >= 0:
            _row(w, c.packed[e], c.sent[e])
    for part in range(width if w.counts[_ROW] else 0):
        pack = _add(w, PACK, src, max(c.issuer[m], 0) * width + part, c.start[m], m)
        _ranges(w, pack, slots, width, part)
    post = _add(w, POST, src, c.poster[m], c.posted[m], m)
    r = w.counts[_RANGE]
    w.ranges.source[r] = _slot(c.sent[c.ptr[m]], slots, 0)
    w.ranges.target[r] = _slot(c.arrives[c.delivery_ptr[m]], slots, 0)
    w.ranges.slots[r] = (c.ptr[m + 1] - c.ptr[m]) * slots
    w.ranges.added_low[r], w.ranges.added_high[r] = 0, 0
    w.counts[_RANGE] += 1
    w.actions.range_low[post], w.actions.range_high[post], w.actions.peer[post] = r, r + 1, c.peer[m]
    w.actions.channel_low[post] = w.counts[_ID]
    direction = _open(w, known, True, src, c.poster[m], c.peer[m], c.awaiter[m], (dst, c.back[m]), shape.blocks)
    w.actions.channel_high[post] = w.counts[_ID]
    wait = _add(w, WAIT, dst, c.awaiter[m], c.whole[c.end_ptr[m]], m)
    _as(w, wait, post)
    _pair(w, -1 - direction, post, wait)
    _work(c, w, m, shape)


@inner
def _is_ready(w: Written, load: int, rank: int, id: int, direction: int) -> None:
    """Let a GPU tell the one that reduces through the switch that its own partial result is ready."""
    actions, ranges = w.actions, w.ranges
    w.memory.used[direction ^ 1] = True
    tell = _add(w, SIGNAL, rank, actions.block[load], actions.time[load] - 1, actions.message[load])
    actions.range_low[tell] = w.counts[_RANGE]
    for other in range(actions.range_low[load], actions.range_high[load]):
        r = w.counts[_RANGE]
        ranges.source[r], ranges.target[r], ranges.slots[r] = (
            ranges.source[other],
            ranges.source[other],
            ranges.slots[other],
        )
        ranges.added_low[r], ranges.added_high[r] = 0, 0
        w.counts[_RANGE] += 1
    actions.range_high[tell] = w.counts[_RANGE]
    hear = _add(w, WAIT, actions.rank[load], actions.block[load], actions.time[load], actions.message[load])
    for action in (tell, hear):
        actions.channel_low[action], actions.channel_high[action] = id, id + 1
    _pair(w, direction ^ 1, tell, hear)


@maker
def _switch(c: Carried, w: Written, known: Any, m: int, shape: GroupShape) -> None:
    """Add an operation of a switch, and the waits of all other GPUs of its group."""
    width = shape.width
    src, kind = c.src[m], LOAD if c.kind[m] == _LOAD else STORE
    ends, members = c.end_ptr[m + 1] - c.end_ptr[m], c.member_ptr[m + 1] - c.member_ptr[m]
    for part in range(width):
        _no_rows(w)
        for k in range(c.ptr[m + 1] - c.ptr[m]):
            _row(w, c.sent[c.ptr[m] + k], c.place[c.delivery_ptr[m] + k * ends])
        send = _add(w, kind, src, c.issuer[m] * width + part, c.start[m], m)
        block, first = w.actions.block[send], w.counts[_ID]
        _ranges(w, send, shape.slots, width, part)
        for k in range(members):
            other = c.member[c.member_ptr[m] + k]
            if other != src:
                _open(w, known, False, src, block, other, block, (other, src), shape.blocks)
        w.actions.channel_low[send], w.actions.channel_high[send] = first, w.counts[_ID]
        id = first
        for k in range(members):
            other = c.member[c.member_ptr[m] + k]
            if other == src:
                continue
            time = c.usable[m]
            for end in range(c.end_ptr[m + 1] - 1, c.end_ptr[m] - 1, -1):
                time = c.whole[end] if c.end[end] == other else time
            wait, direction = _add(w, WAIT, other, block, time, m), 2 * w.ids[id] + (src > other)
            _as(w, wait, send)
            w.actions.channel_low[wait], w.actions.channel_high[wait] = id, id + 1
            _pair(w, direction, send, wait)
            if kind == LOAD and c.sent[c.ptr[m]] >> BUFFER_BITS == SCRATCH:
                _is_ready(w, send, other, id, direction)
            id += 1


@compiled
def write_actions(c: Carried, w: Written, shape: GroupShape) -> None:
    """Write the actions of all messages."""
    known, ports = {np.int64(-1): np.int64(0)}, {np.int64(-1): np.int64(0)}
    for m in range(len(c.kind)):
        if c.kind[m] == _MEMORY:
            _memory(c, w, known, m, shape)
        elif c.kind[m] == _NIC:
            _nic(c, w, ports, m, shape)
        else:
            _switch(c, w, known, m, shape)
