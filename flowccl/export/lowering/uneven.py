"""Buffers of an alltoallv: the blocks of all other ranks one after the other, in rank order, each of its own size.

The runtime divides a buffer into chunks of one size, the *unit* of the plan, so a chunk of the schedule is several
chunks of the plan: as many parts as a group has threadblocks, each with the same number of units. The data of a rank
for itself is not part of the buffers.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.errors import InputError
from flowccl.export.lowering.actions import MASK
from flowccl.export.lowering.buffers import BufferLayout, BufferSlot, layout_of
from flowccl.runtimes.profiles import ALIGNMENT_BYTES
from flowccl.schedule.messages import Messages
from flowccl.schedule.placement import BUFFER_BITS, INPUT, OUTPUT, Places, positions
from flowccl.schedule.transfers import Transfers

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class UnevenLayout(BufferLayout):
    """The buffers of an alltoallv, counted in units of `unit_bytes`; rank s sends `blocks[s][d]` to d."""

    unit_bytes: int = ALIGNMENT_BYTES
    blocks: tuple[tuple[int, ...], ...] = ()

    @property
    def chunks(self) -> int:
        """Number of units of the largest buffer."""
        return max(max(self.counts(rank)) for rank in range(self.demand.num_gpus))

    def counts(self, rank: int) -> tuple[int, int]:
        """Return the numbers of units of the rank's input and output buffer; at least 1, as the runtime demands."""
        return max(sum(self.blocks[rank]), 1), max(sum(row[rank] for row in self.blocks), 1)

    def own_copies(self, rank: int, instance: int) -> list[tuple[BufferSlot, BufferSlot]]:
        """Return no slots: the data of a rank for itself is not part of the buffers."""
        return []


def program_layout(demand: Demand, width: int, inplace: bool) -> BufferLayout:
    """Return the buffers of a program whose messages are carried by groups of `width` threadblocks."""
    if demand.collective != "alltoallv":
        return layout_of(demand, width, inplace)
    if inplace:
        raise InputError("mscclpp: an alltoallv does not run in place; export it without --inplace")
    unit = _unit_bytes(demand, width)
    blocks = np.zeros((demand.num_gpus, demand.num_gpus), dtype=np.int64)
    np.add.at(blocks, (demand.source_rank, demand.destination_rank), demand.chunk_bytes // unit)
    return UnevenLayout(demand, 0, width, False, (), unit, tuple(tuple(row) for row in blocks.tolist()))


def buffer_bytes(demand: Demand) -> int:
    """Return the bytes of the largest buffer that a rank passes to the runtime."""
    return demand.heaviest_bytes if demand.collective == "alltoallv" else demand.size_bytes


def _unit_bytes(demand: Demand, width: int) -> int:
    """The largest unit of which all parts of all chunks are multiples."""
    if len(demand.source_rank) != len(demand) or len(demand.destination_rank) != len(demand):
        raise InputError("mscclpp: every chunk of an alltoallv must have one source and one destination")
    common = int(np.gcd.reduce(demand.chunk_bytes))
    if common % (ALIGNMENT_BYTES * width):
        odd = int(np.argmax(demand.chunk_bytes % (ALIGNMENT_BYTES * width) != 0))
        s, d = int(demand.source_rank[odd]), int(demand.destination_rank[odd])
        raise InputError(
            f"mscclpp: all chunks of an alltoallv must be multiples of {ALIGNMENT_BYTES * width} bytes, but rank {s} "
            f"sends one of {demand.chunk_bytes[odd]} bytes to rank {d}; use a matrix in multiples of 16 bytes and "
            "synthesize without --chunks"
        )
    return common // width


class Slots:
    """From slots, the parts of chunks, to the chunks of a plan: the same where all chunks have the same size."""

    def total(self, rank: int, buffer: int, chunks: int, width: int) -> int:
        """Return the plan's chunks of a buffer of a rank that holds some chunks of the schedule."""
        return chunks * width

    def chunks_of(self, rank: int, slot: int, count: int) -> tuple[int, int]:
        """Return the first chunk of the plan, and how many, of some slots of a rank that follow each other."""
        return slot & MASK, count


@dataclass(frozen=True, slots=True)
class UnevenSlots(Slots):
    """Slots of different sizes: `first[rank, buffer]` are the units before each place, for one part of each chunk."""

    width: int
    first: dict[tuple[int, int], list[int]]

    def total(self, rank: int, buffer: int, chunks: int, width: int) -> int:
        """Return the plan's chunks of a buffer of a rank that holds some chunks of the schedule."""
        found = self.first.get((rank, buffer), [0])
        return found[min(chunks, len(found) - 1)] * width

    def chunks_of(self, rank: int, slot: int, count: int) -> tuple[int, int]:
        """Return the first chunk of the plan, and how many, of some slots of a rank that follow each other."""
        low = self._at(rank, slot)
        return low, self._at(rank, slot + count) - low

    def _at(self, rank: int, slot: int) -> int:
        place, part = divmod(slot & MASK, self.width)
        first = self.first[rank, slot >> BUFFER_BITS]
        return first[place] * self.width + (part * (first[place + 1] - first[place]) if part else 0)


def slots_of(layout: BufferLayout, schedule: Transfers, messages: Messages, places: Places) -> Slots:
    """Return the table of slots of a program, from the places of all chunks."""
    if not isinstance(layout, UnevenLayout):
        return Slots()
    rank, place, chunk = _contents(schedule, messages, places)
    size = layout.demand.chunk_bytes // (layout.unit_bytes * layout.instances)
    buffer, index = place >> BUFFER_BITS, place & MASK
    first: dict[tuple[int, int], list[int]] = {}
    order = np.lexsort((index, buffer, rank))
    key = rank[order] * 4 + buffer[order]
    cuts = np.flatnonzero(np.diff(key, prepend=-1, append=-1))
    for low, high in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        rows = order[low:high]
        sizes = np.zeros(int(index[rows[-1]]) + 1, dtype=np.int64)
        sizes[index[rows]] = size[chunk[rows]]
        first[int(rank[rows[0]]), int(buffer[rows[0]])] = [0, *np.cumsum(sizes).tolist()]
    return UnevenSlots(layout.instances, first)


def _contents(schedule: Transfers, messages: Messages, places: Places) -> tuple[I64, I64, I64]:
    """Return (rank, place, chunk) of every place that holds a chunk."""
    demand = schedule.demand
    into, out = positions(demand)
    entry = schedule.chunk[messages.transfer].astype(np.int64)
    sender = np.repeat(messages.src, np.diff(messages.ptr))
    number = np.repeat(np.arange(len(messages)), np.diff(messages.delivery_ptr))
    ends = np.diff(messages.end_ptr)[number]
    row, end = np.divmod(np.arange(len(number)) - messages.delivery_ptr[number], np.maximum(ends, 1))
    arrived, node = entry[messages.ptr[number] + row], messages.end[messages.end_ptr[number] + end]
    every = np.arange(len(demand), dtype=np.int64)
    parts = (
        (demand.source_rank.astype(np.int64), (INPUT << BUFFER_BITS) + into, every),
        (demand.destination_rank.astype(np.int64), (OUTPUT << BUFFER_BITS) + out, every),
        (sender, places.sent, entry),
        (sender, places.packed, entry),
        (node, places.arrives, arrived),
        (node, places.place, arrived),
    )
    rank, place, chunk = (np.concatenate([part[k] for part in parts]) for k in range(3))
    known = place >= 0
    return rank[known], place[known], chunk[known]
