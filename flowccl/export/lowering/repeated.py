"""Threadblocks that repeat their operations: which of their actions are repeated, and in which order they come.

A threadblock does its actions of one part of the data, then those of the next part. Data that nothing on its GPU uses
is waited for after all parts, where that keeps the order of the messages of a channel. What is done once comes last.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from flowccl.errors import InputError
from flowccl.export.lowering.actions import END, WAIT, Action
from flowccl.export.lowering.build import Built, Pair
from flowccl.schedule.generation.loops import rows_of_parts
from flowccl.schedule.schedule import Schedule

_LATE = END - 2  # the time of what no other action needs


@dataclass(frozen=True, slots=True)
class Repetition:
    """How a plan repeats operations: bytes of a chunk of the plan at a time.

    `start_ps` and `GBps` are the starts and rates of each message in the schedule, for each part.
    """

    unit_bytes: int
    start_ps: list[list[int]]
    GBps: list[list[float]]


@dataclass(frozen=True, slots=True)
class BlockActions:
    """The actions of a threadblock in order: those of every part, the waits after all parts, and what is done once."""

    repeated: list[Action]
    late: list[Action]
    once: list[Action]


def late_waits(pairs: list[Pair]) -> set[int]:
    """Return the waits (by identity) that may come after all parts: no other wait of their channel is needed before."""
    waits: dict[tuple[str, int, int], list[Action]] = defaultdict(list)
    for kind, channel, _, wait in pairs:
        waits[kind, channel, wait.rank].append(wait)
    return {
        id(wait)
        for rows in waits.values()
        if all(wait.time >= _LATE and not wait.releases for wait in rows)
        for wait in rows
    }


def divided(actions: list[Action], late: set[int]) -> BlockActions:
    """Divide the actions of a threadblock, in order."""
    once = [action for action in actions if action.once]
    if any(action.acquires or action.releases for action in once):
        raise InputError("mscclpp cannot run this schedule: what threadblocks do once waits for what they repeat")
    return BlockActions(
        [action for action in actions if not action.once and id(action) not in late],
        [action for action in actions if action.kind == WAIT and id(action) in late],
        once,
    )


def repetition_of(schedule: Schedule, part: Schedule, built: Built) -> Repetition:
    """Return how the plan of a schedule with loops repeats operations; `built` is made from that of its first part."""
    assert schedule.costs is not None
    rows, timing = rows_of_parts(schedule)[built.first], schedule.timing
    rate = schedule.rate_GBps.copy()
    rate[timing.hop_transfer[::-1]] = timing.hop_GBps[::-1]
    packed = np.where(np.array(built.is_proxied, dtype=np.bool_)[:, None], schedule.costs.pack_ps[rows], 0)
    start = schedule.start_ps[rows] + packed
    return Repetition(int(part.demand.chunk_bytes.min()), start.tolist(), rate[rows].tolist())
