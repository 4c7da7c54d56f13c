"""The operations of a threadblock of an MSCCL++ plan as rows, one after the other, and their text, compiled."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import I64, Bool, grown, inner, maker
from flowccl.export.formats import plan_text_kernels as text
from flowccl.export.formats.plan_text_kernels import (
    BUFFER_ID,
    CHANNELS,
    LINKS,
    SEMAPHORES,
    SOURCES,
    TARGETS,
    TYPE,
    U8,
    Hints,
    OperationRows,
    Words,
    with_rows,
)
from flowccl.export.lowering.actions import MASK, Actions, Ranges
from flowccl.runtimes.limits import CHANNELS_PER_OPERATION, SEMAPHORES_PER_STEP
from flowccl.schedule.placement import BUFFER_BITS, SCRATCH


class PlanActions(NamedTuple):
    """What is written: the actions of each threadblock, their semaphores, and the channels that open a call."""

    actions: Actions
    ranges: Ranges
    ids: I64
    block_ptr: I64
    acquire_ptr: I64
    acquire: I64
    release_ptr: I64
    release: I64
    announced_ptr: I64
    announced: I64
    awaited_ptr: I64
    awaited: I64
    is_port: Bool  # of each threadblock
    group: I64  # of each message: that of its switch
    section: I64  # of each action: repeated, late, once
    hints: Hints
    unit_bytes: int  # 0: nothing is repeated
    packets: I64  # of each GPU: chunks of its packets
    first_ptr: I64  # of each GPU and buffer: the units before each place; empty where all chunks have the same size
    first: I64
    slots: int
    blocks: int
    sends_packets: bool


class PlanState(NamedTuple):
    """What a threadblock has written, and what its threads have done since their last barrier."""

    now: I64  # operations, waited, worked, touched, waiting
    touched: I64
    waiting: I64
    tables: I64  # of each table, one row
    sizes: I64  # of each table
    place: I64  # of each possible member of each table, or -1
    base: I64  # of each table: its first possible member


ROWS, WAITED, WORKED, TOUCHED, WAITING = range(5)


@inner
def begin(t: OperationRows, s: PlanState, name: int, kind: int, m: int) -> None:
    """Begin an operation on channels of a type, or of none (-1), for a message, or for none."""
    s.now[ROWS] += 1
    n, ops = s.now[ROWS], t.operations
    ops[n, text.NAME], ops[n, text.CHANNEL_TYPE], ops[n, text.MESSAGE] = name, kind, m
    ops[n, text.START], ops[n, text.LEAVES] = -1, 0
    ops[n, SOURCES], ops[n, TARGETS] = ops[n - 1, TARGETS], ops[n - 1, TARGETS]
    ops[n, CHANNELS], ops[n, SEMAPHORES], ops[n, LINKS] = ops[n - 1, LINKS], ops[n - 1, LINKS], ops[n - 1, LINKS]


@inner
def add_number(t: OperationRows, s: PlanState, column: int, value: int) -> None:
    """Add the number of a channel or a semaphore to an operation."""
    n, ops = s.now[ROWS], t.operations
    t.ids[ops[n, LINKS]] = value
    for later in range(column, LINKS + 1):
        ops[n, later] += 1


@inner
def _buffer(t: OperationRows, s: PlanState, column: int, kind: int, value: int, index: int, size: int) -> None:
    """Add a source or a target to an operation."""
    n, ops = s.now[ROWS], t.operations
    row = ops[n, TARGETS]
    t.buffers[row, text.KIND], t.buffers[row, text.VALUE] = kind, value
    t.buffers[row, text.INDEX], t.buffers[row, text.SIZE] = index, size
    for later in range(column, TARGETS + 1):
        ops[n, later] += 1


@inner
def _unit(p: PlanActions, rank: int, slot: int) -> int:
    """The first chunk of the plan of a slot."""
    place, part = (slot & MASK) // p.slots, (slot & MASK) % p.slots
    at = p.first_ptr[4 * rank + (slot >> BUFFER_BITS)] + place
    return p.first[at] * p.slots + (part * (p.first[at + 1] - p.first[at]) if part else 0)  # type: ignore[no-any-return]


@inner
def add_slots(
    t: OperationRows, s: PlanState, p: PlanActions, column: int, kind: int, value: int, rank: int, slot: int, count: int
) -> None:
    """Add some slots of a buffer of a GPU; with packets, its own plain data in scratch comes after all packets."""
    index, size = slot & MASK, count
    if len(p.first_ptr):
        index = _unit(p, rank, slot)
        size = _unit(p, rank, slot + count) - index
    if kind == TYPE and slot >> BUFFER_BITS == SCRATCH:
        index += 2 * p.packets[rank]
    _buffer(t, s, column, kind, value, index, size)


@inner
def add_own(t: OperationRows, s: PlanState, p: PlanActions, column: int, rank: int, slot: int, count: int) -> None:
    """Add some slots of a buffer of the GPU itself."""
    buffer = slot >> BUFFER_BITS
    letter = 105 if buffer == 0 else 111 if buffer == 1 else 115
    add_slots(t, s, p, column, TYPE, letter, rank, slot, count)


@inner
def place_of(s: PlanState, table: int, member: int) -> int:
    """The place of a member in a table, in the order of their first use."""
    key = s.base[table] + member
    if s.place[key] < 0:
        s.place[key] = s.sizes[table]
        s.tables[table, s.sizes[table]] = member
        s.sizes[table] += 1
    found: int = s.place[key]
    return found


@inner
def barrier(t: OperationRows, s: PlanState) -> None:
    """Write a barrier, where the threads have waited or worked since the last one."""
    if s.now[WAITED] or s.now[WORKED]:
        begin(t, s, text.NOP, -1, -1)
    s.now[WAITED], s.now[WORKED], s.now[TOUCHED] = 0, 0, 0


@inner
def on_channels(
    t: OperationRows, s: PlanState, name: int, kind: int, ids: I64, low: int, high: int, leaves: bool
) -> None:
    """Write operations on channels, as many as one may name in each. A flush counts them by targets (MSCCL++ 0.9.0)."""
    for first in range(low, high, CHANNELS_PER_OPERATION):
        begin(t, s, name, kind, -1)
        t.operations[s.now[ROWS], text.LEAVES] = leaves
        for k in range(first, min(first + CHANNELS_PER_OPERATION, high)):
            add_number(t, s, CHANNELS, place_of(s, kind, ids[k]))
            if name == text.FLUSH:
                _buffer(t, s, TARGETS, BUFFER_ID, 0, 0, 1)


@inner
def on_semaphores(t: OperationRows, s: PlanState, name: int, ids: I64, low: int, high: int) -> None:
    """Write operations on semaphores, as many as one may name in each."""
    for first in range(low, high, SEMAPHORES_PER_STEP):
        begin(t, s, name, -1, -1)
        for k in range(first, min(first + SEMAPHORES_PER_STEP, high)):
            add_number(t, s, SEMAPHORES, ids[k])


@inner
def wait_now(t: OperationRows, s: PlanState, kind: int) -> None:
    """Wait for the channels that are to be awaited."""
    on_channels(t, s, text.WAIT, kind, s.waiting, 0, s.now[WAITING], False)
    s.now[WAITING] = 0


@inner
def before_wait(t: OperationRows, s: PlanState) -> None:
    """All threads finish their work before one of them waits."""
    if s.now[WORKED]:
        barrier(t, s)


@inner
def touch(s: PlanState, slot: int, count: int) -> None:
    """Note that some slots are used."""
    n = s.now[TOUCHED]
    s.touched[n, 0], s.touched[n, 1] = slot, count
    s.now[TOUCHED] += 1


@inner
def meets(s: PlanState, slot: int, count: int, before: int) -> bool:
    """Whether some slots are among those that were touched first."""
    found = False
    for k in range(before):
        found |= slot < s.touched[k, 0] + s.touched[k, 1] and s.touched[k, 0] < slot + count
    return found


@maker
def with_space(t: OperationRows, s: PlanState, more: int) -> OperationRows:
    """Return the same rows, with space for more operations, buffers and numbers."""
    n, ids = s.now[ROWS], t.ids
    while len(ids) < t.operations[n, LINKS] + more:
        ids = grown(ids)
    buffers = with_rows(t.buffers, t.operations[n, TARGETS] + more)
    return OperationRows(with_rows(t.operations, n + more + 1), buffers, ids)


@maker
def new_state(sizes: I64, most: int) -> PlanState:
    """Nothing is written; see `write_operations` for what there is space for."""
    base = np.zeros(len(sizes) + 1, dtype=np.int64)
    for k in range(len(sizes)):
        base[k + 1] = base[k] + sizes[k]
    return PlanState(
        np.zeros(5, dtype=np.int64),
        np.zeros((most, 2), dtype=np.int64),
        np.zeros(most, dtype=np.int64),
        np.zeros((len(sizes), max(most, 1)), dtype=np.int64),
        np.zeros(len(sizes), dtype=np.int64),
        np.full(base[-1], -1, dtype=np.int64),
        base,
    )


@inner
def reset(s: PlanState) -> None:
    """Begin a threadblock."""
    s.now[:] = 0
    for table in range(len(s.sizes)):
        for k in range(s.sizes[table]):
            s.place[s.base[table] + s.tables[table, k]] = -1
        s.sizes[table] = 0


# -- text ---


@inner
def _word(out: U8, at: int, words: Words, k: int) -> int:
    for i in range(words.ptr[k], words.ptr[k + 1]):
        out[at] = words.text[i]
        at += 1
    return at


@inner
def _digits(out: U8, at: int, value: int) -> int:
    """Write a whole number; return the place after it."""
    digits, rest = 1, value // 10
    while rest:
        digits += 1
        rest //= 10
    for k in range(digits - 1, -1, -1):
        out[at + k] = 48 + value % 10
        value //= 10
    return at + digits


@inner
def _write_ids(out: U8, at: int, words: Words, word: int, ids: I64, low: int, high: int) -> int:
    """Write a list of numbers, unless it is empty."""
    if low == high:
        return at
    at = _word(out, at, words, word)
    for k in range(low, high):
        if k > low:
            at = _word(out, at, words, text.COMMA_WORD)
        at = _digits(out, at, ids[k])
    return _word(out, at, words, text.LIST_END_WORD)


@inner
def _write_buffers(out: U8, at: int, words: Words, word: int, buffers: I64, low: int, high: int) -> int:
    """Write a list of buffers, unless it is empty."""
    if low == high:
        return at
    at = _word(out, at, words, word)
    for k in range(low, high):
        if k > low:
            at = _word(out, at, words, text.COMMA_WORD)
        at = _word(out, at, words, text.BUFFER_WORD + buffers[k, text.KIND])
        if buffers[k, text.KIND] == TYPE:
            out[at] = buffers[k, text.VALUE]
            at = _word(out, at + 1, words, text.QUOTE_WORD)
        else:
            at = _digits(out, at, buffers[k, text.VALUE])
        at = _digits(out, _word(out, at, words, text.INDEX_WORD), buffers[k, text.INDEX])
        at = _word(
            out, _digits(out, _word(out, at, words, text.SIZE_WORD), buffers[k, text.SIZE]), words, text.END_WORD
        )
    return _word(out, at, words, text.LIST_END_WORD)


@inner
def _write_operation(out: U8, at: int, words: Words, rows: OperationRows, n: int, hints: Hints) -> int:
    """Write the operation of row n; return the place after it."""
    op, before = rows.operations[n], rows.operations[n - 1]
    at = _word(out, _word(out, _word(out, at, words, text.NAME_WORD), words, op[text.NAME]), words, text.QUOTE_WORD)
    at = _write_buffers(out, at, words, text.SOURCES_WORD, rows.buffers, before[TARGETS], op[SOURCES])
    at = _write_buffers(out, at, words, text.TARGETS_WORD, rows.buffers, op[SOURCES], op[TARGETS])
    at = _write_ids(out, at, words, text.CHANNELS_WORD, rows.ids, before[LINKS], op[CHANNELS])
    if op[text.CHANNEL_TYPE] >= 0:
        at = _word(out, _word(out, at, words, text.TYPE_WORD), words, text.TYPES_WORD + op[text.CHANNEL_TYPE])
        at = _word(out, at, words, text.QUOTE_WORD)
    at = _write_ids(out, at, words, text.SEMAPHORES_WORD, rows.ids, op[CHANNELS], op[SEMAPHORES])
    m = op[text.MESSAGE]
    if m >= 0:
        at = _digits(out, _word(out, at, words, text.MESSAGE_WORD), m)
    if op[text.START] >= 0:
        at = _digits(out, _word(out, at, words, text.START_WORD), hints.start[m])
        at = _word(out, _word(out, _word(out, at, words, text.RATE_WORD), words, hints.rate[m]), words, hints.path[m])
    if op[text.LEAVES]:
        at = _word(out, at, words, text.LEAVES_WORD)
    return _word(out, at, words, text.END_WORD)


@inner
def _space_for(words: Words, rows: OperationRows, n: int, hints: Hints) -> int:
    """More characters than an operation has."""
    op, before = rows.operations[n], rows.operations[n - 1]
    space = 512 + 96 * (op[TARGETS] - before[TARGETS]) + 21 * (op[LINKS] - before[LINKS])
    if op[text.START] >= 0:
        path = hints.path[op[text.MESSAGE]]
        space += words.ptr[path + 1] - words.ptr[path]
    return int(space)


@maker
def write_list(
    out: U8, at: int, words: Words, rows: OperationRows, count: int, hints: Hints, unit: int
) -> tuple[U8, int]:
    """Write the operations of the rows 1 to `count`; return the text and its end. A pipeline moves `unit` bytes."""
    for n in range(1, count + 1):
        name, before = rows.operations[n, text.NAME], rows.operations[n - 1, text.NAME]
        while at + _space_for(words, rows, n, hints) > len(out):
            out = grown(out)
        if n > 1 and before != text.LOOP and name != text.LOOP_END:
            at = _word(out, at, words, text.NEXT_WORD)
        if name == text.LOOP:
            at = _word(out, _digits(out, _word(out, at, words, text.LOOP_WORD), unit), words, text.BODY_WORD)
        elif name == text.LOOP_END:
            at = _word(out, at, words, text.LOOP_END_WORD)
        else:
            at = _write_operation(out, at, words, rows, n, hints)
    return out, at
