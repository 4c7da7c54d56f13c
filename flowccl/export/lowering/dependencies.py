"""The order of actions in threadblocks, and the semaphores between threadblocks of a GPU.

Actions are in the order of the schedule's times, on all GPUs, and depend only on earlier ones, so that there is no
deadlock. The n-th wait on a channel is for its n-th message.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import members, pointers
from flowccl.errors import InputError
from flowccl.export.lowering.actions import END, FLUSH, LATE, MASK, POST, SIGNAL, WAIT, WORK, Actions, Pairs, Ranges
from flowccl.export.lowering.build import Built
from flowccl.schedule.placement import BUFFER_BITS, PACKETS

I64 = NDArray[np.int64]
_PHASE = {WAIT: 0, WORK: 1, POST: 3, FLUSH: 4, SIGNAL: 4}  # of actions at the same time; all others: 2


@dataclass(frozen=True, eq=False)
class Ordered:
    """The actions of all threadblocks, those of one after those of another, and their semaphores.

    Threadblock b of GPU g has the actions `block_ptr[g * blocks + b]` and following. Action a acquires the semaphores
    `acquire[acquire_ptr[a]:acquire_ptr[a + 1]]` before it, and releases others after it. `late` are the waits that may
    come after all parts, where threadblocks repeat what they do.
    """

    actions: Actions
    block_ptr: I64
    blocks: int
    acquire_ptr: I64
    acquire: I64
    release_ptr: I64
    release: I64
    semaphores: I64
    late: NDArray[np.bool_]


def in_order(built: Built, gpus: int, *, overwrites: bool) -> Ordered:
    """Return the actions in order; with `overwrites`, data is written where other data was read."""
    from flowccl.export.lowering.dependency_kernels import semaphores_of

    actions, blocks = _with_waits_in_order(built.actions, built.pairs), 1 + int(built.actions.block.max(initial=0))
    phase = np.full(1 + int(actions.kind.max(initial=0)), 2)
    for kind, value in _PHASE.items():
        phase[kind : kind + 1] = value
    order = np.lexsort((actions.tie, phase[actions.kind], actions.time, actions.rank))
    ordered = Actions(*(column[order] for column in actions))
    gpu_ptr = np.searchsorted(ordered.rank, np.arange(gpus + 1)).astype(np.int64)
    first = pointers(_sizes(built.ranges))
    release, acquire, semaphores = semaphores_of(ordered, built.ranges, gpu_ptr, blocks, first, overwrites)
    place = np.lexsort((np.arange(len(order)), ordered.block, ordered.rank))
    ordered = Actions(*(column[place] for column in ordered))
    new = np.empty(len(place), dtype=np.int64)
    new[place] = np.arange(len(place))
    number = members(semaphores)[1]
    takes, gives = np.argsort(new[acquire], kind="stable"), np.argsort(new[release], kind="stable")
    gives_ptr = pointers(np.bincount(new[release], minlength=len(place)))
    key = ordered.rank * blocks + ordered.block
    moved = np.empty(len(order), dtype=np.int64)
    moved[order[place]] = np.arange(len(order))
    return Ordered(
        ordered,
        np.searchsorted(key, np.arange(gpus * blocks + 1)).astype(np.int64),
        blocks,
        pointers(np.bincount(new[acquire], minlength=len(place))),
        number[takes],
        gives_ptr,
        number[gives],
        semaphores,
        _late_waits(ordered, built.pairs, moved, gives_ptr),
    )


def _with_waits_in_order(actions: Actions, pairs: Pairs) -> Actions:
    """Return the actions with other times of waits: none comes after the wait for a later message of its channel."""
    from flowccl.export.lowering.dependency_kernels import waits_in_order

    order = np.lexsort((actions.tie[pairs.send], actions.time[pairs.send], pairs.direction))
    wait, time, tie = pairs.wait[order], actions.time.copy(), actions.tie.copy()
    wait_time, place = time[wait], np.zeros(len(wait), dtype=np.int64)
    waits_in_order(pairs.direction[order], wait_time, place, END)
    time[wait], tie[wait] = wait_time, place
    return actions._replace(time=time, tie=tie)


def _sizes(ranges: Ranges) -> I64:
    """How many slots of the input, the output and scratch are used on any GPU."""
    count = ranges.slots
    added = np.repeat(count, ranges.added_high - ranges.added_low)
    rows = [(ranges.source, count), (ranges.target, count), (ranges.added[: len(added)], added.max(initial=0))]
    sizes = np.zeros(3, dtype=np.int64)
    for first, size in rows:
        for buffer in range(PACKETS):
            chosen = first >> BUFFER_BITS == buffer
            end = (first & MASK) + size
            sizes[buffer] = max(sizes[buffer], int(end[chosen].max(initial=0)))
    return sizes


def _late_waits(ordered: Actions, pairs: Pairs, moved: I64, release_ptr: I64) -> NDArray[np.bool_]:
    """Return the waits that may come after all parts: no other wait of their channel is needed before."""
    wait = moved[pairs.wait]
    early = (ordered.time[wait] < LATE) | (np.diff(release_ptr)[wait] > 0)
    found = np.zeros(len(ordered.kind), dtype=np.bool_)
    found[wait[~np.isin(pairs.direction, pairs.direction[early])]] = True
    return found


def check_once(ordered: Ordered) -> None:
    """Raise InputError where what is done once waits for what threadblocks repeat, or the other way round."""
    once = ordered.actions.once > 0
    if np.any((np.diff(ordered.acquire_ptr) + np.diff(ordered.release_ptr))[once]):
        raise InputError("mscclpp cannot run this schedule: what threadblocks do once waits for what they repeat")
