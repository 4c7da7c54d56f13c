"""The order of actions in threadblocks, and the semaphores between threadblocks of a GPU.

Actions are in the order of the schedule's times, on all GPUs, and depend only on earlier ones, so that there is no
deadlock. The n-th wait on a channel is for its n-th message.
"""

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from flowccl.export.lowering.actions import END, FLUSH, POST, SIGNAL, WAIT, WORK, Action
from flowccl.export.lowering.build import Built, Pair

_PHASE = {WAIT: 0, WORK: 1, POST: 3, FLUSH: 4, SIGNAL: 4}  # of actions at the same time; all others: 2


def in_order(built: Built, gpus: int, blocks: int) -> list[list[list[Action]]]:
    """Return the actions of every threadblock of every GPU in order."""
    _order_waits(built.pairs)
    built.actions.sort(key=lambda action: (action.time, _PHASE.get(action.kind, 2), action.tie))
    result: list[list[list[Action]]] = [[[] for _ in range(blocks)] for _ in range(gpus)]
    for action in built.actions:
        result[action.rank][action.block].append(action)
    return result


def _order_waits(pairs: list[Pair]) -> None:
    """Let waits on a channel be in the order of its messages: none comes after the wait for a later message."""
    found: dict[tuple[str, int, int], list[tuple[Action, Action]]] = defaultdict(list)
    for kind, channel, send, wait in pairs:
        found[kind, channel, send.rank].append((send, wait))
    for rows in found.values():
        rows.sort(key=lambda row: (row[0].time, row[0].tie))
        earliest = END
        for number in range(len(rows) - 1, -1, -1):
            wait = rows[number][1]
            wait.time = earliest = min(earliest, wait.time)
            wait.tie = number


def add_semaphores(actions: list[Action], blocks: int, *, overwrites: bool) -> int:
    """Give the actions of one GPU, in order, the semaphores that they acquire and release; return their number.

    An action comes after those that wrote the slots that it uses, and with `overwrites`, after those that read the
    slots that it writes. Dependencies that follow from others are left out.
    """
    wrote: dict[int, int] = {}
    read: dict[int, list[int]] = defaultdict(list)
    known = np.zeros((blocks, blocks), dtype=np.int32)  # per threadblock: the actions of each that are complete
    clocks: list[NDArray[np.int32]] = []
    place: list[tuple[int, int]] = []
    readers: dict[int, int] = {}  # the last action of each threadblock that reads packets
    count = 0
    done = [0] * blocks  # actions of each threadblock so far
    for number, action in enumerate(actions):
        block = action.block
        reads, writes = action.slots_read(), action.slots_written()
        required = set(readers.values()) if action.kind == SIGNAL and not action.ranges else set()
        if action.kind != WAIT:
            required.update(wrote[slot] for slot in reads if slot in wrote)
            required.update(wrote[slot] for slot in writes if slot in wrote)
            if overwrites:
                for slot in writes:
                    required.update(read.pop(slot, ()))
        if required:
            clock = known[block]
            for other in sorted(required, reverse=True):
                there, index = place[other]
                if there != block and clock[there] <= index:
                    actions[other].releases.append(count)
                    action.acquires.append(count)
                    count += 1
                    np.maximum(clock, clocks[other], out=clock)
        place.append((block, done[block]))
        done[block] += 1
        known[block, block] = done[block]
        clocks.append(known[block].copy())
        for slot in writes:
            wrote[slot] = number
        if overwrites:
            for slot in reads:
                read[slot].append(number)
        if action.kind == WORK:
            readers[block] = number
    return count
