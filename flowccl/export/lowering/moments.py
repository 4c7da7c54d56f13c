"""The times of messages that lowering needs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.schedule.messages import Messages
from flowccl.schedule.schedule import Schedule

I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class MessageMoments:
    """Times of every message: its start, the end of its packing, the end of its issuer, and arrivals.

    `whole` is when it is whole at each of its ends, one message after the other, `whole_first` at the first one.
    `usable` is when the last of its receivers has worked on it.
    """

    start: I64
    posted: I64
    issued: I64
    whole: I64
    whole_first: I64
    usable: I64


def usable_ps(schedule: Schedule) -> I64:
    """Return when the data of each transfer is usable at all ends."""
    usable = np.zeros(len(schedule), dtype=np.int64)
    np.maximum.at(usable, schedule.timing.end_transfer, schedule.timing.end_arrival_ps)
    return usable


def moments_of(schedule: Schedule, messages: Messages) -> MessageMoments:
    """Return the times of all messages."""
    assert schedule.costs is not None
    timing, first = schedule.timing, messages.first
    start = schedule.start_ps[first]
    issued = np.zeros(len(schedule), dtype=np.int64)
    np.maximum.at(issued, timing.root_transfer, timing.root_to_ps)
    begin, ends = np.searchsorted(timing.end_transfer, first), np.diff(messages.end_ptr)
    row = np.repeat(begin - messages.end_ptr[:-1], ends) + np.arange(messages.end_ptr[-1])
    whole = timing.end_arrival_ps[row] - np.repeat(schedule.costs.work_ps[first], ends)
    return MessageMoments(
        start,
        start + schedule.costs.pack_ps[first],
        issued[first],
        whole,
        whole[messages.end_ptr[:-1]],
        usable_ps(schedule)[first],
    )
