"""Threadblocks that repeat their operations: which of their actions are repeated, and in which order they come.

A threadblock does its actions of one part of the data, then those of the next part. Data that nothing on its GPU uses
is waited for after all parts, where that keeps the order of the messages of a channel. What is done once comes last.
"""

from dataclasses import dataclass

import numpy as np

from flowccl.export.lowering.build import Built
from flowccl.schedule.generation.loops import rows_of_parts
from flowccl.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Repetition:
    """How a plan for a size repeats operations: bytes of a chunk of the plan at a time.

    `start_ps` and `GBps` are the starts and rates of each message in the schedule, for each part.
    """

    size_bytes: int
    unit_bytes: int
    start_ps: list[list[int]]
    GBps: list[list[float]]


def repetition_of(schedule: Schedule, part: Schedule, built: Built) -> Repetition:
    """Return how the plan of a schedule with loops repeats operations; `built` is made from that of its first part."""
    assert schedule.costs is not None
    rows, timing = rows_of_parts(schedule)[built.messages.first], schedule.timing
    rate = schedule.rate_GBps.copy()
    rate[timing.hop_transfer[::-1]] = timing.hop_GBps[::-1]
    packed = np.where(built.is_proxied[:, None], schedule.costs.pack_ps[rows], 0)
    start = schedule.start_ps[rows] + packed
    size_bytes, unit_bytes = schedule.demand.size_bytes, int(part.demand.chunk_bytes.min())
    return Repetition(size_bytes, unit_bytes, start.tolist(), rate[rows].tolist())
