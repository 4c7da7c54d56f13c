"""What each transfer waited for, and its slack."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.schedule.generation.precedence import between_messages, precedence_pairs, soonest_starts, stacked
from flowccl.schedule.schedule import Schedule

I64 = NDArray[np.int64]

KINDS = ("link", "data", "limit", "reduce rate", "buffer", "reduction order")
"""The kinds of constraints between transfers. Where several bind at once, a limit is named, else the first of these."""

_LIMIT = KINDS.index("limit")

RELEASE = -1  # the data of the transfer is released at this time
START = -2  # nothing comes before the transfer: it starts at time zero, or later without need


@dataclass(frozen=True, eq=False)
class Binding:
    """For each transfer, the constraint that kept it from starting earlier.

    `before` is the transfer that it waited for, or -1. `kind` is an index of `KINDS`, or `RELEASE`, or `START`.
    `allowed_ps` is the earliest start that all constraints allow; a transfer with a later start waits without need.
    `slack_ps` says how much later a transfer could start if all others keep their order and the schedule is to end at
    the same time. The transfers of a message have the same values.
    """

    before: I64
    kind: NDArray[np.int8]
    allowed_ps: I64
    slack_ps: I64


def binding_constraints(schedule: Schedule) -> Binding:
    """Return what each transfer of a schedule waited for, and its slack."""
    if "binding" not in schedule.cache:
        schedule.cache["binding"] = _binding(schedule)
    binding: Binding = schedule.cache["binding"]
    return binding


def _binding(schedule: Schedule) -> Binding:
    before, after, lag, kind = _constraints(schedule)
    leader, start = schedule.leader, schedule.start_ps
    release = soonest_starts(schedule)
    np.maximum.at(release, leader, release.copy())

    earliest = start[before] + lag
    order = np.lexsort(
        (before, np.where(kind == _LIMIT, -1, kind), -earliest, after)
    )  # of each transfer, the binding constraint comes first
    bound, first = np.unique(after[order], return_index=True)
    first = order[first]
    count = len(schedule)
    chosen, kinds = np.full(count, -1, dtype=np.int64), np.full(count, START, dtype=np.int8)
    allowed = release.copy()
    kinds[release > 0] = RELEASE
    by_transfer = earliest[first] > release[bound]
    at, first = bound[by_transfer], first[by_transfer]
    chosen[at], kinds[at], allowed[at] = before[first], kind[first], earliest[first]
    slack = schedule.finish_ps - start - _tails(schedule, before, after, lag)
    return Binding(chosen[leader], kinds[leader], allowed[leader], slack[leader])


def _constraints(schedule: Schedule) -> tuple[I64, I64, I64, NDArray[np.int8]]:
    """All constraints between the first transfers of messages: (before, after, lag, kind)."""
    pairs = precedence_pairs(schedule)
    parts = [between_messages(schedule, stacked(schedule, [part])) for part in pairs]
    kind = np.repeat([KINDS.index(part.kind) for part in pairs], [len(part[0]) for part in parts]).astype(np.int8)
    before, after, lag = (np.concatenate([part[i] for part in parts]) for i in range(3))
    return before, after, lag, kind


def _tails(schedule: Schedule, before: I64, after: I64, lag: I64) -> I64:
    """The time from the start of each transfer to the last arrival that depends on it."""
    from flowccl.schedule.generation.generation_kernels import longest_tails

    timing, leader = schedule.timing, schedule.leader
    tail = np.zeros(len(schedule), dtype=np.int64)
    np.maximum.at(tail, leader[timing.end_transfer], timing.end_arrival_ps - schedule.start_ps[timing.end_transfer])
    by_before = np.argsort(before, kind="stable")
    ptr = np.searchsorted(before[by_before], np.arange(len(schedule) + 1)).astype(np.int64)
    order = np.argsort(-schedule.start_ps, kind="stable").astype(np.int64)
    while True:  # again if a lag is negative, so that a transfer starts before one that it waits for
        longer = longest_tails(order, ptr, after[by_before], lag[by_before], tail)
        if np.array_equal(longer, tail):
            return tail
        tail = longer
