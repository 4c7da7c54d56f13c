"""What the operations of an MSCCL++ plan access: cells of GPUs, channels, switches; compiled."""

from typing import NamedTuple

from flowccl.compiled import I64, Bool, inner
from flowccl.export.formats.plan_text_kernels import BUFFER_ID, SWITCH_ID, TYPE, PlanText
from flowccl.runtimes.limits import MSCCLPP_LIMITS

NAMES = [
    "nop",
    "copy",
    "re",
    "put",
    "pws",
    "pwsf",
    "signal",
    "rlxsignal",
    "wait",
    "rlxwait",
    "sem_acquire",
    "sem_release",
    "flush",
    "glres",
    "gstore",
    "ppkt",
    "upkt",
    "repkt",
    "loop",
    "loop_end",
]
NOP, COPY, RE, PUT, PWS, PWSF, SIGNAL, RLXSIGNAL, WAIT, RLXWAIT = range(10)
ACQUIRE, RELEASE, FLUSH, GLRES, GSTORE, PPKT, UPKT, REPKT, LOOP = range(10, 19)
MEMORY_CHANNEL, PORT_CHANNEL = 0, 1
INDEX_BITS, _ZERO = 36, 1 << 34  # as in proof/steps.py
PACKETS, _SCRATCH = 2, 3  # places in "iops"
_MOST_SOURCES = MSCCLPP_LIMITS.operands
_MOST_INDEX, _MOST_SIZE = (1 << 31) - 1, 1 << 20


class BlockTables(NamedTuple):
    """The tables of all threadblocks, one after the other; threadblock b has channels of two types, 2 b and 2 b + 1.

    `out` and `into` are the connections of a channel, `peer` its other end. `remote_rank` and `remote_buffer` are
    buffers of other GPUs. A switch channel is a number of a group: its buffer and its ranks.
    """

    op_ptr: I64
    rank: I64
    channel_ptr: I64
    out: I64
    into: I64
    peer: I64
    remote_ptr: I64
    remote_rank: I64
    remote_buffer: I64
    switch_ptr: I64
    switch: I64
    group_buffer: I64
    group_ptr: I64
    group_rank: I64
    first_semaphore: I64
    semaphores: I64


class StepColumns(NamedTuple):
    """Columns of steps that are made here."""

    size: I64
    sends_to: I64
    group: I64
    packets: Bool
    lingers: Bool
    is_proxied: I64
    flushed_by: I64
    push_ptr: I64
    pop_ptr: I64
    assign_ptr: I64


@inner
def _code(rank: int, buffer: int, index: int) -> int:
    return ((rank * 4 + buffer) << INDEX_BITS) + index + _ZERO


@inner
def _typed(text: PlanText, row: int) -> int:
    """Return the buffer that a type names: its place in "iops"; -1 if it is none."""
    if text.kind[row] != TYPE:
        return -1
    letter = text.value[row]
    return 0 if letter == 105 else 1 if letter == 111 else _SCRATCH if letter == 115 else -1


@inner
def channel_of(tables: BlockTables, b: int, kind: int, number: int) -> int:
    """Return the place of a channel in the tables; -1 if the threadblock has no such channel."""
    first = tables.channel_ptr[2 * b + kind]
    return first + number if first + number < tables.channel_ptr[2 * b + kind + 1] else -1


@inner
def _from_switch(text: PlanText, tables: BlockTables, b: int, row: int) -> int:
    """Return the group of a switch channel, or -1."""
    first = tables.switch_ptr[b]
    if text.kind[row] != SWITCH_ID or first + text.value[row] >= tables.switch_ptr[b + 1]:
        return -1
    group: int = tables.switch[first + text.value[row]]
    return group


@inner
def on_group(text: PlanText, tables: BlockTables, b: int, n: int, bases: I64, counts: I64, group: I64) -> bool:
    """Find what an operation of a switch accesses: the same places in the memory of all GPUs of a group."""
    source, target, counts[0], counts[1] = text.sources[n, 0], text.targets[n, 0], 0, 0
    stored = _from_switch(text, tables, b, target)
    loaded = _from_switch(text, tables, b, source) if text.name[n] == GLRES else -1
    if stored < 0 or (text.name[n] == GLRES and loaded < 0):
        return False
    group[0] = stored
    for k in range(tables.group_ptr[stored], tables.group_ptr[stored + 1]):
        if counts[0] + 1 >= bases.shape[1]:
            return False
        bases[0, counts[0]] = _code(tables.group_rank[k], tables.group_buffer[stored], text.offset[target])
        counts[0] += 1
    if loaded < 0:
        buffer = _typed(text, source)
        bases[1, 0], counts[1] = _code(tables.rank[b], buffer, text.offset[source]), 1
        return buffer >= 0
    for k in range(tables.group_ptr[loaded], tables.group_ptr[loaded + 1]):
        if counts[1] + 1 >= bases.shape[1]:
            return False
        bases[1, counts[1]] = _code(tables.group_rank[k], tables.group_buffer[loaded], text.offset[source])
        counts[1] += 1
    return True


@inner
def on_one(text: PlanText, tables: BlockTables, b: int, n: int, bases: I64, counts: I64, peer: I64) -> bool:
    """Find what an operation on one GPU, or to another one, accesses; `peer[0]` is the other GPU or -1."""
    name, rank, low = text.name[n], tables.rank[b], text.sources[n, 0]
    sources, target = text.sources[n, 1] - low, text.targets[n, 0]
    counts[0], counts[1], peer[0] = 1, sources, -1
    if sources < 1 or sources > _MOST_SOURCES or (sources > 1 and name not in (RE, REPKT)):
        return False
    if name == REPKT and sources < 2:
        return False
    for k in range(sources):
        buffer = _typed(text, low + k)
        if name == UPKT or (name == REPKT and k > 0):
            buffer = PACKETS if buffer == _SCRATCH else -1
        if buffer < 0:
            return False
        bases[1, k] = _code(rank, buffer, text.offset[low + k])
    puts = name in (PUT, PWS, PWSF, PPKT)
    if not puts:
        buffer = _typed(text, target)
        bases[0, 0] = _code(rank, buffer, text.offset[target])
        return buffer >= 0
    kind = text.channel_type[n]
    if kind < 0 or kind > PORT_CHANNEL or text.kind[target] != BUFFER_ID or (name == PPKT and kind != MEMORY_CHANNEL):
        return False
    place = tables.remote_ptr[2 * b + kind] + text.value[target]
    if place >= tables.remote_ptr[2 * b + kind + 1]:
        return False
    peer[0], buffer = tables.remote_rank[place], tables.remote_buffer[place]
    if name == PPKT:
        if buffer != _SCRATCH:
            return False
        buffer = PACKETS
    elif text.channels[n, 1] - text.channels[n, 0] != 1:
        return False
    bases[0, 0] = _code(peer[0], buffer, text.offset[target])
    return True


@inner
def sizes_agree(text: PlanText, n: int) -> bool:
    """Whether the sources and the one target of an operation have the same, possible size."""
    if text.targets[n, 1] - text.targets[n, 0] != 1:
        return False
    target = text.targets[n, 0]
    good = bool(1 <= text.size[target] <= _MOST_SIZE and text.offset[target] <= _MOST_INDEX)
    for row in range(text.sources[n, 0], text.sources[n, 1]):
        good &= bool(text.size[row] == text.size[target] and text.offset[row] <= _MOST_INDEX)
    return good
