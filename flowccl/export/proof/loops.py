"""Programs with loops: threadblocks that repeat steps, each time with the next part of every chunk.

Marks around the repeated steps divide a threadblock into phases. The proof treats such a program as if each step moved
whole chunks at once. That is right where these conditions hold, which are checked here:

- A repeated step moves one chunk, so all steps move the same part of it at a time, and parts do not touch each other.
- A threadblock has a loop, and perhaps a second one after it that only waits.
- The tokens of a connection that are put in loops are taken in loops, as many each time, all in first or all in second
  loops; those that are put before the loops are taken before them, and those that are put after them, after them.

Then the n-th repetition of a step takes the tokens of the n-th repetition of another. What comes before a step in the
program with whole chunks comes before it in every repetition, so nothing is read early. And there is no deadlock: in
the order of repetitions, and inside each one in the order of the program with whole chunks, each step only waits for
steps before it. Second loops come last: they only wait, so nothing waits for them.
"""

from dataclasses import fields, replace
from typing import Any

import numpy as np

from flowccl.arrays import members, pointers
from flowccl.export.proof.program import Finding, RuntimeProgram
from flowccl.export.proof.steps import I64, StepArrays, owners
from flowccl.schedule.timing import spread

BEFORE, LOOP, LATE, AFTER = range(4)
"""The phases of a threadblock: before its loops, the first loop, a loop that only waits, after its loops."""


def phases(table: StepArrays) -> tuple[I64, list[int]]:
    """Return the phase of each step, and threadblocks with other loops than are supported."""
    begin, end = (_named(table, name) for name in ("loop", "loop_end"))
    order = np.lexsort((table.index, table.thread))
    first = np.searchsorted(table.thread[order], np.arange(table.thread.max(initial=-1) + 1))
    begun, ended = np.cumsum(begin[order]), np.cumsum(end[order])
    begun -= (begun[first] - begin[order][first])[table.thread[order]]
    ended -= (ended[first] - end[order][first])[table.thread[order]]
    loop = np.empty(len(table), dtype=np.int64)  # the number of the loop of each step, from 1; its marks are in it
    loop[order] = np.where(begun > ended - end[order], begun, 0)
    over = np.empty(len(table), dtype=np.bool_)
    over[order] = begun > 0
    acts = (np.diff(table.assign_ptr) > 0) | (np.diff(table.push_ptr) > 0) | (table.flushed_by >= 0)
    waits_only = np.ones((len(first), int(loop.max(initial=0)) + 1), dtype=np.bool_)
    waits_only[table.thread[acts], loop[acts]] = False
    phase = np.where(loop > 0, np.where(waits_only[table.thread, loop], LATE, LOOP), np.where(over, AFTER, BEFORE))
    main = np.zeros(len(first), dtype=np.int64)
    np.maximum.at(main, table.thread[phase == LOOP], loop[phase == LOOP])
    between = (phase == AFTER) & acts & _loop_follows(table, loop)
    wrong = (loop > 2) | ((phase == LOOP) & (loop > 1)) | between
    return phase, sorted(set(table.thread[wrong].tolist()))


def _loop_follows(table: StepArrays, loop: I64) -> np.ndarray:
    """Whether a loop of the threadblock of each step comes after the step."""
    last = np.full(int(table.thread.max(initial=-1)) + 1, -1, dtype=np.int64)
    np.maximum.at(last, table.thread[loop > 0], table.index[loop > 0])
    return np.asarray(table.index < last[table.thread])


def check_loops(program: RuntimeProgram, table: StepArrays) -> list[Finding]:
    """Return what is wrong with the loops of a program; nothing where it has none."""
    if not program.unit_bytes:
        return []
    phase, wrong = phases(table)
    if wrong:
        step = int(np.flatnonzero(table.thread == wrong[0])[0])
        words = "its loops are not one loop, and perhaps one more that only waits, with nothing between them"
        return [Finding("loop", f"{_block(program, step)}: {words}")]
    repeated = (phase == LOOP) | (phase == LATE)
    cells = np.diff(table.assign_ptr)
    ranks = np.array([len(ranks) for ranks, _ in table.groups] + [1], dtype=np.int64)
    several = np.flatnonzero(repeated & (cells > 0) & (cells != ranks[table.group]))
    findings = [
        Finding("loop", f"{program.operations[n]}: a step of a loop moves one chunk, this one {cells[n]}")
        for n in several.tolist()
    ]
    return findings + _unequal_tokens(program, table, phase)


