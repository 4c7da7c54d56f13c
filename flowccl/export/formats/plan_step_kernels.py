"""From the operations in the text of an MSCCL++ plan to steps of a program, compiled; gives up on what is wrong."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import I64, Bool, compiled, grown, inner
from flowccl.export.formats.plan_text_kernels import BUFFER_ID, SWITCH_ID, TYPE, PlanText
from flowccl.runtimes.limits import MSCCLPP_LIMITS, SEMAPHORES_PER_STEP

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
_NOP, _COPY, _RE, _PUT, _PWS, _PWSF, _SIGNAL, _RLXSIGNAL, _WAIT, _RLXWAIT = range(10)
_ACQUIRE, _RELEASE, _FLUSH, _GLRES, _GSTORE, _PPKT, _UPKT, _REPKT, _LOOP = range(10, 19)
_MEMORY, _PORT = 0, 1
_INDEX_BITS, _ZERO = 36, 1 << 34  # as in proof/steps.py
_PACKETS, _SCRATCH = 2, 3  # places in "iops"
_MOST_CHANNELS = 8  # of an operation
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
    return ((rank * 4 + buffer) << _INDEX_BITS) + index + _ZERO


@inner
def _typed(text: PlanText, row: int) -> int:
    """Return the buffer that a type names: its place in "iops"; -1 if it is none."""
    if text.kind[row] != TYPE:
        return -1
    letter = text.value[row]
    return 0 if letter == 105 else 1 if letter == 111 else _SCRATCH if letter == 115 else -1


@inner
def _channel(tables: BlockTables, b: int, kind: int, number: int) -> int:
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
def _on_group(text: PlanText, tables: BlockTables, b: int, n: int, bases: I64, counts: I64, group: I64) -> bool:
    """Find what an operation of a switch accesses: the same places in the memory of all GPUs of a group."""
    source, target, counts[0], counts[1] = text.sources[n, 0], text.targets[n, 0], 0, 0
    stored = _from_switch(text, tables, b, target)
    loaded = _from_switch(text, tables, b, source) if text.name[n] == _GLRES else -1
    if stored < 0 or (text.name[n] == _GLRES and loaded < 0):
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
def _on_one(text: PlanText, tables: BlockTables, b: int, n: int, bases: I64, counts: I64, peer: I64) -> bool:
    """Find what an operation on one GPU, or to another one, accesses; `peer[0]` is the other GPU or -1."""
    name, rank, low = text.name[n], tables.rank[b], text.sources[n, 0]
    sources, target = text.sources[n, 1] - low, text.targets[n, 0]
    counts[0], counts[1], peer[0] = 1, sources, -1
    if sources < 1 or sources > _MOST_SOURCES or (sources > 1 and name not in (_RE, _REPKT)):
        return False
    if name == _REPKT and sources < 2:
        return False
    for k in range(sources):
        buffer = _typed(text, low + k)
        if name == _UPKT or (name == _REPKT and k > 0):
            buffer = _PACKETS if buffer == _SCRATCH else -1
        if buffer < 0:
            return False
        bases[1, k] = _code(rank, buffer, text.offset[low + k])
    puts = name in (_PUT, _PWS, _PWSF, _PPKT)
    if not puts:
        buffer = _typed(text, target)
        bases[0, 0] = _code(rank, buffer, text.offset[target])
        return buffer >= 0
    kind = text.channel_type[n]
    if kind < 0 or kind > _PORT or text.kind[target] != BUFFER_ID or (name == _PPKT and kind != _MEMORY):
        return False
    place = tables.remote_ptr[2 * b + kind] + text.value[target]
    if place >= tables.remote_ptr[2 * b + kind + 1]:
        return False
    peer[0], buffer = tables.remote_rank[place], tables.remote_buffer[place]
    if name == _PPKT:
        if buffer != _SCRATCH:
            return False
        buffer = _PACKETS
    elif text.channels[n, 1] - text.channels[n, 0] != 1:
        return False
    bases[0, 0] = _code(peer[0], buffer, text.offset[target])
    return True


@inner
def _sizes_agree(text: PlanText, n: int) -> bool:
    """Whether the sources and the one target of an operation have the same, possible size."""
    if text.targets[n, 1] - text.targets[n, 0] != 1:
        return False
    target = text.targets[n, 0]
    good = bool(1 <= text.size[target] <= _MOST_SIZE and text.offset[target] <= _MOST_INDEX)
    for row in range(text.sources[n, 0], text.sources[n, 1]):
        good &= bool(text.size[row] == text.size[target] and text.offset[row] <= _MOST_INDEX)
    return good


@inner
def _meets(touched: I64, count: int, base: int, size: int) -> bool:
    """Whether some cells are among those that were touched."""
    found = False
    for i in range(count):
        found |= base < touched[i, 0] + touched[i, 1] and touched[i, 0] < base + size
    return found


@inner
def _is_packet(base: int) -> bool:
    return (base >> _INDEX_BITS) & 3 == _PACKETS


@inner
def _flushes_of(
    text: PlanText, tables: BlockTables, ids: I64, b: int, columns: StepColumns, push: I64, last: I64
) -> None:
    """Find the operation that completes each put of a NIC; `last` has that of each connection, or -1."""
    for n in range(tables.op_ptr[b + 1] - 1, tables.op_ptr[b] - 1, -1):
        if text.name[n] == _FLUSH:
            for k in range(text.channels[n, 0], text.channels[n, 1]):
                last[tables.out[_channel(tables, b, _PORT, ids[k])]] = n - tables.op_ptr[b]
        elif text.name[n] == _PWSF:
            for k in range(columns.push_ptr[n], columns.push_ptr[n + 1]):
                last[push[k]] = n - tables.op_ptr[b]
        elif columns.lingers[n]:
            columns.flushed_by[n] = last[push[columns.push_ptr[n]]]
    for k in range(tables.channel_ptr[2 * b], tables.channel_ptr[2 * b + 2]):
        last[tables.out[k]] = -1


@compiled
def steps_of_plan(
    text: PlanText, tables: BlockTables, ids: I64, connections: int, columns: StepColumns
) -> tuple[bool, I64, I64, I64, I64, I64]:
    """Fill the columns of all steps; return whether all is right, the pushes, pops, targets and sources."""
    push, pop = np.empty(1024, dtype=np.int64), np.empty(1024, dtype=np.int64)
    target, source, source_ptr = np.empty(1024, np.int64), np.empty(1024, np.int64), np.zeros(1024, np.int64)
    pushes, pops, assigns, reads = 0, 0, 0, 0
    bases, counts, one = np.zeros((2, 4096), np.int64), np.zeros(2, np.int64), np.zeros(1, np.int64)
    touched, last = np.zeros((64, 2), dtype=np.int64), np.full(connections, -1, dtype=np.int64)
    wrong = False, push, pop, target, source_ptr, source
    for b in range(len(tables.rank)):
        waited, worked, touches = False, False, 0
        for n in range(tables.op_ptr[b], tables.op_ptr[b + 1]):
            name, kind, size = text.name[n], text.channel_type[n], 0
            columns.push_ptr[n], columns.pop_ptr[n], columns.assign_ptr[n] = pushes, pops, assigns
            while pushes + 64 > len(push):
                push = grown(push)
            while pops + 64 > len(pop):
                pop = grown(pop)
            low, high = text.channels[n, 0], text.channels[n, 1]
            moves = name in (_COPY, _RE) or (name >= _PUT and name <= _PWSF) or (name >= _GLRES and name < _LOOP)
            if moves:
                if not _sizes_agree(text, n):
                    return wrong
                size = text.size[text.targets[n, 0]]
                if name in (_GLRES, _GSTORE):
                    if text.sources[n, 1] - text.sources[n, 0] != 1:
                        return wrong
                    if not _on_group(text, tables, b, n, bases, counts, one):
                        return wrong
                    columns.group[n], columns.size[n] = 2 * one[0] + (1 if name == _GLRES else 0), size
                else:
                    if not _on_one(text, tables, b, n, bases, counts, one):
                        return wrong
                    if one[0] >= 0:
                        columns.sends_to[n], columns.size[n], columns.packets[n] = one[0], size, name == _PPKT
                        columns.is_proxied[n] = 1 if kind == _PORT else 0
                    columns.lingers[n] = name == _PWS
                while assigns + size * counts[0] + 1 > len(target) or assigns + size * counts[0] + 2 > len(source_ptr):
                    target, source_ptr = grown(target), grown(source_ptr)
                while reads + size * counts[0] * counts[1] + 1 > len(source):
                    source = grown(source)
                for k in range(size):
                    for t in range(counts[0]):
                        target[assigns] = bases[0, t] + k
                        for s in range(counts[1]):
                            source[reads] = bases[1, s] + k
                            reads += 1
                        assigns += 1
                        source_ptr[assigns] = reads
            if name >= _PUT and name <= _RLXWAIT:
                if (kind not in (_MEMORY, _PORT)) or high - low > _MOST_CHANNELS:
                    return wrong
                for k in range(low, high):
                    place = _channel(tables, b, kind, ids[k])
                    if place < 0:
                        return wrong
                    if name <= _PWSF and tables.peer[place] != one[0]:
                        return wrong
                    if name in (_WAIT, _RLXWAIT):
                        pop[pops] = tables.into[place]
                        pops += 1
                    elif name != _PUT:
                        if name <= _PWSF and kind != _PORT:
                            return wrong
                        push[pushes] = tables.out[place]
                        pushes += 1
            elif name in (_ACQUIRE, _RELEASE):
                if text.semaphores[n, 1] - text.semaphores[n, 0] > SEMAPHORES_PER_STEP:
                    return wrong
                for k in range(text.semaphores[n, 0], text.semaphores[n, 1]):
                    if ids[k] >= tables.semaphores[b]:
                        return wrong
                    if name == _ACQUIRE:
                        pop[pops] = tables.first_semaphore[b] + ids[k]
                        pops += 1
                    else:
                        push[pushes] = tables.first_semaphore[b] + ids[k]
                        pushes += 1
            elif name == _FLUSH:
                if high - low > _MOST_CHANNELS or text.targets[n, 1] - text.targets[n, 0] != high - low:
                    return wrong
                for k in range(low, high):
                    if _channel(tables, b, _PORT, ids[k]) < 0:
                        return wrong
            works = moves and not (name >= _PUT and name <= _PWSF and kind == _PORT)
            if name >= _LOOP:  # threads may still do what comes last in a loop
                waited, worked, touches = True, True, 0
            elif name == _NOP:
                waited, worked, touches = False, False, 0
            elif pops > columns.pop_ptr[n]:
                if worked:
                    return wrong
                waited = True
            elif works:
                if waited:
                    return wrong
                before = touches
                for side in range(2):
                    for t in range(counts[side]):
                        if not _is_packet(bases[side, t]):
                            if _meets(touched, before, bases[side, t], size):
                                return wrong
                            if touches == len(touched):
                                more = np.zeros((2 * touches, 2), dtype=np.int64)
                                more[:touches] = touched
                                touched = more
                            touched[touches, 0], touched[touches, 1] = bases[side, t], size
                            touches += 1
                worked = True
            elif worked or (waited and name != _SIGNAL):
                return wrong
        last_op = tables.op_ptr[b + 1]
        columns.push_ptr[last_op], columns.pop_ptr[last_op], columns.assign_ptr[last_op] = pushes, pops, assigns
        _flushes_of(text, tables, ids, b, columns, push, last)
    return True, push[:pushes], pop[:pops], target[:assigns], source_ptr[: assigns + 1], source[:reads]
