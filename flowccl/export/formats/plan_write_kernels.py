"""Writes the operations of the threadblocks of an MSCCL++ plan, compiled.

The threads of a threadblock run independently. A nop is a barrier of its threads: it separates a wait from the
operations that depend on it, and data from the signal that announces it.
"""

import numpy as np

from flowccl.compiled import I64, compiled, grown, inner, maker
from flowccl.export.formats import plan_row_kernels as rows
from flowccl.export.formats import plan_text_kernels as text
from flowccl.export.formats.plan_row_kernels import PlanActions, PlanState
from flowccl.export.formats.plan_text_kernels import U8, OperationRows, Words
from flowccl.export.lowering.actions import FLUSH, LOAD, POST, SEND, SIGNAL, STORE, WAIT, Ranges
from flowccl.schedule.placement import BUFFER_BITS, PACKETS, SCRATCH

MEMORY_BUFFERS, PORT_BUFFERS, SWITCHES = 2, 3, 4
"""The tables of a threadblock after its channels: buffers of other GPUs (4 * GPU + buffer), switches (4 * group +
buffer)."""


@inner
def _send(t: OperationRows, s: PlanState, p: PlanActions, a: int) -> None:
    """Put data into the memory of another GPU, or packets; signal it, where that is not the NIC's task."""
    actions, ranges, posts = p.actions, p.ranges, p.actions.kind[a] == POST
    low, high, m = actions.channel_low[a], actions.channel_high[a], actions.message[a]
    kind, table = (text.PORT, PORT_BUFFERS) if posts else (text.MEMORY, MEMORY_BUFFERS)
    name = text.PWS if posts else text.PPKT if p.sends_packets else text.PUT
    for r in range(actions.range_low[a], actions.range_high[a]):
        source, target, count, peer = ranges.source[r], ranges.target[r], ranges.slots[r], actions.peer[a]
        if not posts:
            if s.now[rows.WAITED] or rows.meets(s, source, count, s.now[rows.TOUCHED]):
                rows.barrier(t, s)
            s.now[rows.WORKED] = 1
            rows.touch(s, source, count)
        place = rows.place_of(s, table, 4 * peer + min(target >> BUFFER_BITS, SCRATCH))
        rows.begin(t, s, name, kind, m)
        rows.add_own(t, s, p, text.SOURCES, actions.rank[a], source, count)
        rows.add_slots(t, s, p, text.TARGETS, text.BUFFER_ID, place, peer, target, count)
        if low < high:
            rows.add_number(t, s, text.CHANNELS, rows.place_of(s, kind, p.ids[low]))
        t.operations[s.now[rows.ROWS], text.START] = 0
    if low < high and not posts:
        rows.barrier(t, s)
        rows.on_channels(t, s, text.SIGNAL, text.MEMORY, p.ids, low, high, False)


@inner
def _switch(t: OperationRows, s: PlanState, p: PlanActions, a: int) -> None:
    """Write an operation of a switch, and signal all other GPUs of its group."""
    actions, ranges, rank, loads = p.actions, p.ranges, p.actions.rank[a], p.actions.kind[a] == LOAD
    group = 4 * p.group[actions.message[a]]
    for r in range(actions.range_low[a], actions.range_high[a]):
        source, target, count, touched = ranges.source[r], ranges.target[r], ranges.slots[r], s.now[rows.TOUCHED]
        if s.now[rows.WAITED] or rows.meets(s, source, count, touched) or rows.meets(s, target, count, touched):
            rows.barrier(t, s)
        s.now[rows.WORKED] = 1
        rows.touch(s, source, count)
        rows.touch(s, target, count)
        place = rows.place_of(s, SWITCHES, group + (target >> BUFFER_BITS))
        loaded = rows.place_of(s, SWITCHES, group + (source >> BUFFER_BITS)) if loads else -1
        rows.begin(t, s, text.GLRES if loads else text.GSTORE, text.SWITCH, actions.message[a])
        if loads:
            rows.add_slots(t, s, p, text.SOURCES, text.SWITCH_ID, loaded, rank, source, count)
        else:
            rows.add_own(t, s, p, text.SOURCES, rank, source, count)
        rows.add_slots(t, s, p, text.TARGETS, text.SWITCH_ID, place, rank, target, count)
        rows.add_number(t, s, text.CHANNELS, place)
        t.operations[s.now[rows.ROWS], text.START] = 0
    rows.barrier(t, s)
    rows.on_channels(t, s, text.SIGNAL, text.MEMORY, p.ids, actions.channel_low[a], actions.channel_high[a], False)


