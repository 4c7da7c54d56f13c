"""Actions that no message of the schedule stands for: copies of own data, the end of a call."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import members, pointers
from flowccl.export.lowering.actions import (
    END,
    FLUSH,
    LOAD,
    MASK,
    PACK,
    POST,
    SEND,
    SIGNAL,
    STORE,
    WAIT,
    WORK,
    Actions,
    Channels,
    MessageMoments,
    Ranges,
)
from flowccl.export.lowering.buffers import BufferLayout, BufferSlot
from flowccl.runtimes.execution import Execution
from flowccl.runtimes.limits import CHANNELS_PER_BLOCK
from flowccl.schedule.messages import Messages
from flowccl.schedule.placement import BUFFER_BITS
from flowccl.schedule.schedule import Schedule

I64 = NDArray[np.int64]


_Extra = tuple[tuple[int, int, int, int, int, int], tuple[int, int, int] | None, list[int]]
"""An action to be added: (kind, rank, block, time, tie, once), what it moves (source, target, slots), its channels."""


@dataclass(frozen=True, eq=False)
class Unscheduled:
    """Adds to the actions of all messages what the schedule does not say; `place` is where each delivery ends.

    They are for the first `gpus` ranks.
    """

    schedule: Schedule
    execution: Execution
    layout: BufferLayout
    posters: int
    times: MessageMoments
    place: I64
    gpus: int

    def added(
        self, actions: Actions, ranges: Ranges, ids: I64, memory: Channels, messages: Messages
    ) -> tuple[Actions, Ranges, I64, Channels]:
        """Return all actions, ranges, ids of channels, and channels between threadblocks."""
        rows: list[_Extra] = []
        if self.layout.inplace and (self.layout.collective == "alltoall" or self.layout.is_one_shot):
            rows += self._final_copies(messages)
        rows += self._own_copies(actions, ranges)
        if self.execution.packets:
            memory, leave = self._leave(messages)
            rows += leave
        rows += _flushes(actions, ids)
        if not rows:
            return actions, ranges, ids, memory
        head = np.array([row[0] for row in rows], dtype=np.int64)
        moved = np.array([row[1] for row in rows if row[1] is not None], dtype=np.int64).reshape(-1, 3)
        low = pointers([int(row[1] is not None) for row in rows]) + len(ranges.source)
        channel = pointers([len(row[2]) for row in rows]) + len(ids)
        none, zero = np.full(len(head), -1), np.zeros(len(moved), dtype=np.int64)
        more = [*head.T[:5], none, none, head[:, 5], low[:-1], low[1:], channel[:-1], channel[1:]]
        columns = zip(ranges[:5], (*moved.T, zero, zero), strict=True)
        whole = Ranges(*[np.append(column, new) for column, new in columns], *[ranges.added])
        numbers = np.array([number for row in rows for number in row[2]], dtype=np.int64)
        return (
            Actions(*[np.append(column, new) for column, new in zip(actions, more, strict=True)]),
            whole,
            np.append(ids, numbers),
            memory,
        )

    def _free_from(self, actions: Actions) -> I64:
        """When each threadblock of each GPU is free for good."""
        times, message = self.times, actions.message
        sends = np.isin(actions.kind, (SEND, STORE, LOAD))
        until = np.where(sends, times.issued[message], np.where(actions.kind == WORK, times.usable[message], 0))
        until = np.where(actions.kind == PACK, times.posted[message], until)
        last = np.zeros((self.gpus, 1 + int(actions.block.max(initial=0))), dtype=np.int64)
        np.maximum.at(last, (actions.rank, actions.block), until)
        return last

    def _own_copies(self, actions: Actions, ranges: Ranges) -> Iterator[_Extra]:
        """Copy the own data of each GPU to its output, on the threadblocks that are free first."""
        execution, count = self.execution, self.layout.demand.pieces * self.execution.slots
        wanted = [(rank, *row) for rank in range(self.gpus) for row in self.layout.own_copies(rank, 0)]
        if not wanted:
            return
        written, last = _written(actions, ranges), self._free_from(actions)
        blocks = min(execution.groups, (execution.sms - self.posters) // execution.width) * execution.width
        busy = np.zeros((len(last), max(blocks, last.shape[1])), dtype=np.int64)
        busy[:, : last.shape[1]] = last
        for rank, source, target in wanted:
            first, to = _first_slot(source, execution.slots), _first_slot(target, execution.slots)
            if any((rank, to + k) in written for k in range(count)):
                continue
            free = np.argsort(busy[rank, :blocks], kind="stable")[: min(count, blocks)].tolist()
            if execution.loops > 1:  # those that repeat operations would copy after all of them
                free = [block for block in free if not busy[rank, block]] or free
            for k, block in enumerate(free):
                low, high = k * count // len(free), (k + 1) * count // len(free)
                head = WORK, rank, block, int(busy[rank, block]), 0, 1
                yield head, (first + low, to + low, high - low), []

    def _final_copies(self, messages: Messages) -> Iterator[_Extra]:
        """Copy chunks that stayed in scratch, because others were still to be sent from there, to the output."""
        demand, width, slots = self.schedule.demand, self.execution.width, self.execution.slots
        wanted = set(zip(demand.destination_rank.tolist(), demand.destination_chunk.tolist(), strict=True))
        chunk, final = self.schedule.chunk[messages.transfer].tolist(), dict[tuple[int, int], int]()
        for m in np.lexsort((np.arange(len(messages)), self.times.usable)).tolist():
            ends = messages.end[messages.end_ptr[m] : messages.end_ptr[m + 1]].tolist()
            for d in range(int(messages.delivery_ptr[m]), int(messages.delivery_ptr[m + 1])):
                k, j = divmod(d - int(messages.delivery_ptr[m]), len(ends))
                key = ends[j], chunk[int(messages.ptr[m]) + k]
                if key in wanted:
                    final[key] = d
        for (rank, number), d in sorted(final.items()):
            target = _first_slot(self.layout.output(rank, number, 0), slots)
            source = (int(self.place[d]) & ~MASK) | (int(self.place[d]) & MASK) * slots
            each = slots // width
            for part in range(width):
                block = number % self.execution.groups * width + part
                yield (WORK, rank, block, END - 1, -1, 0), (source + part * each, target + part * each, each), []

    def _leave(self, messages: Messages) -> tuple[Channels, list[_Extra]]:
        """At the end of a call with packets, tell all senders that their packets are read, and wait for all receivers.

        The next call writes packets to the same places. Return the channels, and the actions.
        """
        pairs = set(zip(messages.src.tolist(), messages.end[messages.end_ptr[:-1]].tolist(), strict=True))
        peers: dict[int, dict[int, int]] = defaultdict(dict)  # of each GPU: the threadblock for each of its peers
        for a, b in sorted({tuple(sorted(pair)) for pair in pairs}):
            peers[a][b], peers[b][a] = len(peers[a]) // CHANNELS_PER_BLOCK, len(peers[b]) // CHANNELS_PER_BLOCK
        numbers: dict[tuple[int, int], int] = {}
        rows: list[_Extra] = []
        for rank, found in sorted(peers.items()):
            opened = {peer: numbers.setdefault((min(rank, peer), max(rank, peer)), len(numbers)) for peer in found}
            for number in range(1 + max(found.values())):
                own = [peer for peer, block in found.items() if block == number]
                tells = [opened[peer] for peer in own if (peer, rank) in pairs]
                hears = [opened[peer] for peer in own if (rank, peer) in pairs]
                for kind, late, used in ((SIGNAL, 0, tells), (WAIT, 1, hears)):
                    if used:
                        rows.append(((kind, rank, number, END + late, -1, 0), None, used))
        ends = np.array([(a, peers[a][b], b, peers[b][a]) for a, b in numbers], dtype=np.int64).reshape(-1, 4)
        return Channels(ends, np.zeros(2 * len(ends), dtype=np.bool_)), rows


def _flushes(actions: Actions, ids: I64) -> Iterator[_Extra]:
    """Let those that post wait until the NIC has read all data, before the call ends."""
    used: dict[tuple[int, int], dict[int, None]] = defaultdict(dict)
    posts = np.flatnonzero(actions.kind == POST)
    columns = actions.rank[posts], actions.block[posts], ids[actions.channel_low[posts]]
    for rank, block, number in zip(*(column.tolist() for column in columns), strict=True):
        used[rank, block][number] = None
    for (rank, block), channels in used.items():
        yield (FLUSH, rank, block, END - 1, -1, 1), None, list(channels)


def _first_slot(slot: BufferSlot, width: int) -> int:
    """The first slot of a chunk."""
    return "ios".index(slot[0]) << BUFFER_BITS | slot[1] * width


def _written(actions: Actions, ranges: Ranges) -> set[tuple[int, int]]:
    """The first slot of each range that GPUs pack into, or write through a switch."""
    chosen = np.flatnonzero(np.isin(actions.kind, (PACK, STORE, LOAD)))
    owner, number = members((actions.range_high - actions.range_low)[chosen])
    row = actions.range_low[chosen[owner]] + number
    return set(zip(actions.rank[chosen[owner]].tolist(), ranges.target[row].tolist(), strict=True))
