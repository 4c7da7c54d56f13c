"""Actions: what the threadblocks of all GPUs do for the messages of a schedule, before barriers are added.

Group k of a GPU has the threadblocks k * width to k * width + width - 1; those that post messages to the NIC follow. A
slot is the part of a chunk that one threadblock of a group carries. Places in chunks become places in slots here:
`buffer << BUFFER_BITS | index`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowccl.schedule.messages import Messages
from flowccl.schedule.placement import BUFFER_BITS
from flowccl.schedule.schedule import Schedule

I64 = NDArray[np.int64]
MASK = (1 << BUFFER_BITS) - 1
WAIT, WORK, PACK, SEND, POST, SIGNAL, FLUSH, STORE, LOAD = range(9)
"""Wait for a message; work on what arrived; pack; send; post to the NIC; signal; flush; gstore; glres."""
END = 1 << 61
"""The time of what comes last in a call."""
LATE = END - 2
"""The time of what no other action needs."""


class Ranges(NamedTuple):
    """What actions move: `slots` slots from a place to a place, reduced with those at `added[added_low:added_high]`."""

    source: I64
    target: I64
    slots: I64
    added_low: I64
    added_high: I64
    added: I64


class Actions(NamedTuple):
    """The actions of all threadblocks, one row each; `time` is the place of an action in the order of the schedule.

    An action moves the ranges from `range_low` to `range_high`; those of a wait are what arrives. It waits for the
    channels from `channel_low` to `channel_high`, or signals them. Of those at the same time, `tie` says which comes
    first. Where threadblocks repeat their operations, `once` (1) says that an action is not among those: it comes after
    all of them.
    """

    kind: I64
    rank: I64
    block: I64
    time: I64
    tie: I64
    message: I64
    peer: I64
    once: I64
    range_low: I64
    range_high: I64
    channel_low: I64
    channel_high: I64


class Pairs(NamedTuple):
    """Messages on channels: the actions that send and wait, and the direction of the channel.

    Channel c has the directions 2 * c, where the GPU with the lower number sends, and 2 * c + 1. Those of channels to
    a NIC have negative numbers, -1 - direction.
    """

    direction: I64
    send: I64
    wait: I64


class Channels(NamedTuple):
    """The channels of one type, in the order in which they were opened, and which of their directions carry data.

    The ends of a channel are (GPU, threadblock, GPU, threadblock), the lower GPU first.
    """

    ends: I64
    used: NDArray[np.bool_]


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