@inner
def _waits_at_barrier(s: PlanState, ranges: Ranges, r: int) -> bool:
    """Whether an operation of a GPU uses what another thread waited for or wrote; note what it uses."""
    found, before = bool(s.now[rows.WAITED] > 0), s.now[rows.TOUCHED]
    for k in range(ranges.added_low[r] - 2, ranges.added_high[r]):
        slot = ranges.target[r] if k == ranges.added_low[r] - 2 else ranges.source[r]
        slot = ranges.added[k] if k >= ranges.added_low[r] else slot
        if slot >> BUFFER_BITS != PACKETS:
            found |= rows.meets(s, slot, ranges.slots[r], before)
            rows.touch(s, slot, ranges.slots[r])
    return found


@inner
def _local(t: OperationRows, s: PlanState, p: PlanActions, a: int, r: int) -> None:
    """Write a copy or a reduction: what the GPU has comes first."""
    ranges, rank, count, before = p.ranges, p.actions.rank[a], p.ranges.slots[r], s.now[rows.TOUCHED]
    is_packet, low, high = ranges.source[r] >> BUFFER_BITS == PACKETS, ranges.added_low[r], ranges.added_high[r]
    if _waits_at_barrier(s, ranges, r):
        new = s.now[rows.TOUCHED] - before
        rows.barrier(t, s)
        for k in range(new):
            rows.touch(s, s.touched[before + k, 0], s.touched[before + k, 1])
    s.now[rows.WORKED] = 1
    name = text.COPY if low == high else text.RE
    if is_packet:
        name = text.UPKT if low == high else text.REPKT
    rows.begin(t, s, name, -1, p.actions.message[a])
    if low < high:
        rows.add_own(t, s, p, text.SOURCES, rank, ranges.added[low], count)
    rows.add_own(t, s, p, text.SOURCES, rank, ranges.source[r], count)
    for k in range(low + 1, high):
        rows.add_own(t, s, p, text.SOURCES, rank, ranges.added[k], count)
    rows.add_own(t, s, p, text.TARGETS, rank, ranges.target[r], count)


@inner
def _wait_for(t: OperationRows, s: PlanState, p: PlanActions, a: int, kind: int) -> None:
    """Write a wait, or let it become one operation with those before it and after it."""
    low, high = p.actions.channel_low[a], p.actions.channel_high[a]
    if p.actions.message[a] < 0:
        rows.wait_now(t, s, kind)
        rows.before_wait(t, s)
        rows.on_channels(t, s, text.WAIT, kind, p.ids, low, high, True)
        return
    again = False
    for k in range(low, high):
        for j in range(s.now[rows.WAITING]):
            again |= s.waiting[j] == p.ids[k]
    if again:
        rows.wait_now(t, s, kind)
    if not s.now[rows.WAITING]:
        rows.before_wait(t, s)
    for k in range(low, high):
        s.waiting[s.now[rows.WAITING]] = p.ids[k]
        s.now[rows.WAITING] += 1
    s.now[rows.WAITED] = 1
    if p.release_ptr[a] < p.release_ptr[a + 1]:
        rows.wait_now(t, s, kind)
        rows.barrier(t, s)
        rows.on_semaphores(t, s, text.RELEASE, p.release, p.release_ptr[a], p.release_ptr[a + 1])


@inner
def _action(t: OperationRows, s: PlanState, p: PlanActions, a: int, channel_kind: int) -> None:
    """Write an action that is no wait, and its semaphores."""
    kind, low, high = p.actions.kind[a], p.actions.channel_low[a], p.actions.channel_high[a]
    if s.now[rows.WAITING]:
        rows.wait_now(t, s, channel_kind)
    if p.acquire_ptr[a] < p.acquire_ptr[a + 1]:
        rows.before_wait(t, s)
        rows.on_semaphores(t, s, text.ACQUIRE, p.acquire, p.acquire_ptr[a], p.acquire_ptr[a + 1])
        s.now[rows.WAITED] = 1
    if kind in (POST, FLUSH, SIGNAL):
        rows.barrier(t, s)
    if kind == FLUSH:
        rows.on_channels(t, s, text.FLUSH, text.PORT, p.ids, low, high, False)
    elif kind == SIGNAL:
        rows.on_channels(t, s, text.SIGNAL, channel_kind, p.ids, low, high, p.actions.message[a] < 0)
    elif kind in (STORE, LOAD):
        _switch(t, s, p, a)
    elif kind in (SEND, POST):
        _send(t, s, p, a)
    else:
        for r in range(p.actions.range_low[a], p.actions.range_high[a]):
            _local(t, s, p, a, r)
    if p.release_ptr[a] < p.release_ptr[a + 1]:
        rows.barrier(t, s)
        rows.on_semaphores(t, s, text.RELEASE, p.release, p.release_ptr[a], p.release_ptr[a + 1])