def _unequal_tokens(program: RuntimeProgram, table: StepArrays, phase: I64) -> list[Finding]:
    """Find connections whose tokens are put and taken in different phases."""
    count = len(table.connections)
    put, taken = np.zeros((2, count, 4), dtype=np.int64)
    np.add.at(put, (table.push, phase[owners(table.push_ptr)]), 1)
    np.add.at(taken, (table.pop, phase[owners(table.pop_ptr)]), 1)
    in_loops = taken[:, LOOP] + taken[:, LATE]
    wrong = (put[:, LOOP] != in_loops) | (put[:, LATE] > 0) | ((taken[:, LOOP] > 0) & (taken[:, LATE] > 0))
    wrong |= (put[:, BEFORE] != taken[:, BEFORE]) | (put[:, AFTER] != taken[:, AFTER])
    return [
        Finding("loop", f"connection {table.connections[key]}: its tokens are not put and taken in the same phase")
        for key in np.flatnonzero(wrong).tolist()
    ]


def _block(program: RuntimeProgram, step: int) -> str:
    operation = program.operations[step]
    return f"gpu {operation.rank} threadblock {operation.block}"


def _named(table: StepArrays, name: str) -> np.ndarray:
    return np.asarray(table.name == (table.names.index(name) if name in table.names else -1))


def unrolled(program: RuntimeProgram, table: StepArrays, chunk_bytes: int) -> tuple[StepArrays, I64]:
    """Return the steps with every repetition of those in loops, and the bytes of a chunk that each of them moves.

    Messages, starts and rates are those of each part, where the file says them for this size.
    """
    if not program.unit_bytes:
        return table, np.full(len(table), chunk_bytes, dtype=np.int64)
    phase, _ = phases(table)
    parts = -(-chunk_bytes // program.unit_bytes)
    times = np.where((phase == LOOP) | (phase == LATE), parts, 1)
    step, part = members(times)
    order = np.lexsort((table.index[step], part, phase[step], table.thread[step]))
    step, part = step[order], part[order]
    is_part = times[step] > 1
    size = np.where(is_part, np.minimum(program.unit_bytes, chunk_bytes - part * program.unit_bytes), chunk_bytes)
    found = _rows(table, step)
    thread_ptr = pointers(np.bincount(found.thread))
    message = found.message
    found.index = np.arange(len(step)) - thread_ptr[found.thread]
    starts, rates = program.parts
    if starts.shape[1:] == (parts,):
        known = is_part & (message >= 0) & (found.GBps > 0) & (message < len(starts))
        found.start_ps = np.where(known, starts[np.where(known, message, 0), part], found.start_ps)
        found.GBps = np.where(known, rates[np.where(known, message, 0), part], found.GBps)
    found.message = np.where(message >= 0, message * parts + np.where(is_part, part, 0), -1)
    return found, size


_OF_OTHERS = {"target", "source", "push", "pop", "by_proxy"}


def _rows(table: StepArrays, step: I64) -> StepArrays:
    """Return some steps, in order, without the cells that they access."""
    columns: dict[str, Any] = {
        one.name: getattr(table, one.name)[step]
        for one in fields(table)
        if isinstance(getattr(table, one.name), np.ndarray)
        and not one.name.endswith("_ptr")
        and one.name not in _OF_OTHERS
    }
    lists: dict[str, Any] = {}
    for ptr, name in (("push_ptr", "push"), ("pop_ptr", "pop")):
        lists[ptr] = pointers(np.diff(getattr(table, ptr))[step])
        lists[name] = getattr(table, name)[spread(getattr(table, ptr), step.astype(np.int32))[1]]
    lists["assign_ptr"] = pointers(np.diff(table.assign_ptr)[step])
    return replace(table, **columns, **lists)
