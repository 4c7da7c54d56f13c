"""Writes the operations of the threadblocks of an MSCCL++ plan as text, compiled.

The threads of a threadblock run independently. A nop is a barrier of its threads: it separates a wait from the
operations that depend on it, and data from the signal that announces it.
"""

import numpy as np

from flowccl.compiled import I64, compiled, inner, maker
from flowccl.export.formats.plan_character_kernels import (
    ACQUIRE_WORD,
    AND_CHANNELS_WORD,
    AND_TYPE_WORD,
    AT,
    COMMA_WORD,
    COPY_WORD,
    END_WORD,
    FLUSH_WORD,
    GLRES_WORD,
    GSTORE_WORD,
    LIST_END_WORD,
    LOOP_BODY_WORD,
    LOOP_END_WORD,
    LOOP_WORD,
    MEMORY,
    MEMORY_BUFFERS,
    MEMORY_WORD,
    MESSAGE_WORD,
    NEXT_WORD,
    NOTHING_WORD,
    OPERATIONS,
    PORT,
    PORT_BUFFERS,
    PORT_WORD,
    PPKT_WORD,
    PUT_WORD,
    PWS_WORD,
    QUOTE_WORD,
    RE_WORD,
    RELEASE_WORD,
    REMOTE_WORD,
    REPEATS,
    REPKT_WORD,
    SIGNAL_WORD,
    SOURCES_WORD,
    SWITCH_WORD,
    SWITCHED_WORD,
    SWITCHES,
    TARGETS_WORD,
    TO_WORD,
    TOUCHED,
    UPKT_WORD,
    WAIT_WORD,
    WAITED,
    WAITING,
    WORKED,
    PlanActions,
    PlanState,
    barrier,
    before_wait,
    begin,
    hint_of,
    length_of,
    meets,
    number,
    on_channels,
    on_semaphores,
    other_buffer,
    own_buffer,
    place_of,
    spelled,
    touch,
    wait_now,
    waits_at_barrier,
    word,
)
from flowccl.export.formats.plan_text_kernels import U8, Words, with_space
from flowccl.export.lowering.actions import FLUSH, LOAD, POST, SEND, SIGNAL, STORE, WAIT
from flowccl.runtimes.limits import CHANNELS_PER_OPERATION
from flowccl.schedule.placement import BUFFER_BITS, PACKETS, SCRATCH


@inner
def _send(t: I64, s: PlanState, p: PlanActions, a: int) -> None:
    """Put data into the memory of another GPU of the host, or packets."""
    actions, ranges, channels = p.actions, p.ranges, p.actions.channel_high[a] - p.actions.channel_low[a]
    for r in range(actions.range_low[a], actions.range_high[a]):
        source, target, count, peer = ranges.source[r], ranges.target[r], ranges.slots[r], actions.peer[a]
        if s.now[WAITED] or meets(s, source, count):
            barrier(t, s)
        s.now[WORKED] = 1
        touch(s, source, count)
        place = place_of(s, MEMORY_BUFFERS, 4 * peer + min(target >> BUFFER_BITS, SCRATCH))
        begin(t, s, PPKT_WORD if p.sends_packets else PUT_WORD)
        word(t, s, SOURCES_WORD)
        own_buffer(t, s, p, actions.rank[a], source, count)
        word(t, s, TARGETS_WORD)
        other_buffer(t, s, p, REMOTE_WORD, place, peer, target, count)
        if channels:
            word(t, s, AND_CHANNELS_WORD)
            number(t, s, place_of(s, MEMORY, p.ids[actions.channel_low[a]]))
        word(t, s, AND_TYPE_WORD)
        word(t, s, MEMORY_WORD)
        word(t, s, QUOTE_WORD)
        hint_of(t, s, p.hints, actions.message[a])
    if channels:
        barrier(t, s)
        on_channels(t, s, SIGNAL_WORD, False, p.ids, actions.channel_low[a], actions.channel_high[a], False)


