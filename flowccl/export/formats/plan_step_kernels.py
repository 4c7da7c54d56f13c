"""From the operations in the text of an MSCCL++ plan to steps of a program, compiled; gives up on what is wrong."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import I64, compiled, inner, maker
from flowccl.export.formats.plan_access_kernels import (
    ACQUIRE,
    COPY,
    FLUSH,
    GLRES,
    GSTORE,
    INDEX_BITS,
    LOOP,
    MEMORY_CHANNEL,
    NOP,
    PACKETS,
    PORT_CHANNEL,
    PPKT,
    PUT,
    PWS,
    PWSF,
    RE,
    RELEASE,
    RLXWAIT,
    SIGNAL,
    WAIT,
    BlockTables,
    StepColumns,
    channel_of,
    on_group,
    on_one,
    sizes_agree,
)
from flowccl.export.formats.plan_text_kernels import PlanText, with_space
from flowccl.runtimes.limits import SEMAPHORES_PER_STEP

_MOST_CHANNELS = 8  # of an operation


@inner
def _meets(touched: I64, count: int, base: int, size: int) -> bool:
    """Whether some cells are among those that were touched."""
    found = False
    for i in range(count):
        found |= base < touched[i, 0] + touched[i, 1] and touched[i, 0] < base + size
    return found


@inner
def _is_packet(base: int) -> bool:
    return (base >> INDEX_BITS) & 3 == PACKETS


@inner
def _flushes_of(
    text: PlanText, tables: BlockTables, ids: I64, b: int, columns: StepColumns, push: I64, last: I64
) -> None:
    """Find the operation that completes each put of a NIC; `last` has that of each connection, or -1."""
    for n in range(tables.op_ptr[b + 1] - 1, tables.op_ptr[b] - 1, -1):
        if text.name[n] == FLUSH:
            for k in range(text.channels[n, 0], text.channels[n, 1]):
                last[tables.out[channel_of(tables, b, PORT_CHANNEL, ids[k])]] = n - tables.op_ptr[b]
        elif text.name[n] == PWSF:
            for k in range(columns.push_ptr[n], columns.push_ptr[n + 1]):
                last[push[k]] = n - tables.op_ptr[b]
        elif columns.lingers[n]:
            columns.flushed_by[n] = last[push[columns.push_ptr[n]]]
    for k in range(tables.channel_ptr[2 * b], tables.channel_ptr[2 * b + 2]):
        last[tables.out[k]] = -1


class _StepState(NamedTuple):
    """What has been written, and what the threads of the threadblock have done since their last barrier."""

    at: I64  # pushes, pops, targets, sources, cells that are touched, waited, worked
    push: I64
    pop: I64
    last: I64  # of each connection: see `_flushes_of`
    bases: I64  # where an operation writes, and where it reads
    counts: I64  # how many of both there are
    one: I64  # the peer, or the group, of an operation


_PUSHES, _POPS, _ASSIGNS, _READS, _TOUCHES, _WAITED, _WORKED = range(7)


@maker
def _not_begun(text: PlanText, connections: int) -> _StepState:
    """Nothing is written; pushes and pops are as many as the channels and semaphores of all operations at most."""
    most = 1
    for n in range(len(text.name)):
        most += text.channels[n, 1] - text.channels[n, 0] + text.semaphores[n, 1] - text.semaphores[n, 0]
    return _StepState(
        np.zeros(7, dtype=np.int64),
        np.empty(most, dtype=np.int64),
        np.empty(most, dtype=np.int64),
        np.full(connections, -1, dtype=np.int64),
        np.zeros((2, 4096), dtype=np.int64),
        np.zeros(2, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
    )


@inner
def _moves(name: int) -> bool:
    """Whether an operation moves data."""
    return name in (COPY, RE) or (name >= PUT and name <= PWSF) or (name >= GLRES and name < LOOP)


@inner
def _accesses(text: PlanText, tables: BlockTables, columns: StepColumns, s: _StepState, b: int, n: int) -> bool:
    """Find what an operation that moves data accesses; return whether that is right."""
    name = text.name[n]
    if not sizes_agree(text, n):
        return False
    size = text.size[text.targets[n, 0]]
    if name in (GLRES, GSTORE):
        if text.sources[n, 1] - text.sources[n, 0] != 1:
            return False
        if not on_group(text, tables, b, n, s.bases, s.counts, s.one):
            return False
        columns.group[n], columns.size[n] = 2 * s.one[0] + (1 if name == GLRES else 0), size
        return True
    if not on_one(text, tables, b, n, s.bases, s.counts, s.one):
        return False
    if s.one[0] >= 0:
        columns.sends_to[n], columns.size[n], columns.packets[n] = s.one[0], size, name == PPKT
        columns.is_proxied[n] = 1 if text.channel_type[n] == PORT_CHANNEL else 0
    columns.lingers[n] = name == PWS
    return True


@inner
def _write_cells(s: _StepState, size: int, target: I64, source_ptr: I64, source: I64) -> None:
    """Write the cells that an operation writes and reads."""
    for k in range(size):
        for t in range(s.counts[0]):
            target[s.at[_ASSIGNS]] = s.bases[0, t] + k
            for r in range(s.counts[1]):
                source[s.at[_READS]] = s.bases[1, r] + k
                s.at[_READS] += 1
            s.at[_ASSIGNS] += 1
            source_ptr[s.at[_ASSIGNS]] = s.at[_READS]


@inner
def _push(s: _StepState, connection: int) -> None:
    s.push[s.at[_PUSHES]] = connection
    s.at[_PUSHES] += 1


@inner
def _pop(s: _StepState, connection: int) -> None:
    s.pop[s.at[_POPS]] = connection
    s.at[_POPS] += 1


@inner
def _on_channels(text: PlanText, tables: BlockTables, ids: I64, s: _StepState, b: int, n: int) -> bool:
    """Write what an operation on channels pushes and pops; return whether that is right."""
    name, kind, low, high = text.name[n], text.channel_type[n], text.channels[n, 0], text.channels[n, 1]
    if (kind not in (MEMORY_CHANNEL, PORT_CHANNEL)) or high - low > _MOST_CHANNELS:
        return False
    for k in range(low, high):
        place = channel_of(tables, b, kind, ids[k])
        if place < 0 or (name <= PWSF and tables.peer[place] != s.one[0]):
            return False
        if name in (WAIT, RLXWAIT):
            _pop(s, tables.into[place])
        elif name != PUT:
            if name <= PWSF and kind != PORT_CHANNEL:
                return False
            _push(s, tables.out[place])
    return True


@inner
def _on_semaphores(text: PlanText, tables: BlockTables, ids: I64, s: _StepState, b: int, n: int) -> bool:
    """Write what an operation on semaphores pushes and pops; return whether that is right."""
    low, high = text.semaphores[n, 0], text.semaphores[n, 1]
    if high - low > SEMAPHORES_PER_STEP:
        return False
    for k in range(low, high):
        if ids[k] >= tables.semaphores[b]:
            return False
        if text.name[n] == ACQUIRE:
            _pop(s, tables.first_semaphore[b] + ids[k])
        else:
            _push(s, tables.first_semaphore[b] + ids[k])
    return True


@inner
def _orders(text: PlanText, tables: BlockTables, ids: I64, s: _StepState, b: int, n: int) -> bool:
    """Write what an operation pushes and pops; return whether that is right."""
    name, low, high = text.name[n], text.channels[n, 0], text.channels[n, 1]
    if name >= PUT and name <= RLXWAIT:
        return _on_channels(text, tables, ids, s, b, n)
    if name in (ACQUIRE, RELEASE):
        return _on_semaphores(text, tables, ids, s, b, n)
    if name == FLUSH:
        if high - low > _MOST_CHANNELS or text.targets[n, 1] - text.targets[n, 0] != high - low:
            return False
        for k in range(low, high):
            if channel_of(tables, b, PORT_CHANNEL, ids[k]) < 0:
                return False
    return True


@inner
def _touch(s: _StepState, touched: I64, size: int) -> bool:
    """Note what an operation accesses; return whether no other thread has accessed it since the last barrier."""
    before = s.at[_TOUCHES]
    for side in range(2):
        for t in range(s.counts[side]):
            base = s.bases[side, t]
            if not _is_packet(base):
                if _meets(touched, before, base, size):
                    return False
                touched[s.at[_TOUCHES], 0], touched[s.at[_TOUCHES], 1] = base, size
                s.at[_TOUCHES] += 1
    return True


@inner
def _is_synchronized(text: PlanText, columns: StepColumns, s: _StepState, touched: I64, n: int) -> bool:
    """Whether a barrier separates an operation from those before it where that is needed."""
    name = text.name[n]
    if name >= LOOP or name == NOP:  # threads may still do what comes last in a loop
        s.at[_WAITED], s.at[_WORKED], s.at[_TOUCHES] = name >= LOOP, name >= LOOP, 0
        return True
    if s.at[_POPS] > columns.pop_ptr[n]:
        s.at[_WAITED] = 1
        return not s.at[_WORKED]
    if _moves(name) and not (name >= PUT and name <= PWSF and text.channel_type[n] == PORT_CHANNEL):
        s.at[_WORKED] = 1
        return not s.at[_WAITED] and _touch(s, touched, text.size[text.targets[n, 0]])
    return not (s.at[_WORKED] or (s.at[_WAITED] and name != SIGNAL))


@maker
def _more_rows(rows: I64, least: int) -> I64:
    if least <= len(rows):
        return rows
    more = np.zeros((2 * least, 2), dtype=np.int64)
    more[: len(rows)] = rows
    return more


@inner
def _mark(columns: StepColumns, s: _StepState, n: int) -> None:
    """Set where the columns of an operation begin."""
    columns.push_ptr[n], columns.pop_ptr[n], columns.assign_ptr[n] = s.at[_PUSHES], s.at[_POPS], s.at[_ASSIGNS]


@compiled
def steps_of_plan(
    text: PlanText, tables: BlockTables, ids: I64, connections: int, columns: StepColumns
) -> tuple[bool, I64, I64, I64, I64, I64]:
    """Fill the columns of all steps; return whether all is right, the pushes, pops, targets and sources."""
    s, right = _not_begun(text, connections), True
    target, source, source_ptr = np.empty(1024, np.int64), np.empty(1024, np.int64), np.zeros(1024, np.int64)
    touched = np.zeros((64, 2), dtype=np.int64)
    for b in range(len(tables.rank)):
        s.at[_TOUCHES], s.at[_WAITED], s.at[_WORKED] = 0, 0, 0
        for n in range(tables.op_ptr[b], tables.op_ptr[b + 1]):
            _mark(columns, s, n)
            if _moves(text.name[n]):
                right = right and _accesses(text, tables, columns, s, b, n)
                if not right:
                    break
                size = text.size[text.targets[n, 0]]
                target = with_space(target, s.at[_ASSIGNS] + size * s.counts[0] + 1)
                source_ptr = with_space(source_ptr, s.at[_ASSIGNS] + size * s.counts[0] + 2)
                source = with_space(source, s.at[_READS] + size * s.counts[0] * s.counts[1] + 1)
                _write_cells(s, size, target, source_ptr, source)
            right = right and _orders(text, tables, ids, s, b, n)
            touched = _more_rows(touched, s.at[_TOUCHES] + s.counts[0] + s.counts[1])
            right = right and _is_synchronized(text, columns, s, touched, n)
            if not right:
                break
        if not right:
            break
        _mark(columns, s, tables.op_ptr[b + 1])
        _flushes_of(text, tables, ids, b, columns, s.push, s.last)
    pushes, pops, assigns, reads = s.at[_PUSHES], s.at[_POPS], s.at[_ASSIGNS], s.at[_READS]
    return right, s.push[:pushes], s.pop[:pops], target[:assigns], source_ptr[: assigns + 1], source[:reads]
