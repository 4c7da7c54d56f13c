"""The compiled part of `dependencies`: the semaphores between the threadblocks of a GPU."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import I64, compiled, grown, inner, maker
from flowccl.export.lowering.actions import FLUSH, MASK, POST, SEND, SIGNAL, WAIT, WORK, Actions, Ranges

_BUFFER_BITS = 40
_PACKETS = 3 << _BUFFER_BITS


class _Slots(NamedTuple):
    """What the actions of a GPU so far have done with each of its slots."""

    first: I64  # of each buffer: its first slot here
    wrote: I64  # the last action that wrote it, or -1
    read: I64  # the last entry of those that have read it since, or -1
    reader: I64  # of each entry
    before: I64  # of each entry: the one before it, or -1


@compiled
def waits_in_order(direction: I64, wait_time: I64, tie: I64, end: int) -> None:
    """Let waits on a channel be in the order of its messages: none comes after the wait for a later message.

    The pairs are in the order of channels and messages; `wait_time` and `tie` are changed.
    """
    earliest = end
    for n in range(len(direction) - 1, -1, -1):
        if n + 1 == len(direction) or direction[n + 1] != direction[n]:
            earliest = end
        earliest = min(earliest, wait_time[n])
        wait_time[n] = earliest
    for n in range(len(direction)):
        tie[n] = tie[n - 1] + 1 if n and direction[n - 1] == direction[n] else 0


@inner
def _at(slots: _Slots, slot: int) -> int:
    place: int = slots.first[slot >> _BUFFER_BITS] + (slot & MASK)
    return place


@inner
def _reads(kind: int) -> bool:
    return kind not in (WAIT, FLUSH)


@inner
def _writes(kind: int) -> bool:
    return kind not in (SIGNAL, FLUSH, POST, SEND)


@inner
def _note_required(slots: _Slots, place: int, count: int, required: I64, needed: int) -> int:
    """Add the last actions that wrote some slots to what an action requires."""
    for k in range(place, place + count):
        if slots.wrote[k] >= 0 and (needed == 0 or required[needed - 1] != slots.wrote[k]):
            required[needed] = slots.wrote[k]
            needed += 1
    return needed


@inner
def _required_by(actions: Actions, ranges: Ranges, slots: _Slots, a: int, required: I64) -> int:
    """Write the actions after which an action comes; return their number. `required` has space for all slots."""
    needed, kind = 0, actions.kind[a]
    if kind == WAIT:
        return 0
    for r in range(actions.range_low[a], actions.range_high[a]):
        count = ranges.slots[r]
        if _reads(kind):
            if ranges.source[r] < _PACKETS:
                needed = _note_required(slots, _at(slots, ranges.source[r]), count, required, needed)
            for k in range(ranges.added_low[r], ranges.added_high[r]):
                if ranges.added[k] < _PACKETS:
                    needed = _note_required(slots, _at(slots, ranges.added[k]), count, required, needed)
        if _writes(kind) and ranges.target[r] < _PACKETS:
            needed = _note_required(slots, _at(slots, ranges.target[r]), count, required, needed)
    return needed


@inner
def _readers_of(actions: Actions, ranges: Ranges, slots: _Slots, a: int, required: I64, needed: int) -> int:
    """Add those that have read the slots that an action writes, and forget them; -1 where `required` has no space."""
    for r in range(actions.range_low[a], actions.range_high[a]):
        if ranges.target[r] >= _PACKETS:
            continue
        place = _at(slots, ranges.target[r])
        for k in range(place, place + ranges.slots[r]):
            entry = slots.read[k]
            slots.read[k] = -1
            while entry >= 0:
                required[needed] = slots.reader[entry]
                needed += 1
                entry = slots.before[entry]
    return needed


@inner
def _known_of(values: I64, required: I64, needed: int) -> int:
    """Add the actions that are known to what an action requires."""
    for value in values:
        if value >= 0:
            required[needed] = value
            needed += 1
    return needed


@inner
def _note_read(slots: _Slots, slot: int, count: int, n: int, entries: int) -> int:
    if slot < _PACKETS:
        place = _at(slots, slot)
        for k in range(place, place + count):
            slots.reader[entries], slots.before[entries] = n, slots.read[k]
            slots.read[k] = entries
            entries += 1
    return entries


@inner
def _note(actions: Actions, ranges: Ranges, slots: _Slots, a: int, n: int, overwrites: bool, entries: int) -> int:
    """Note what an action writes, and with `overwrites` what it reads."""
    kind = actions.kind[a]
    for r in range(actions.range_low[a], actions.range_high[a]):
        if _writes(kind) and ranges.target[r] < _PACKETS:
            place = _at(slots, ranges.target[r])
            slots.wrote[place : place + ranges.slots[r]] = n
    for r in range(actions.range_low[a], actions.range_high[a] if overwrites and _reads(kind) else 0):
        entries = _note_read(slots, ranges.source[r], ranges.slots[r], n, entries)
        for k in range(ranges.added_low[r], ranges.added_high[r]):
            entries = _note_read(slots, ranges.added[k], ranges.slots[r], n, entries)
    return entries


@maker
def _slots_moved(actions: Actions, ranges: Ranges, low: int, high: int) -> int:
    """The most slots that any of some actions reads, and the slots that all of them read."""
    total = 0
    for a in range(low, high):
        for r in range(actions.range_low[a], actions.range_high[a]):
            total += ranges.slots[r] * (2 + ranges.added_high[r] - ranges.added_low[r])
    return total


@inner
def _sort(values: I64, count: int) -> None:
    """Sort the first values (Shell's sort)."""
    gap = count // 2
    while gap:
        for i in range(gap, count):
            value, j = values[i], i
            while j >= gap and values[j - gap] > value:
                values[j] = values[j - gap]
                j -= gap
            values[j] = value
        gap //= 2


@compiled
def semaphores_of(
    actions: Actions, ranges: Ranges, gpu_ptr: I64, blocks: int, first: I64, overwrites: bool
) -> tuple[I64, I64, I64]:
    """Return (action that releases, action that acquires) of each semaphore, and the semaphores of each GPU.

    GPU g has the actions `gpu_ptr[g]` to `gpu_ptr[g + 1]`, in order. An action comes after those that wrote the slots
    that it uses, and with `overwrites`, after those that read the slots that it writes. Dependencies that follow from
    others are left out. A signal without ranges comes after all that read packets. `first` is the first slot of each
    buffer among all slots of a GPU.
    """
    release, acquire, found = np.empty(1024, dtype=np.int64), np.empty(1024, dtype=np.int64), 0
    number = np.zeros(len(gpu_ptr), dtype=np.int64)
    for g in range(len(gpu_ptr) - 1):
        low, high = gpu_ptr[g], gpu_ptr[g + 1]
        total = _slots_moved(actions, ranges, low, high) + blocks + 1
        reads = total if overwrites else 0
        slots = _Slots(
            first,
            np.full(first[3], -1, dtype=np.int64),
            np.full(first[3], -1, dtype=np.int64),
            np.empty(reads, dtype=np.int64),
            np.empty(reads, dtype=np.int64),
        )
        required, entries = np.empty(total, dtype=np.int64), 0
        known = np.zeros((blocks, blocks), dtype=np.int32)  # per threadblock: the actions of each that are complete
        clocks = np.empty((high - low, blocks), dtype=np.int32)
        index, done = np.empty(high - low, dtype=np.int64), np.zeros(blocks, dtype=np.int64)
        readers = np.full(blocks, -1, dtype=np.int64)  # the last action of each threadblock that reads packets
        for n in range(high - low):
            a = low + n
            block, kind = actions.block[a], actions.kind[a]
            needed = _required_by(actions, ranges, slots, a, required)
            if overwrites and _writes(kind) and kind != WAIT:
                needed = _readers_of(actions, ranges, slots, a, required, needed)
            if kind == SIGNAL and actions.range_low[a] == actions.range_high[a]:
                needed = _known_of(readers, required, needed)
            if needed:
                _sort(required, needed)
                clock = known[block]
                for k in range(needed - 1, -1, -1):
                    other = required[k]
                    there = actions.block[low + other]
                    if there != block and clock[there] <= index[other]:
                        if found == len(release):
                            release, acquire = grown(release), grown(acquire)
                        release[found], acquire[found] = low + other, a
                        found += 1
                        number[g] += 1
                        for j in range(blocks):
                            clock[j] = max(clock[j], clocks[other, j])
            index[n] = done[block]
            done[block] += 1
            known[block, block] = done[block]
            clocks[n] = known[block]
            entries = _note(actions, ranges, slots, a, n, overwrites, entries)
            if kind == WORK:
                readers[block] = n
    return release[:found], acquire[:found], number[:-1]