@inner
def _post(t: I64, s: PlanState, p: PlanActions, a: int) -> None:
    actions, r = p.actions, p.actions.range_low[a]
    source, target, count, peer = p.ranges.source[r], p.ranges.target[r], p.ranges.slots[r], actions.peer[a]
    place = place_of(s, PORT_BUFFERS, 4 * peer + (target >> BUFFER_BITS))
    begin(t, s, PWS_WORD)
    word(t, s, SOURCES_WORD)
    own_buffer(t, s, p, actions.rank[a], source, count)
    word(t, s, TARGETS_WORD)
    other_buffer(t, s, p, REMOTE_WORD, place, peer, target, count)
    word(t, s, AND_CHANNELS_WORD)
    number(t, s, place_of(s, PORT, p.ids[actions.channel_low[a]]))
    word(t, s, AND_TYPE_WORD)
    word(t, s, PORT_WORD)
    word(t, s, QUOTE_WORD)
    hint_of(t, s, p.hints, actions.message[a])


@inner
def _flush(t: I64, s: PlanState, p: PlanActions, a: int) -> None:
    """Write a flush; MSCCL++ 0.9.0 counts its channels by its targets, which are not used otherwise."""
    high = p.actions.channel_high[a]
    for first in range(p.actions.channel_low[a], high, CHANNELS_PER_OPERATION):
        last = min(first + CHANNELS_PER_OPERATION, high)
        begin(t, s, FLUSH_WORD)
        word(t, s, TO_WORD)
        for k in range(first, last):
            if k > first:
                word(t, s, COMMA_WORD)
            word(t, s, NOTHING_WORD)
        word(t, s, AND_CHANNELS_WORD)
        for k in range(first, last):
            if k > first:
                word(t, s, COMMA_WORD)
            number(t, s, place_of(s, PORT, p.ids[k]))
        word(t, s, AND_TYPE_WORD)
        word(t, s, PORT_WORD)
        word(t, s, QUOTE_WORD)
        word(t, s, END_WORD)


@inner
def _switch(t: I64, s: PlanState, p: PlanActions, a: int) -> None:
    """Write an operation of a switch, and signal all other GPUs of its group."""
    actions, ranges, rank, loads = p.actions, p.ranges, p.actions.rank[a], p.actions.kind[a] == LOAD
    group = 4 * p.group[actions.message[a]]
    for r in range(actions.range_low[a], actions.range_high[a]):
        source, target, count = ranges.source[r], ranges.target[r], ranges.slots[r]
        if s.now[WAITED] or meets(s, source, count) or meets(s, target, count):
            barrier(t, s)
        s.now[WORKED] = 1
        touch(s, source, count)
        touch(s, target, count)
        place = place_of(s, SWITCHES, group + (target >> BUFFER_BITS))
        loaded = place_of(s, SWITCHES, group + (source >> BUFFER_BITS)) if loads else -1
        begin(t, s, GLRES_WORD if loads else GSTORE_WORD)
        word(t, s, SOURCES_WORD)
        if loads:
            other_buffer(t, s, p, SWITCH_WORD, loaded, rank, source, count)
        else:
            own_buffer(t, s, p, rank, source, count)
        word(t, s, TARGETS_WORD)
        other_buffer(t, s, p, SWITCH_WORD, place, rank, target, count)
        word(t, s, AND_CHANNELS_WORD)
        number(t, s, place)
        word(t, s, AND_TYPE_WORD)
        word(t, s, SWITCHED_WORD)
        word(t, s, QUOTE_WORD)
        hint_of(t, s, p.hints, actions.message[a])
    barrier(t, s)
    on_channels(t, s, SIGNAL_WORD, False, p.ids, actions.channel_low[a], actions.channel_high[a], False)


@inner
def _local(t: I64, s: PlanState, p: PlanActions, a: int, r: int) -> None:
    """Write a copy or a reduction: what the GPU has comes first."""
    ranges, rank, count, before = p.ranges, p.actions.rank[a], p.ranges.slots[r], s.now[TOUCHED]
    is_packet, low, high = ranges.source[r] >> BUFFER_BITS == PACKETS, ranges.added_low[r], ranges.added_high[r]
    if waits_at_barrier(s, ranges, r):
        new = s.now[TOUCHED] - before
        barrier(t, s)
        for k in range(new):
            touch(s, s.touched[before + k, 0], s.touched[before + k, 1])
    s.now[WORKED] = 1
    name = COPY_WORD if low == high else RE_WORD
    if is_packet:
        name = UPKT_WORD if low == high else REPKT_WORD
    begin(t, s, name)
    word(t, s, SOURCES_WORD)
    if low < high:
        own_buffer(t, s, p, rank, ranges.added[low], count)
        word(t, s, COMMA_WORD)
    own_buffer(t, s, p, rank, ranges.source[r], count)
    for k in range(low + 1, high):
        word(t, s, COMMA_WORD)
        own_buffer(t, s, p, rank, ranges.added[k], count)
    word(t, s, TARGETS_WORD)
    own_buffer(t, s, p, rank, ranges.target[r], count)
    word(t, s, LIST_END_WORD)
    if p.actions.message[a] >= 0:
        word(t, s, MESSAGE_WORD)
        number(t, s, p.actions.message[a])
    word(t, s, END_WORD)