@inner
def _space_for(p: PlanActions, a: int) -> int:
    """More than the operations, buffers and numbers of an action."""
    actions, ranges = p.actions, p.ranges
    space = 16 + 2 * (actions.channel_high[a] - actions.channel_low[a])
    space += p.acquire_ptr[a + 1] - p.acquire_ptr[a] + p.release_ptr[a + 1] - p.release_ptr[a]
    for r in range(actions.range_low[a], actions.range_high[a]):
        space += 4 + ranges.added_high[r] - ranges.added_low[r]
    return int(space)


@maker
def _write_section(p: PlanActions, t: OperationRows, s: PlanState, b: int, section: int) -> OperationRows:
    """Write the actions of a threadblock that belong to a section."""
    kind = text.PORT if p.is_port[b] else text.MEMORY
    for a in range(p.block_ptr[b], p.block_ptr[b + 1]):
        if p.section[a] != section:
            continue
        t = rows.with_space(t, s, _space_for(p, a) + s.now[rows.WAITING])
        if p.actions.kind[a] == WAIT:
            _wait_for(t, s, p, a, kind)
        else:
            _action(t, s, p, a, kind)
    t = rows.with_space(t, s, 4 + s.now[rows.WAITING])
    rows.wait_now(t, s, kind)
    return t


@inner
def _has_section(p: PlanActions, b: int, section: int) -> bool:
    found = False
    for a in range(p.block_ptr[b], p.block_ptr[b + 1]):
        found |= p.section[a] == section
    return found


@maker
def _write_block(p: PlanActions, t: OperationRows, s: PlanState, b: int) -> OperationRows:
    """Write the operations of a threadblock: those that open a call, what is repeated, and what is done once."""
    low, high, first, last = p.announced_ptr[b], p.announced_ptr[b + 1], p.awaited_ptr[b], p.awaited_ptr[b + 1]
    kind = text.PORT if p.is_port[b] else text.MEMORY
    t = rows.with_space(t, s, 4 + high - low + last - first)
    rows.on_channels(t, s, text.SIGNAL, kind, p.announced, low, high, False)
    rows.on_channels(t, s, text.WAIT, kind, p.awaited, first, last, False)
    s.now[rows.WAITED] = first < last
    for section in range(2 if p.unit_bytes else 0):
        if _has_section(p, b, section):
            rows.begin(t, s, text.LOOP, -1, -1)
            s.now[rows.WAITED], s.now[rows.WORKED] = 1, 1  # in the repetition before, if in no operation before it
            t = rows.with_space(_write_section(p, t, s, b, section), s, 4)
            rows.begin(t, s, text.LOOP_END, -1, -1)
            s.now[rows.WAITED], s.now[rows.WORKED] = 1, 1
    return _write_section(p, t, s, b, 2 if p.unit_bytes else 0)


@compiled
def write_operations(p: PlanActions, words: Words, table_sizes: I64, most: int) -> tuple[U8, I64, I64, I64]:
    """Return the text of all operations, a row for each threadblock, and the pointer and members of its tables.

    A row has (begin and end of its text, operations with the marks of loops). `table_sizes` are how many members there
    may be in each table, `most` the most channels and slots that a threadblock can use between two barriers.
    """
    out, at, s = np.empty(1 << 16, dtype=np.uint8), 0, rows.new_state(table_sizes, most)
    t = OperationRows(np.zeros((64, 10), np.int64), np.zeros((64, 4), np.int64), np.zeros(64, np.int64))
    found = np.zeros((len(p.block_ptr) - 1, 3), dtype=np.int64)
    ptr, members = np.zeros(5 * len(found) + 1, dtype=np.int64), np.empty(1024, dtype=np.int64)
    for b in range(len(found)):
        rows.reset(s)
        t = _write_block(p, t, s, b)
        found[b, 0], found[b, 2] = at, s.now[rows.ROWS]
        out, at = rows.write_list(out, at, words, t, s.now[rows.ROWS], p.hints, p.unit_bytes)
        found[b, 1] = at
        for table in range(5):
            last = ptr[5 * b + table]
            while len(members) < last + s.sizes[table]:
                members = grown(members)
            members[last : last + s.sizes[table]] = s.tables[table, : s.sizes[table]]
            ptr[5 * b + table + 1] = last + s.sizes[table]
    return out[:at], found, ptr, members[: ptr[-1]]
