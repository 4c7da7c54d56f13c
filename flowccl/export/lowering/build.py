"""From the messages of a schedule to the actions of threadblocks, each at its time in the schedule."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import nsmallest

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import InputError
from flowccl.export.lowering.actions import (
    END,
    FLUSH,
    MASK,
    PACK,
    POST,
    SEND,
    SIGNAL,
    WAIT,
    WORK,
    Action,
    part_ranges,
    slot_of,
)
from flowccl.export.lowering.buffers import BufferLayout
from flowccl.export.lowering.connections import Channels, Waiters, usual_peers
from flowccl.runtimes.execution import Execution
from flowccl.runtimes.limits import CHANNELS_PER_BLOCK, RECEIVE_OPERATIONS
from flowccl.runtimes.posters import BlockTask, assign_posters, assign_tasks
from flowccl.schedule.clock import reduced_together
from flowccl.schedule.generation.loops import tasks_of
from flowccl.schedule.messages import MEMORY, NIC, REDUCE_IN_SWITCH, Messages, messages_of
from flowccl.schedule.placement import BUFFER_BITS, SCRATCH, Places, places_of
from flowccl.schedule.schedule import Schedule

I64 = NDArray[np.int64]
_CROWDED = 40  # operations of a threadblock beyond which others wait for messages that nothing uses soon
_TRIED = 4  # of those others


@dataclass(slots=True)
class MessageMoments:
    """Times of every message: its start, the end of its packing, the end of its issuer, and arrivals at each end."""

    start: list[int]
    posted: list[int]
    issued: list[int]
    whole: list[list[int]]
    usable: list[int]


Pair = tuple[str, int, Action, Action]
"""A message on a channel: (type, channel, action that sends, action that waits)."""


@dataclass(slots=True)
class Built:
    """All actions, and the channels that they use; of each message, the first transfer and the rate."""

    first: I64
    actions: list[Action]
    memory: Channels
    port: Channels
    places: Places
    times: MessageMoments
    is_proxied: list[bool]
    rate_GBps: list[float]
    pairs: list[Pair]
    messages: Messages


class Builder:
    """Makes the actions of all messages of a schedule."""

    def __init__(self, schedule: Schedule, execution: Execution, layout: BufferLayout) -> None:
        assert schedule.costs is not None
        self.schedule, self.execution, self.layout = schedule, execution, layout
        self.width, self.packets = execution.width, execution.packets
        self.messages = messages_of(schedule, schedule.costs.is_proxied)
        m = self.messages
        usable = np.zeros(len(schedule), dtype=np.int64)
        timing = schedule.timing
        np.maximum.at(usable, timing.end_transfer, timing.end_arrival_ps)
        staged = layout.inplace and (layout.collective == "alltoall" or layout.is_one_shot)
        self.staged = staged
        self.places = places_of(schedule, m, usable[m.first], packets=self.packets, is_staged=staged)
        if self.places.problem is not None:
            transfer, rank = self.places.problem
            raise InputError(
                f"transfer {transfer}: gpu {rank} sends chunk {schedule.chunk[transfer]} before it has any data of it; "
                "the schedule is not valid"
            )
        self.first, self.kind, self.src = m.first.tolist(), m.kind.tolist(), m.src.tolist()
        self.ptr, self.end_ptr, self.end = m.ptr.tolist(), m.end_ptr.tolist(), m.end.tolist()
        self.root_ptr, self.root, self.delivery_ptr = m.root_ptr.tolist(), m.root.tolist(), m.delivery_ptr.tolist()
        self.issuer, self.receiver = schedule.issuer[m.first].tolist(), schedule.receiver[m.first].tolist()
        self.version, self.added_version = self.places.version.tolist(), self.places.added_version.tolist()
        number = np.repeat(np.arange(len(m)), np.diff(m.delivery_ptr))
        ends = np.diff(m.end_ptr)[number]
        node = m.end[m.end_ptr[number] + (np.arange(len(number)) - m.delivery_ptr[number]) % np.maximum(ends, 1)]
        self.sent, self.packed = (
            self._in_buffers(column, np.repeat(m.src, np.diff(m.ptr)))
            for column in (self.places.sent, self.places.packed)
        )
        self.arrives, self.place, self.added = (
            self._in_buffers(getattr(self.places, name), node) for name in ("arrives", "place", "added")
        )
        self.times = self._times()
        self.together = self._together()
        self.work_time = self._work_times()
        self.memory, self.port = Channels("memory"), Channels("port")
        self.actions: list[Action] = []
        self.pairs: list[Pair] = []
        self.waiter: dict[int, int] = {}  # threadblocks that wait for messages inside a host
        self._posters = self._poster_of()

    def build(self) -> Built:
        """Return all actions."""
        waiting = self._waiting_groups()
        for m in range(len(self.kind)):
            if self.kind[m] == MEMORY:
                self._memory(m, waiting[m])
            elif self.kind[m] == NIC:
                self._nic(m)
            else:
                self._switch(m)
        if self.staged:
            self._final_copies()
        self.actions += self._own_copies()
        if self.packets:
            self._leave()
        self._flush()
        return Built(
            self.messages.first,
            self.actions,
            self.memory,
            self.port,
            self.places,
            self.times,
            [kind == NIC for kind in self.kind],
            self._rates(),
            self.pairs,
            self.messages,
        )

    def _in_buffers(self, place: I64, rank: I64) -> list[int]:
        """Return places in the buffers of the call: in place, the smaller buffer is a block of the larger one."""
        if not self.layout.inplace:
            return place.tolist()  # type: ignore[no-any-return]
        sizes = self.layout.whole_counts
        larger = 1 if sizes[1] > sizes[0] else 0
        buffer, index = place >> BUFFER_BITS, place & MASK
        smaller = (buffer == 1 - larger) & (place >= 0) & (sizes[0] != sizes[1])
        index = np.where(smaller, index + rank * self.layout.per_block, index)
        inside = (place >= 0) & (buffer <= 1)
        return np.where(inside, larger << BUFFER_BITS | index, place).tolist()  # type: ignore[no-any-return]

    # -- times ------------------------------------------------------------------------------------------------------

    def _times(self) -> MessageMoments:
        schedule, timing = self.schedule, self.schedule.timing
        assert schedule.costs is not None
        first = self.messages.first
        start = schedule.start_ps[first]
        posted = start + schedule.costs.pack_ps[first]
        issued = np.zeros(len(schedule), dtype=np.int64)
        np.maximum.at(issued, timing.root_transfer, timing.root_to_ps)
        usable = np.zeros(len(schedule), dtype=np.int64)
        np.maximum.at(usable, timing.end_transfer, timing.end_arrival_ps)
        whole: list[list[int]] = []
        begin = np.searchsorted(timing.end_transfer, first).tolist()
        work = schedule.costs.work_ps[first].tolist()
        arrival = timing.end_arrival_ps.tolist()
        for row, ends, spent in zip(begin, np.diff(self.messages.end_ptr).tolist(), work, strict=True):
            whole.append([time - spent for time in arrival[row : row + ends]])
        columns = (start, posted, issued[first], usable[first])
        begun, post, out, use = (column.tolist() for column in columns)
        return MessageMoments(begun, post, out, whole, use)

    def _rates(self) -> list[float]:
        """The rate of each message on its first link, in bytes of the wire."""
        schedule, timing = self.schedule, self.schedule.timing
        rate = np.zeros(len(schedule))
        rate[timing.hop_transfer[::-1]] = timing.hop_GBps[::-1]
        return rate[self.messages.first].tolist()  # type: ignore[no-any-return]

    def _together(self) -> list[list[int]]:
        """Return, for each message, those that are reduced together with it, in order."""
        of = np.searchsorted(self.messages.first, reduced_together(self.schedule)[self.messages.first]).tolist()
        found: dict[int, list[int]] = defaultdict(list)
        for m, first in enumerate(of):
            found[first].append(m)
        return [found[first] for first in of]

    # -- what waits for what ---

    def _poster_of(self) -> dict[int, tuple[int, int]]:
        """Return the threadblocks that post and await each message over a NIC."""
        nic = [m for m, kind in enumerate(self.kind) if kind == NIC]
        first = self.execution.groups * self.width
        if self.execution.loops > 1:
            assert self.schedule.costs is not None
            tasks = assign_tasks(tasks_of(self.schedule, self.schedule.costs.is_proxied))
            found = {m: (tasks[BlockTask.POST, m], tasks[BlockTask.AWAIT_NIC, m]) for m in nic}
            self.waiter = {
                m: first + k for (task, m), k in tasks.items() if task in (BlockTask.AWAIT, BlockTask.AWAIT_LATE)
            }
        else:
            nic.sort(key=lambda m: (self.times.start[m], m))
            rows = [(m, self.src[m], self.end[self.end_ptr[m]]) for m in nic]
            found = assign_posters(rows, self.execution.posters)
        self.posters = 1 + max((number for pair in found.values() for number in pair), default=-1)
        return {m: (first + here, first + there) for m, (here, there) in found.items()}

    def _users(self) -> dict[int, tuple[int, int]]:
        """Return the first use of each message, as (time, group); the group is -1 if a message over a NIC is first."""
        owner = np.repeat(np.arange(len(self.kind)), np.diff(self.messages.delivery_ptr)).tolist()
        first: dict[int, tuple[int, int]] = {}

        def use(delivery: int, time: int, group: int) -> None:
            m = owner[delivery]
            if m not in first or time < first[m][0]:
                first[m] = time, group

        times = self.times
        for m in range(len(self.kind)):
            for e in range(self.ptr[m], self.ptr[m + 1]):
                if self.version[e] >= 0:
                    packs = self.packed[e] >= 0
                    by_nic = self.kind[m] == NIC and not packs
                    use(
                        self.version[e],
                        times.posted[m] if by_nic else times.start[m],
                        -1 if by_nic else self._packer(m),
                    )
            for d in range(self.delivery_ptr[m], self.delivery_ptr[m + 1]):
                if self.added_version[d] >= 0:
                    use(self.added_version[d], times.whole[m][0], max(self.receiver[m], 0))
        return first

    def _packer(self, m: int) -> int:
        group: int = max(self.issuer[m], 0)
        return group

    def _waiting_groups(self) -> list[tuple[int, int]]:
        """Return the group that waits for each message inside a host, and when: END if nothing uses the data."""
        times, users = self.times, self._users()
        inside = [m for m, kind in enumerate(self.kind) if kind == MEMORY and not self.packets]
        pairs = {(self.src[m], self.issuer[m], self.end[self.end_ptr[m]]) for m in inside}
        for m, kind in enumerate(self.kind):
            if kind not in (MEMORY, NIC):
                pairs |= {(self.src[m], self.issuer[m], other) for other in self._members(m) if other != self.src[m]}
        busy: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for m in range(len(self.kind)):
            if self.issuer[m] >= 0:
                until = times.posted[m] if self.kind[m] == NIC else times.issued[m]
                busy[self.src[m], self.issuer[m]].append((times.start[m], until))
            if self.receiver[m] >= 0:
                busy[self.end[self.end_ptr[m]], self.receiver[m]].append((times.whole[m][0], times.usable[m]))
        for jobs in busy.values():
            jobs.sort()
        waiters = Waiters(usual_peers(pairs), busy)
        groups = self.execution.groups
        load: dict[int, list[int]] = defaultdict(lambda: [0] * groups)  # operations of each group of a GPU
        for (rank, number), jobs in busy.items():
            load[rank][number] = RECEIVE_OPERATIONS * len(jobs)
        result = [(-1, 0)] * len(self.kind)
        for m in sorted(inside, key=lambda m: (times.start[m], m)):
            dst, issuer = self.end[self.end_ptr[m]], self.issuer[m]
            here = load[dst]
            time, group = users.get(m, (END - 2 if self.staged else END, -1))
            if m in self.waiter:
                result[m] = -1, time if time >= END - 2 else times.whole[m][0]
                continue
            if self.receiver[m] >= 0:
                time, wanted = times.whole[m][0], [self.receiver[m]]
            elif group >= 0:
                wanted = [group]
            elif time < END - 2:
                others = [issuer, *range(groups)]
                if here[issuer] > _CROWDED:
                    others.sort(key=here.__getitem__)
                wanted = [g for g in others if waiters.is_free(dst, g, time)]
            elif here[issuer] > _CROWDED:
                wanted = nsmallest(_TRIED, range(groups), here.__getitem__)
            else:
                wanted = []
            result[m] = group, _ = waiters.choose(self.src[m], issuer, dst, wanted), time
            if self.execution.loops > 1 and wanted and group not in wanted:  # it would wait in vain in every repetition
                raise InputError(
                    f"mscclpp cannot run this schedule: a threadblock of gpu {dst} would need more than "
                    f"{CHANNELS_PER_BLOCK} channels"
                )
            here[group] += 1 if time >= END - 2 else 3
        return result

    # -- actions of messages ------------------------------------------------------------------------------------------

    def _add(self, kind: int, rank: int, block: int, time: int, name: str = "", m: int = -1) -> Action:
        action = Action(kind, rank, block, time, name, message=m, tie=m)
        self.actions.append(action)
        return action

    def _entries(self, m: int) -> tuple[list[int], list[int]]:
        """Return the places from which a message to one end is sent, and where it arrives."""
        sent = self.sent[self.ptr[m] : self.ptr[m + 1]]
        return sent, self.arrives[self.delivery_ptr[m] : self.delivery_ptr[m + 1]]

    def _memory(self, m: int, waits: tuple[int, int]) -> None:
        src, dst, issuer, times = self.src[m], self.end[self.end_ptr[m]], self.issuer[m], self.times
        group, time = waits
        sent, arrives = self._entries(m)
        for part in range(self.width):
            block = issuer * self.width + part
            send = self._add(SEND, src, block, times.start[m], "ppkt" if self.packets else "put", m)
            send.ranges, send.peer = part_ranges(sent, arrives, None, self.width, part), dst
            if not self.packets:
                other = self.waiter.get(m, group * self.width + part)
                send.channels = (self.memory.send(src, block, dst, other),)
                wait = self._add(WAIT, dst, other, time, "wait", m)
                wait.ranges, wait.channels = send.ranges, send.channels
                self.pairs.append(("memory", send.channels[0], send, wait))
        self._work(m)

    def _nic(self, m: int) -> None:
        src, dst, times = self.src[m], self.end[self.end_ptr[m]], self.times
        packs = [e for e in range(self.ptr[m], self.ptr[m + 1]) if self.packed[e] >= 0]
        for part in range(self.width if packs else 0):
            pack = self._add(PACK, src, self._packer(m) * self.width + part, times.start[m], "copy", m)
            sources, targets = [self.packed[e] for e in packs], [self.sent[e] for e in packs]
            pack.ranges = part_ranges(sources, targets, None, self.width, part)
        here, there = self._posters[m]
        sent, arrives = self._entries(m)
        post = self._add(POST, src, here, times.posted[m], "pws", m)
        first, to = slot_of(sent[0], self.width, 0), slot_of(arrives[0], self.width, 0)
        post.ranges = [(first, to, len(sent) * self.width, ())]
        post.channels, post.peer = (self.port.send(src, here, dst, there),), dst
        wait = self._add(WAIT, dst, there, times.whole[m][0], "wait", m)
        wait.ranges, wait.channels = post.ranges, post.channels
        self.pairs.append(("port", post.channels[0], post, wait))
        self._work(m)

    def _work_times(self) -> list[int]:
        """Return when the receiver of each message works on it: not before those whose results it reduces further."""
        owner = np.repeat(np.arange(len(self.kind)), np.diff(self.messages.delivery_ptr)).tolist()
        time = [whole[0] for whole in self.times.whole]
        for m in sorted(range(len(self.kind)), key=lambda m: (self.times.usable[m], m)):
            for d in range(self.delivery_ptr[m], self.delivery_ptr[m + 1]):
                if self.added_version[d] >= 0:
                    time[m] = max(time[m], time[owner[self.added_version[d]]])
        return time

    def _work(self, m: int) -> None:
        """Add what the receiver does with a message: reduce it, read its packets, or copy what is not in its place.

        The first of the messages that are reduced together stands for all of them.
        """
        if self.together[m][0] != m:
            return
        operations = zip(*(self._deliveries(k) for k in self.together[m]), strict=True)
        rows = [row for deliveries in operations for row in self._one_operation(deliveries)]
        if not rows:
            return
        dst, group = self.end[self.end_ptr[m]], max(self.receiver[m], 0)
        sources, targets, added = (list(column) for column in zip(*rows, strict=True))
        for part in range(self.width):
            work = self._add(WORK, dst, group * self.width + part, self.work_time[m], "", m)
            work.tie = self.times.usable[m]
            work.ranges = part_ranges(sources, targets, added, self.width, part)

    def _deliveries(self, m: int) -> list[int]:
        """Return the deliveries of a message in the order of their chunks, where it is reduced together with others."""
        rows = range(self.delivery_ptr[m], self.delivery_ptr[m + 1])
        if len(self.together[m]) == 1:
            return list(rows)
        chunk = self.schedule.chunk[self.messages.transfer[self.ptr[m] : self.ptr[m + 1]]].tolist()
        return [d for _, d in sorted(zip(chunk, rows, strict=True))]

    def _one_operation(self, deliveries: tuple[int, ...]) -> list[tuple[int, int, tuple[int, ...]]]:
        """Return (source, target, what is added) of what the receiver does with deliveries of the same chunk.

        Where the GPU has no data of the chunk yet, the first delivery takes its place.
        """
        first, *others = deliveries
        rows: list[tuple[int, int, tuple[int, ...]]] = []
        has = self.added[first]
        if has < 0:
            has = self.place[first]
            if self.arrives[first] != has:
                rows.append((self.arrives[first], has, ()))
        else:
            others = [first, *others]
        if others:
            more = tuple(self.arrives[d] for d in others[1:])
            rows.append((self.arrives[others[0]], self.place[others[-1]], (has, *more)))
        return rows

    def _members(self, m: int) -> tuple[int, ...]:
        """Return the GPUs of the group of an operation of a switch."""
        ends = self.end[self.end_ptr[m] : self.end_ptr[m + 1]]
        return tuple(sorted({self.src[m], *ends, *self.root[self.root_ptr[m] : self.root_ptr[m + 1]]}))

    def _switch(self, m: int) -> None:
        """Add an operation of a switch, and the waits of all other GPUs of its group."""
        src, members, times = self.src[m], self._members(m), self.times
        if self.issuer[m] < 0:
            raise InputError(f"transfer {self.first[m]}: mscclpp copies and reduces only in switches inside a host")
        ends = self.end_ptr[m + 1] - self.end_ptr[m]
        sent = self.sent[self.ptr[m] : self.ptr[m + 1]]
        targets = [self.place[self.delivery_ptr[m] + k * ends] for k in range(len(sent))]
        for part in range(self.width):
            block = self.issuer[m] * self.width + part
            send = self._add(SEND, src, block, times.start[m], "gstore", m)
            send.name = "glres" if self.kind[m] == REDUCE_IN_SWITCH else "gstore"
            send.ranges, send.group = part_ranges(sent, targets, None, self.width, part), members
            send.channels = tuple(self.memory.send(src, block, other, block) for other in members if other != src)
            for other, channel in zip((other for other in members if other != src), send.channels, strict=True):
                row = self.end[self.end_ptr[m] : self.end_ptr[m + 1]]
                time = times.whole[m][row.index(other)] if other in row else times.usable[m]
                wait = self._add(WAIT, other, block, time, "wait", m)
                wait.ranges, wait.channels = send.ranges, (channel,)
                self.pairs.append(("memory", channel, send, wait))
                if send.name == "glres" and sent[0] >> BUFFER_BITS == SCRATCH:
                    self._is_ready(m, send, other, channel)

    def _is_ready(self, m: int, load: Action, rank: int, channel: int) -> None:
        """Let a GPU tell the one that reduces through the switch that its own partial result is ready."""
        self.memory.used.add((channel, rank))
        tell = self._add(SIGNAL, rank, load.block, load.time - 1, "signal", m)
        tell.ranges, tell.channels = [(source, source, count, ()) for source, _, count, _ in load.ranges], (channel,)
        hear = self._add(WAIT, load.rank, load.block, load.time, "wait", m)
        hear.channels = (channel,)
        self.pairs.append(("memory", channel, tell, hear))

    # -- what is not in the schedule ----------------------------------------------------------------------------------

    def _last_times(self) -> dict[tuple[int, int], int]:
        """Return when each threadblock is free for good."""
        last: dict[tuple[int, int], int] = defaultdict(int)
        for action in self.actions:
            m = action.message
            ends = {SEND: self.times.issued, WORK: self.times.usable, PACK: self.times.posted}.get(action.kind)
            key = action.rank, action.block
            last[key] = max(last[key], 0 if ends is None else ends[m])
        return last

    def _own_copies(self) -> Iterator[Action]:
        """Copy the own data of each GPU to its output, on the threadblocks that are free first."""
        written = {(a.rank, target) for a in self.actions if a.kind == PACK or a.group for _, target, _, _ in a.ranges}
        last = self._last_times()
        blocks = min(self.execution.groups, (self.execution.sms - self.posters) // self.width) * self.width
        count = self.layout.demand.pieces * self.width
        for rank in range(self.layout.demand.num_gpus):
            for source, target in self.layout.own_copies(rank, 0):
                first = "ios".index(source[0]) << BUFFER_BITS | source[1] * self.width
                to = "ios".index(target[0]) << BUFFER_BITS | target[1] * self.width
                if any((rank, to + k) in written for k in range(count)):
                    continue
                free = sorted(range(blocks), key=lambda block: (last[rank, block], block))[: min(count, blocks)]
                if self.execution.loops > 1:  # those that repeat operations would copy after all of them
                    free = [block for block in free if not last[rank, block]] or free
                for k, block in enumerate(free):
                    low, high = k * count // len(free), (k + 1) * count // len(free)
                    copy = Action(WORK, rank, block, last[rank, block], "copy")
                    copy.ranges = [(first + low, to + low, high - low, ())]
                    copy.once = True
                    yield copy

    def _final_copies(self) -> None:
        """Copy chunks that stayed in scratch, because others were still to be sent from there, to the output."""
        ranks, chunks = self.schedule.demand.destination_rank.tolist(), self.schedule.demand.destination_chunk.tolist()
        wanted = set(zip(ranks, chunks, strict=True))
        final: dict[tuple[int, int], int] = {}
        chunk = self.schedule.chunk[self.messages.transfer].tolist()
        for m in sorted(range(len(self.kind)), key=lambda m: (self.times.usable[m], m)):
            ends = self.end_ptr[m + 1] - self.end_ptr[m]
            for d in range(self.delivery_ptr[m], self.delivery_ptr[m + 1]):
                k, j = divmod(d - self.delivery_ptr[m], ends)
                key = self.end[self.end_ptr[m] + j], chunk[self.ptr[m] + k]
                if key in wanted:
                    final[key] = d
        for (rank, number), d in sorted(final.items()):
            buffer, index = self.layout.output(rank, number, 0)
            target = "ios".index(buffer) << BUFFER_BITS | index
            block = number % self.execution.groups
            for part in range(self.width):
                copy = self._add(WORK, rank, block * self.width + part, END - 1, "copy")
                copy.ranges = part_ranges([self.place[d]], [target], None, self.width, part)

    def _leave(self) -> None:
        """At the end of a call with packets, tell all senders that their packets are read, and wait for all receivers.

        The next call writes packets to the same places.
        """
        pairs = {(self.src[m], self.end[self.end_ptr[m]]) for m in range(len(self.kind))}
        peers: dict[int, list[int]] = defaultdict(list)
        for a, b in sorted({tuple(sorted(pair)) for pair in pairs}):
            peers[a].append(b)
            peers[b].append(a)

        def block(rank: int, peer: int) -> int:
            return peers[rank].index(peer) // CHANNELS_PER_BLOCK

        for rank, found in sorted(peers.items()):
            for number in range(-(-len(found) // CHANNELS_PER_BLOCK)):
                peers_of_block = [peer for peer in found if block(rank, peer) == number]
                channel = {peer: self.memory.open(rank, number, peer, block(peer, rank)) for peer in peers_of_block}
                tells = tuple(channel[peer] for peer in peers_of_block if (peer, rank) in pairs)
                hears = tuple(channel[peer] for peer in peers_of_block if (rank, peer) in pairs)
                for kind, name, used in ((SIGNAL, "signal", tells), (WAIT, "wait", hears)):
                    if used:
                        self._add(kind, rank, number, END + (kind == WAIT), name).channels = used

    def _flush(self) -> None:
        """Let those that post wait until the NIC has read all data, before the call ends."""
        used: dict[tuple[int, int], dict[int, None]] = defaultdict(dict)
        for action in self.actions:
            if action.kind == POST:
                used[action.rank, action.block][action.channels[0]] = None
        for (rank, block), channels in used.items():
            flush = self._add(FLUSH, rank, block, END - 1, "flush")
            flush.channels, flush.once = tuple(channels), True