@inner
def _wait_for(t: I64, s: PlanState, p: PlanActions, a: int, port: bool) -> None:
    """Write a wait, or let it become one operation with those before it and after it."""
    low, high = p.actions.channel_low[a], p.actions.channel_high[a]
    if p.actions.message[a] < 0:
        wait_now(t, s, port)
        before_wait(t, s)
        on_channels(t, s, WAIT_WORD, port, p.ids, low, high, True)
        return
    again = False
    for k in range(low, high):
        for j in range(s.now[WAITING]):
            again |= s.waiting[j] == p.ids[k]
    if again:
        wait_now(t, s, port)
    if not s.now[WAITING]:
        before_wait(t, s)
    for k in range(low, high):
        s.waiting[s.now[WAITING]] = p.ids[k]
        s.now[WAITING] += 1
    s.now[WAITED] = 1
    if p.release_ptr[a] < p.release_ptr[a + 1]:
        wait_now(t, s, port)
        barrier(t, s)
        on_semaphores(t, s, RELEASE_WORD, p.release, p.release_ptr[a], p.release_ptr[a + 1])


@inner
def _action(t: I64, s: PlanState, p: PlanActions, a: int, port: bool) -> None:
    """Write an action that is no wait, and its semaphores."""
    kind, low, high = p.actions.kind[a], p.actions.channel_low[a], p.actions.channel_high[a]
    if s.now[WAITING]:
        wait_now(t, s, port)
    if p.acquire_ptr[a] < p.acquire_ptr[a + 1]:
        before_wait(t, s)
        on_semaphores(t, s, ACQUIRE_WORD, p.acquire, p.acquire_ptr[a], p.acquire_ptr[a + 1])
        s.now[WAITED] = 1
    if kind in (POST, FLUSH, SIGNAL):
        barrier(t, s)
    if kind == POST:
        _post(t, s, p, a)
    elif kind == FLUSH:
        _flush(t, s, p, a)
    elif kind == SIGNAL:
        on_channels(t, s, SIGNAL_WORD, port, p.ids, low, high, p.actions.message[a] < 0)
    elif kind in (STORE, LOAD):
        _switch(t, s, p, a)
    elif kind == SEND:
        _send(t, s, p, a)
    else:
        for r in range(p.actions.range_low[a], p.actions.range_high[a]):
            _local(t, s, p, a, r)
    if p.release_ptr[a] < p.release_ptr[a + 1]:
        barrier(t, s)
        on_semaphores(t, s, RELEASE_WORD, p.release, p.release_ptr[a], p.release_ptr[a + 1])


@inner
def _space_for(p: PlanActions, a: int, waiting: int) -> int:
    """More than the words and numbers that an action may need."""
    actions, ranges = p.actions, p.ranges
    channels = actions.channel_high[a] - actions.channel_low[a] + waiting
    semaphores = p.acquire_ptr[a + 1] - p.acquire_ptr[a] + p.release_ptr[a + 1] - p.release_ptr[a]
    space = 64 + 8 * (channels + semaphores)
    for r in range(actions.range_low[a], actions.range_high[a]):
        space += 64 + 16 * (ranges.added_high[r] - ranges.added_low[r])
    return int(space)


@maker
def _new_state(sizes: I64, most: int) -> PlanState:
    base = np.zeros(len(sizes) + 1, dtype=np.int64)
    for k in range(len(sizes)):
        base[k + 1] = base[k] + sizes[k]
    return PlanState(
        np.zeros(7, dtype=np.int64),
        np.zeros((most, 2), dtype=np.int64),
        np.zeros(most, dtype=np.int64),
        np.zeros((len(sizes), max(most, 1)), dtype=np.int64),
        np.zeros(len(sizes), dtype=np.int64),
        np.full(base[-1], -1, dtype=np.int64),
        base,
    )


