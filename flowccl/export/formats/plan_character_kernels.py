"""Characters of MSCCL++ plans: numbers, words, buffers, hints, operations on channels and semaphores, compiled."""

from typing import NamedTuple

from flowccl.compiled import I64, Bool, inner
from flowccl.export.formats.plan_text_kernels import U8, Words
from flowccl.export.lowering.actions import MASK, Actions, Ranges
from flowccl.runtimes.limits import CHANNELS_PER_OPERATION, SEMAPHORES_PER_STEP
from flowccl.schedule.placement import BUFFER_BITS, PACKETS, SCRATCH

MEMORY, PORT, MEMORY_BUFFERS, PORT_BUFFERS, SWITCHES = range(5)
"""The tables of a threadblock: channels, buffers of other GPUs (4 * GPU + buffer), switches (4 * group + buffer)."""
WORDS = [
    '{"name":"',
    '","src_buff":[',
    '],"dst_buff":[',
    '],"channel_ids":[',
    '","channel_ids":[',
    '],"channel_type":"',
    '"channel_type":"',
    '","dst_buff":[',
    '","semaphore_ids":[',
    '{"buffer_id":0,"index":0,"size":1}',
    '{"type":"',
    '{"buffer_id":',
    '{"switch_channel_id":',
    ',"index":',
    ',"size":',
    ',"message":',
    ',"start_ps":',
    ',"GBps":',
    ',"leaves":true',
    '{"name":"pipeline","iter_context":{"unit_size":',
    ',"num_chunks":1},"ops":[\n',
    '\n],"end":true}',
    "memory",
    "port",
    "switch",
    "nop",
    "wait",
    "signal",
    "put",
    "ppkt",
    "pws",
    "flush",
    "gstore",
    "glres",
    "copy",
    "re",
    "upkt",
    "repkt",
    "sem_acquire",
    "sem_release",
    '"',
    "}",
    "]",
    ",",
    ",\n",
    "i",
    "o",
    "s",
]
(
    NAME_WORD, SOURCES_WORD, TARGETS_WORD, AND_CHANNELS_WORD, CHANNELS_WORD, AND_TYPE_WORD, TYPE_WORD, TO_WORD,
    SEMAPHORES_WORD, NOTHING_WORD, BUFFER_WORD, REMOTE_WORD, SWITCH_WORD, INDEX_WORD, SIZE_WORD, MESSAGE_WORD,
    START_WORD, RATE_WORD, LEAVES_WORD, LOOP_WORD, LOOP_BODY_WORD, LOOP_END_WORD, MEMORY_WORD, PORT_WORD, SWITCHED_WORD,
    NOP_WORD, WAIT_WORD, SIGNAL_WORD, PUT_WORD, PPKT_WORD, PWS_WORD, FLUSH_WORD, GSTORE_WORD, GLRES_WORD, COPY_WORD,
    RE_WORD, UPKT_WORD, REPKT_WORD, ACQUIRE_WORD, RELEASE_WORD, QUOTE_WORD, END_WORD, LIST_END_WORD, COMMA_WORD,
    NEXT_WORD, INPUT_WORD, OUTPUT_WORD, SCRATCH_WORD,
) = range(len(WORDS))  # fmt: skip


class Hints(NamedTuple):
    """The start, the rate and the path of each message, for its threadblocks; the runtime ignores them."""

    start: I64
    rate: I64  # words
    path: I64


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

    now: I64  # characters, operations, waited, worked, touched, waiting, repeats
    touched: I64
    waiting: I64
    tables: I64  # of each table, one row
    sizes: I64  # of each table
    place: I64  # of each possible member of each table, or -1
    base: I64  # of each table: its first possible member


AT, OPERATIONS, WAITED, WORKED, TOUCHED, WAITING, REPEATS = range(7)


@inner
def word(t: I64, s: PlanState, k: int) -> None:
    """Add a word."""
    t[s.now[AT]] = -1 - k
    s.now[AT] += 1


@inner
def number(t: I64, s: PlanState, value: int) -> None:
    """Add a whole number."""
    t[s.now[AT]] = value
    s.now[AT] += 1


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
def spelled(out: U8, at: int, tokens: I64, count: int, words: Words) -> int:
    """Write words and numbers as text; return the place after it."""
    for k in range(count):
        if tokens[k] >= 0:
            at = _digits(out, at, tokens[k])
        else:
            for i in range(words.ptr[-1 - tokens[k]], words.ptr[-tokens[k]]):
                out[at] = words.text[i]
                at += 1
    return at


@inner
def length_of(tokens: I64, count: int, words: Words) -> int:
    """The most characters of words and numbers."""
    total = 20 * count
    for k in range(count):
        if tokens[k] < 0:
            total += words.ptr[-tokens[k]] - words.ptr[-1 - tokens[k]]
    return int(total)


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
def begin(t: I64, s: PlanState, name: int) -> None:
    """Begin an operation."""
    if s.now[OPERATIONS] > 0:
        word(t, s, NEXT_WORD)
    s.now[OPERATIONS] += 1
    word(t, s, NAME_WORD)
    word(t, s, name)


