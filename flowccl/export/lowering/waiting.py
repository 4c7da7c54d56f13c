"""The group of threadblocks that waits for each message inside a host, and when.

A threadblock has at most 16 channels of a type. A message between two groups of the same number always can have a
channel: no group exchanges messages with more than 16 GPUs. Other pairs of groups get one while there is room.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.errors import InputError
from flowccl.export.lowering.actions import END, LATE, MessageMoments
from flowccl.runtimes.execution import Execution
from flowccl.runtimes.limits import CHANNELS_PER_BLOCK, RECEIVE_OPERATIONS
from flowccl.schedule.messages import MEMORY, NIC, Messages
from flowccl.schedule.placement import Places

I64 = NDArray[np.int64]
_CROWDED = 40  # operations of a threadblock beyond which others wait for messages that nothing uses soon
_TRIED = 4  # of those others
_RULES = CHANNELS_PER_BLOCK, _CROWDED, _TRIED


@dataclass(frozen=True, eq=False)
class Waiters:
    """What is needed to choose the groups that wait; `issuer` and `receiver` are the groups at the ends of messages.

    `peer` is the receiver as its sender numbers it, and `back` the sender as its receiver does.
    """

    messages: Messages
    places: Places
    times: MessageMoments
    issuer: I64
    receiver: I64
    execution: Execution
    gpus: int
    staged: bool
    peer: I64
    back: I64

    def groups(self, already: I64) -> tuple[I64, I64]:
        """Return the group that waits for each message, and when; LATE or later if nothing uses the data.

        The group is -1 for other messages than those inside a host, and where `already` says which threadblock waits.
        """
        from flowccl.export.lowering.waiting_kernels import Rules, Waits, waiting_groups

        messages, times, count = self.messages, self.times, self.execution.groups
        first, inside = self._first_uses(), messages.kind == MEMORY
        time = np.where(first[:, 1] >= -1, first[:, 0], LATE if self.staged else END)
        chosen, waits_for = np.full(len(messages), -1), time.copy()
        waits_for[already >= 0] = np.where(time >= LATE, time, times.whole_first)[already >= 0]
        if self.execution.packets or not inside.any():
            return chosen, waits_for
        at, own = messages.end[messages.end_ptr[:-1]], self.receiver >= 0
        waits_for[own & (already < 0)] = times.whole_first[own & (already < 0)]
        order = np.flatnonzero(inside & (already < 0))
        order = order[np.lexsort((order, times.start[order]))]
        ptr, begin, end = self._jobs()
        waits = Waits(
            order,
            messages.src * count + self.issuer,
            at * count,
            self.peer,
            self.back,
            np.where(own, at * count + self.receiver, -1),
            waits_for,
            times.whole_first,
            np.where((first[:, 1] >= 0) & ~own, at * count + first[:, 1], -1),
            inside,
            self._usual_peers(inside),
            RECEIVE_OPERATIONS * np.diff(ptr),
            ptr,
            begin,
            end,
        )
        rules = Rules(count, self.execution.receivers, *_RULES, LATE, self.execution.loops > 1)
        needed = inside & ~(own & (already < 0))
        eager = waits._replace(reserved=needed, usual=self._usual_peers(needed), load=waits.load.copy())
        found, waits_for = waiting_groups(eager, rules)  # without channels for groups that may have nothing to wait for
        if np.any(found[order] < 0):
            found, waits_for = waiting_groups(waits, rules)
        if np.any(found[order] < 0):  # it would wait in vain in every repetition
            raise InputError(
                f"mscclpp cannot run this schedule: a threadblock of gpu {at[order[np.argmin(found[order])]]} would "
                f"need more than {CHANNELS_PER_BLOCK} channels"
            )
        chosen[order] = found[order] - at[order] * count
        return chosen, waits_for

    def _first_uses(self) -> I64:
        """The time and the group of the first use of each message."""
        from flowccl.export.lowering.waiting_kernels import Uses, first_uses

        messages, places, times = self.messages, self.places, self.times
        owner = np.repeat(np.arange(len(messages)), np.diff(messages.delivery_ptr))
        versions = messages.ptr, messages.delivery_ptr, places.version, places.packed, places.added_version, owner
        moments = messages.kind == NIC, times.start, times.posted, times.whole_first, self.issuer, self.receiver
        found: I64 = first_uses(Uses(*versions, *moments))
        return found

    def _jobs(self) -> tuple[I64, I64, I64]:
        """What each group of each GPU does: pointer, begin and end of each job, in order."""
        messages, times = self.messages, self.times
        sends = np.flatnonzero(self.issuer >= 0)
        works = np.repeat(np.flatnonzero(self.receiver >= 0), self.execution.receivers)
        receiver = self.receiver[works] + np.arange(len(works)) % self.execution.receivers
        until = np.where(messages.kind == NIC, times.posted, times.issued)
        at, groups = messages.end[messages.end_ptr[:-1]], self.execution.groups
        place = np.concatenate((messages.src[sends] * groups + self.issuer[sends], at[works] * groups + receiver))
        begin = np.concatenate((times.start[sends], times.whole_first[works]))
        end = np.concatenate((until[sends], times.usable[works]))
        order = np.lexsort((end, begin, place))
        return pointers(np.bincount(place, minlength=self.gpus * groups)), begin[order], end[order]

    def _usual_peers(self, inside: NDArray[np.bool_]) -> I64:
        """The number of GPUs with which each group of each GPU exchanges messages with the group of the same number.

        Only the messages `inside` count, and operations of switches.
        """
        messages, groups = self.messages, self.execution.groups
        several = np.flatnonzero(messages.kind > NIC)
        to = messages.end[messages.end_ptr[:-1]]
        rows = [np.stack((messages.src, self.issuer, to, self.peer, self.back))[:, inside]]
        for m in several.tolist():
            others = np.array([rank for rank in members_of(messages, m) if rank != messages.src[m]], dtype=np.int64)
            rows += [np.stack(np.broadcast_arrays(messages.src[m], self.issuer[m], others, others, messages.src[m]))]
        src, group, dst, peer, back = np.concatenate(rows, axis=1)
        place, other = np.concatenate((src, dst)) * groups + np.tile(group, 2), np.concatenate((peer, back))
        most = 1 + int(other.max(initial=0))
        count = np.bincount(np.unique(place * most + other) // most, minlength=self.gpus * groups)
        if count.max(initial=0) > CHANNELS_PER_BLOCK:
            rank, group = divmod(int(np.argmax(count)), groups)
            raise InputError(
                f"group {group} of gpu {rank} exchanges messages with {count.max()} GPUs, but a threadblock of MSCCL++ "
                f"has channels to at most {CHANNELS_PER_BLOCK}"
            )
        return count.astype(np.int64)


def members_of(messages: Messages, m: int) -> tuple[int, ...]:
    """Return the GPUs of the group of an operation of a switch."""
    ends = messages.end[messages.end_ptr[m] : messages.end_ptr[m + 1]].tolist()
    roots = messages.root[messages.root_ptr[m] : messages.root_ptr[m + 1]].tolist()
    return tuple(sorted({int(messages.src[m]), *ends, *roots}))