@inner
def _reset(s: PlanState) -> None:
    """Begin a threadblock."""
    s.now[:] = 0
    for table in range(len(s.sizes)):
        for k in range(s.sizes[table]):
            s.place[s.base[table] + s.tables[table, k]] = -1
        s.sizes[table] = 0


@maker
def _write_section(p: PlanActions, t: I64, s: PlanState, b: int, section: int) -> I64:
    """Write the actions of a threadblock that belong to a section."""
    for a in range(p.block_ptr[b], p.block_ptr[b + 1]):
        if p.section[a] != section:
            continue
        t = with_space(t, s.now[AT] + _space_for(p, a, s.now[WAITING]))
        if p.actions.kind[a] == WAIT:
            _wait_for(t, s, p, a, p.is_port[b])
        else:
            _action(t, s, p, a, p.is_port[b])
    t = with_space(t, s.now[AT] + 64 + 8 * s.now[WAITING])
    wait_now(t, s, p.is_port[b])
    return t


@inner
def _has_section(p: PlanActions, b: int, section: int) -> bool:
    found = False
    for a in range(p.block_ptr[b], p.block_ptr[b + 1]):
        found |= p.section[a] == section
    return found


@maker
def _write_block(p: PlanActions, t: I64, s: PlanState, b: int) -> I64:
    """Write the operations of a threadblock: those that open a call, what is repeated, and what is done once."""
    low, high, first, last = p.announced_ptr[b], p.announced_ptr[b + 1], p.awaited_ptr[b], p.awaited_ptr[b + 1]
    t = with_space(t, 64 + 8 * (high - low + last - first))
    on_channels(t, s, SIGNAL_WORD, p.is_port[b], p.announced, low, high, False)
    on_channels(t, s, WAIT_WORD, p.is_port[b], p.awaited, first, last, False)
    s.now[WAITED] = first < last
    for section in range(2 if p.unit_bytes else 0):
        if _has_section(p, b, section):
            if s.now[OPERATIONS]:
                word(t, s, NEXT_WORD)
            word(t, s, LOOP_WORD)
            number(t, s, p.unit_bytes)
            word(t, s, LOOP_BODY_WORD)
            before, s.now[OPERATIONS] = s.now[OPERATIONS], 0
            s.now[WAITED], s.now[WORKED] = 1, 1  # in the repetition before, if in no operation before it
            t = _write_section(p, t, s, b, section)
            t = with_space(t, s.now[AT] + 64)
            word(t, s, LOOP_END_WORD)
            s.now[OPERATIONS] += before
            s.now[REPEATS] += 1
            s.now[WAITED], s.now[WORKED] = 1, 1
    return _write_section(p, t, s, b, 2 if p.unit_bytes else 0)


@compiled
def write_operations(p: PlanActions, words: Words, table_sizes: I64, most: int) -> tuple[U8, I64, I64, I64]:
    """Return the text of all operations, a row for each threadblock, and the pointer and members of its tables.

    A row has (begin and end of its text, operations, repetitions). `table_sizes` are how many members there may be in
    each table, `most` the most channels and slots that a threadblock can use between two barriers.
    """
    out, at, t, s = np.empty(1 << 16, dtype=np.uint8), 0, np.empty(1024, dtype=np.int64), _new_state(table_sizes, most)
    rows = np.zeros((len(p.block_ptr) - 1, 4), dtype=np.int64)
    ptr, members = np.zeros(5 * len(rows) + 1, dtype=np.int64), np.empty(1024, dtype=np.int64)
    for b in range(len(rows)):
        _reset(s)
        t = _write_block(p, t, s, b)
        rows[b, 0], rows[b, 2], rows[b, 3] = at, s.now[OPERATIONS], s.now[REPEATS]
        out = with_space(out, at + length_of(t, s.now[AT], words))
        at = spelled(out, at, t, s.now[AT], words)
        rows[b, 1] = at
        for table in range(5):
            last = ptr[5 * b + table]
            members = with_space(members, last + s.sizes[table])
            members[last : last + s.sizes[table]] = s.tables[table, : s.sizes[table]]
            ptr[5 * b + table + 1] = last + s.sizes[table]
    return out[:at], rows, ptr, members[: ptr[-1]]
