"""From the messages of a schedule to the actions of threadblocks, each at its time in the schedule."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.errors import InputError
from flowccl.export.lowering.actions import (
    MASK,
    Actions,
    Channels,
    MessageMoments,
    Pairs,
    Ranges,
    moments_of,
    usable_ps,
)
from flowccl.export.lowering.buffers import BufferLayout
from flowccl.export.lowering.unscheduled import Unscheduled
from flowccl.export.lowering.waiting import Waiters, members_of
from flowccl.runtimes.execution import Execution
from flowccl.runtimes.posters import BlockTask, assign_tasks
from flowccl.schedule.clock import reduced_together
from flowccl.schedule.generation.loops import tasks_of
from flowccl.schedule.generation.posting import assign_posters
from flowccl.schedule.messages import NIC, Messages, messages_of
from flowccl.schedule.placement import BUFFER_BITS, ChunksOfOne, Places, places_of
from flowccl.schedule.schedule import Schedule

if TYPE_CHECKING:
    from flowccl.export.lowering.action_kernels import Carried, Written

I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Built:
    """All actions, what they move, and their channels; of each message, the rate and the group of a switch.

    `ids` are the numbers of the channels of the actions. `members` are the GPUs of the group of each operation of a
    switch.
    """

    actions: Actions
    ranges: Ranges
    ids: I64
    pairs: Pairs
    memory: Channels
    port: Channels
    places: Places
    messages: Messages
    times: MessageMoments
    rate_GBps: NDArray[np.float64]
    members: dict[int, tuple[int, ...]]

    @property
    def is_proxied(self) -> NDArray[np.bool_]:
        """Messages over NICs."""
        return np.asarray(self.messages.kind == NIC)


class MessagesOfOne(Protocol):
    """The messages of a schedule where one GPU stands for all: from that GPU to itself."""

    @property
    def messages(self) -> Messages:
        """The messages."""

    @property
    def chunks(self) -> ChunksOfOne:
        """Their chunks, as they are sent and as they arrive."""

    @property
    def peer(self) -> I64:
        """The receiver of each message as its sender numbers it."""

    @property
    def back(self) -> I64:
        """The sender of each message as its receiver numbers it."""


@dataclass(frozen=True, eq=False)
class Builder:
    """Makes the actions of all messages of a schedule, or those of the GPU that stands for all others."""

    schedule: Schedule
    execution: Execution
    layout: BufferLayout
    of_one: MessagesOfOne | None = None

    def build(self) -> Built:
        """Return all actions."""
        from flowccl.export.lowering.action_kernels import GroupShape, write_actions

        carried, blocks = self._carried(), 1 + max(self.execution.sms, self.first_poster + self.posters)
        written = self._space()
        execution = self.execution
        write_actions(carried, written, GroupShape(execution.width, execution.slots, blocks, execution.packets))
        made = Unscheduled(
            self.schedule, self.execution, self.layout, self.posters, self.times, self._place, self._gpus
        )
        actions, ranges, ids, memory = made.added(*_trimmed(written), self.messages)
        pairs = Pairs(*(column[: written.counts[4]] for column in written.pairs))
        port = _channels(written.port, int(written.counts[8]))
        parts = actions, ranges, ids, pairs, memory, port, self._places, self.messages, self.times
        return Built(*parts, self._rates(), self._members)

    @cached_property
    def messages(self) -> Messages:
        """The messages of the schedule."""
        if self.of_one is not None:
            return self.of_one.messages
        assert self.schedule.costs is not None
        return messages_of(self.schedule, self.schedule.costs.is_proxied)

    @property
    def _gpus(self) -> int:
        """The number of GPUs of which actions are made."""
        return 1 if self.of_one is not None else self.layout.demand.num_gpus

    @cached_property
    def _peers(self) -> tuple[I64, I64]:
        """The receiver of each message as its sender numbers it, and the sender as its receiver does."""
        if self.of_one is not None:
            return self.of_one.peer, self.of_one.back
        return self.messages.end[self.messages.end_ptr[:-1]], self.messages.src

    @cached_property
    def times(self) -> MessageMoments:
        """The times of all messages."""
        return moments_of(self.schedule, self.messages)

    @property
    def staged(self) -> bool:
        """Whether chunks for the output stay in scratch until all others are sent from there."""
        return self.layout.inplace and (self.layout.collective == "alltoall" or self.layout.is_one_shot)

    @cached_property
    def _places(self) -> Places:
        usable = usable_ps(self.schedule)[self.messages.first]
        of_one, packets = None if self.of_one is None else self.of_one.chunks, self.execution.packets
        places = places_of(self.schedule, self.messages, usable, packets=packets, is_staged=self.staged, of_one=of_one)
        if places.problem is not None:
            transfer, rank = places.problem
            raise InputError(
                f"transfer {transfer}: gpu {rank} sends chunk {self.schedule.chunk[transfer]} before it has any data "
                "of it; the schedule is not valid"
            )
        return places

    @cached_property
    def _owner(self) -> I64:
        """The message of each delivery."""
        return np.repeat(np.arange(len(self.messages)), np.diff(self.messages.delivery_ptr))

    @cached_property
    def _node(self) -> I64:
        """The GPU of each delivery."""
        m, owner = self.messages, self._owner
        ends = np.diff(m.end_ptr)[owner]
        return np.asarray(
            m.end[m.end_ptr[owner] + (np.arange(len(owner)) - m.delivery_ptr[owner]) % np.maximum(ends, 1)]
        )

    @cached_property
    def _place(self) -> I64:
        """The place of the result of each delivery in the buffers of the call."""
        return self._in_buffers(self._places.place, self._node)

    def _in_buffers(self, place: I64, rank: I64) -> I64:
        """Return places in the buffers of the call: in place, the smaller buffer is a block of the larger one."""
        if not self.layout.inplace:
            return place
        sizes = self.layout.whole_counts
        larger = 1 if sizes[1] > sizes[0] else 0
        buffer, index = place >> BUFFER_BITS, place & MASK
        smaller = (buffer == 1 - larger) & (place >= 0) & (sizes[0] != sizes[1])
        index = np.where(smaller, index + rank * self.layout.per_block, index)
        inside = (place >= 0) & (buffer <= 1)
        return np.where(inside, larger << BUFFER_BITS | index, place)

    @cached_property
    def _members(self) -> dict[int, tuple[int, ...]]:
        """The GPUs of the group of each operation of a switch."""
        m = self.messages
        several = np.flatnonzero(m.kind > NIC)
        if np.any(self.schedule.issuer[m.first[several]] < 0):
            raise InputError(
                f"transfer {m.first[several[0]]}: mscclpp copies and reduces only in switches inside a host"
            )
        return {number: members_of(m, number) for number in several.tolist()}

    def _rates(self) -> NDArray[np.float64]:
        """The rate of each message on its first link, in bytes of the wire."""
        schedule, timing = self.schedule, self.schedule.timing
        rate = np.zeros(len(schedule))
        rate[timing.hop_transfer[::-1]] = timing.hop_GBps[::-1]
        return rate[self.messages.first]

    # -- threadblocks that post and wait ---

    @property
    def first_poster(self) -> int:
        """The first threadblock of a GPU that posts messages."""
        return self.execution.groups * self.execution.width

    @property
    def posters(self) -> int:
        """The threadblocks of a GPU that post messages and wait for those of others."""
        return int(self._posting[3])

    @cached_property
    def _posting(self) -> tuple[I64, I64, I64, int]:
        """The threadblocks that post and await each message, and that wait for messages inside a host; -1: none.

        Last, the number of such threadblocks.
        """
        m, count = self.messages, len(self.messages)
        here, there, waiter = np.full((3, count), -1)
        nic = np.flatnonzero(m.kind == NIC)
        if self.execution.loops > 1:
            assert self.schedule.costs is not None
            tasks = assign_tasks(tasks_of(self.schedule, self.schedule.costs.is_proxied))
            for (task, number), k in tasks.items():
                column = {BlockTask.POST: here, BlockTask.AWAIT_NIC: there}.get(task, waiter)
                column[number] = k
        else:
            nic = nic[np.lexsort((nic, self.times.start[nic]))]
            here[nic], there[nic] = self._posters_of(nic)
        most = 1 + int(max(here.max(initial=-1), there.max(initial=-1)))
        first = self.first_poster
        return here + first, there + first, np.where(waiter >= 0, waiter + first, -1), most

    def _posters_of(self, nic: I64) -> tuple[I64, I64]:
        """The threadblocks at both ends of messages over NICs, which are given in the order of their starts."""
        src, dst = self.messages.src[nic], self.messages.end[self.messages.end_ptr[nic]]
        if self.of_one is None:
            return assign_posters(src, dst, self.execution.posters)
        peer, back = (column[nic] for column in self._peers)  # what GPU 0 sends, and what it gets
        pairs = np.stack((src, back), axis=1).reshape(-1), np.stack((peer, dst), axis=1).reshape(-1)
        here, there = assign_posters(*pairs, self.execution.posters)
        return here[::2], there[1::2]

    # -- what is carried ---

    def _carried(self) -> "Carried":
        """The messages as the compiled part takes them."""
        from flowccl.export.lowering.action_kernels import Carried

        m, schedule, places, times = self.messages, self.schedule, self._places, self.times
        issuer, receiver = schedule.issuer[m.first].astype(np.int64), schedule.receiver[m.first].astype(np.int64)
        here, there, waiter, _ = self._posting
        members = [self._members.get(k, ()) for k in range(len(m))] if self._members else []
        gpus = len(schedule.topology.nodes) if self.of_one is None else 1
        waiters = Waiters(m, places, times, issuer, receiver, self.execution, gpus, self.staged, *self._peers)
        group, waits_from = waiters.groups(waiter)
        sender = np.repeat(m.src, np.diff(m.ptr))
        lead_ptr, lead, delivery = self._together
        return Carried(
            m.kind.astype(np.int64), m.src, *self._peers, issuer, receiver, m.ptr, m.end_ptr, m.end, m.delivery_ptr,
            self._in_buffers(places.sent, sender), self._in_buffers(places.packed, sender),
            self._in_buffers(places.arrives, self._node), self._place, self._in_buffers(places.added, self._node),
            times.start, times.posted, times.whole, times.usable, self._work_times(), group, waiter, waits_from,
            here, there, lead_ptr, lead, delivery,
            pointers([len(row) for row in members] or np.zeros(len(m))),
            np.array([rank for row in members for rank in row], dtype=np.int64),
        )  # fmt: skip

    @cached_property
    def _together(self) -> tuple[I64, I64, I64]:
        """The messages that are reduced with each one, none but for the first of them; deliveries by chunk there."""
        m, schedule = self.messages, self.schedule
        lead = np.searchsorted(m.first, reduced_together(schedule)[m.first])
        size = np.bincount(lead, minlength=len(m))
        several = (size > 1)[lead][self._owner]
        entry = (
            m.ptr[self._owner] + np.arange(len(self._owner)) - m.delivery_ptr[self._owner]
        )  # one end, where worked on
        entry = np.where(several, entry, 0)
        chunk = np.where(several, schedule.chunk[m.transfer[entry]] if len(m) else 0, 0)
        delivery = np.lexsort((np.arange(len(chunk)), chunk, self._owner))
        return pointers(size), np.argsort(lead, kind="stable"), delivery

    def _work_times(self) -> I64:
        """When the receiver of each message works on it: not before those whose results it reduces further."""
        from flowccl.export.lowering.action_kernels import work_times

        m, time = self.messages, self.times.whole_first.copy()
        order = np.lexsort((np.arange(len(m)), self.times.usable))
        work_times(order, m.delivery_ptr, self._places.added_version, self._owner, time)
        return time

    def _space(self) -> "Written":
        """Space for everything that the compiled part writes."""
        from flowccl.export.lowering.action_kernels import Written

        m, width, slots, members = self.messages, self.execution.width, self.execution.slots, self._members
        entries, switched = np.diff(m.ptr), m.kind > NIC
        others = np.array([len(members[k]) - 1 for k in np.flatnonzero(switched).tolist()], dtype=np.int64)
        plain, in_switch = int(entries[~switched].sum()), entries[switched]
        most, together = int(entries.max(initial=0)), int(np.diff(self._together[0]).max(initial=1))
        pairs = width * len(m) + 2 * width * int(others.sum())
        actions = (2 * width + slots + 2) * len(m) + 3 * width * int(others.sum())
        moved = 3 * slots * plain + len(m) + slots * int((in_switch * (1 + others)).sum())
        ends = np.empty((pairs, 4), dtype=np.int64)
        return Written(
            Actions(*[_space(actions) for _ in Actions._fields]),
            _space_of_ranges(moved, slots * plain),
            _space(pairs),
            Pairs(_space(pairs), _space(pairs), _space(pairs)),
            Channels(ends, np.zeros(2 * pairs, dtype=np.bool_)),
            Channels(ends.copy(), np.zeros(2 * pairs, dtype=np.bool_)),
            _space_of_ranges(2 * most, most * together),
            np.zeros(9, dtype=np.int64),
        )


def _space(size: int) -> I64:
    return np.empty(size, dtype=np.int64)


def _space_of_ranges(size: int, added: int) -> Ranges:
    return Ranges(_space(size), _space(size), _space(size), _space(size), _space(size), _space(added))


def _channels(space: Channels, count: int) -> Channels:
    return Channels(space.ends[:count], space.used[: 2 * count])


def _trimmed(written: "Written") -> tuple[Actions, Ranges, I64, Channels]:
    """What was written, without the space that was left."""
    actions, ranges, added, ids = written.counts[:4].tolist()
    return (
        Actions(*[column[:actions] for column in written.actions]),
        Ranges(*[column[:ranges] for column in written.ranges])._replace(added=written.ranges.added[:added]),
        written.ids[:ids],
        _channels(written.memory, int(written.counts[7])),
    )