@inner
def barrier(t: I64, s: PlanState) -> None:
    """Write a barrier, where the threads have waited or worked since the last one."""
    if s.now[WAITED] or s.now[WORKED]:
        begin(t, s, NOP_WORD)
        word(t, s, QUOTE_WORD)
        word(t, s, END_WORD)
    s.now[WAITED], s.now[WORKED], s.now[TOUCHED] = 0, 0, 0


@inner
def on_channels(t: I64, s: PlanState, name: int, port: bool, ids: I64, low: int, high: int, leaves: bool) -> None:
    """Write operations on channels, as many as one may name in each."""
    for first in range(low, high, CHANNELS_PER_OPERATION):
        begin(t, s, name)
        word(t, s, CHANNELS_WORD)
        for k in range(first, min(first + CHANNELS_PER_OPERATION, high)):
            if k > first:
                word(t, s, COMMA_WORD)
            number(t, s, place_of(s, PORT if port else MEMORY, ids[k]))
        word(t, s, AND_TYPE_WORD)
        word(t, s, PORT_WORD if port else MEMORY_WORD)
        word(t, s, QUOTE_WORD)
        if leaves:
            word(t, s, LEAVES_WORD)
        word(t, s, END_WORD)


@inner
def on_semaphores(t: I64, s: PlanState, name: int, ids: I64, low: int, high: int) -> None:
    """Write operations on semaphores, as many as one may name in each."""
    for first in range(low, high, SEMAPHORES_PER_STEP):
        begin(t, s, name)
        word(t, s, SEMAPHORES_WORD)
        for k in range(first, min(first + SEMAPHORES_PER_STEP, high)):
            if k > first:
                word(t, s, COMMA_WORD)
            number(t, s, ids[k])
        word(t, s, LIST_END_WORD)
        word(t, s, END_WORD)


@inner
def wait_now(t: I64, s: PlanState, port: bool) -> None:
    """Wait for the channels that are to be awaited."""
    on_channels(t, s, WAIT_WORD, port, s.waiting, 0, s.now[WAITING], False)
    s.now[WAITING] = 0


@inner
def before_wait(t: I64, s: PlanState) -> None:
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
def meets(s: PlanState, slot: int, count: int) -> bool:
    """Whether some slots are among those that were touched."""
    found = False
    for k in range(s.now[TOUCHED]):
        found |= slot < s.touched[k, 0] + s.touched[k, 1] and s.touched[k, 0] < slot + count
    return found


@inner
def _unit(p: PlanActions, rank: int, slot: int) -> int:
    """The first chunk of the plan of a slot."""
    place, part = (slot & MASK) // p.slots, (slot & MASK) % p.slots
    at = p.first_ptr[4 * rank + (slot >> BUFFER_BITS)] + place
    return p.first[at] * p.slots + (part * (p.first[at + 1] - p.first[at]) if part else 0)  # type: ignore[no-any-return]


@inner
def _index_and_size(t: I64, s: PlanState, p: PlanActions, rank: int, slot: int, count: int, more: int) -> None:
    index, size = slot & MASK, count
    if len(p.first_ptr):
        index = _unit(p, rank, slot)
        size = _unit(p, rank, slot + count) - index
    word(t, s, INDEX_WORD)
    number(t, s, index + more)
    word(t, s, SIZE_WORD)
    number(t, s, size)
    word(t, s, END_WORD)


@inner
def own_buffer(t: I64, s: PlanState, p: PlanActions, rank: int, slot: int, count: int) -> None:
    """Write some slots of a buffer; with packets, plain data in scratch comes after all packets."""
    buffer = slot >> BUFFER_BITS
    word(t, s, BUFFER_WORD)
    word(t, s, INPUT_WORD + min(buffer, SCRATCH))
    word(t, s, QUOTE_WORD)
    _index_and_size(t, s, p, rank, slot, count, 2 * p.packets[rank] if buffer == SCRATCH else 0)


@inner
def other_buffer(t: I64, s: PlanState, p: PlanActions, what: int, place: int, rank: int, slot: int, count: int) -> None:
    """Write some slots of a buffer that a table of the threadblock names."""
    word(t, s, what)
    number(t, s, place)
    _index_and_size(t, s, p, rank, slot, count, 0)


@inner
def hint_of(t: I64, s: PlanState, hints: Hints, m: int) -> None:
    """Write the hints of a message, and end the operation."""
    word(t, s, MESSAGE_WORD)
    number(t, s, m)
    word(t, s, START_WORD)
    number(t, s, hints.start[m])
    word(t, s, RATE_WORD)
    word(t, s, hints.rate[m])
    word(t, s, hints.path[m])
    word(t, s, END_WORD)


@inner
def waits_at_barrier(s: PlanState, ranges: Ranges, r: int) -> bool:
    """Whether an operation of a GPU uses what another thread waited for or wrote; note what it uses."""
    meets, before = bool(s.now[WAITED] > 0), s.now[TOUCHED]
    for k in range(ranges.added_low[r] - 2, ranges.added_high[r]):
        slot = ranges.target[r] if k == ranges.added_low[r] - 2 else ranges.source[r]
        slot = ranges.added[k] if k >= ranges.added_low[r] else slot
        if slot >> BUFFER_BITS != PACKETS:
            for j in range(before):
                n = ranges.slots[r]
                meets |= slot < s.touched[j, 0] + s.touched[j, 1] and s.touched[j, 0] < slot + n
            touch(s, slot, ranges.slots[r])
    return meets
