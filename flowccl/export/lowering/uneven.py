"""Buffers of an alltoallv: the blocks of all other ranks one after the other, in rank order, each of its own size.

The runtime divides a buffer into chunks of one size, the *unit* of the plan, so a chunk of the schedule is several
chunks of the plan: as many parts as a group has threadblocks, each with the same number of units. The data of a rank
for itself is not part of the buffers.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
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


@dataclass(frozen=True, eq=False)
class Units:
    """From places of chunks to the chunks of a plan, the same where all chunks have the same size.

    Otherwise, `first[first_ptr[4 * rank + buffer]:]` are the units before each place, for one part of each chunk.
    """

    first_ptr: I64
    first: I64

    def totals(self, buffer: int, chunks: I64, width: int) -> I64:
        """Return the plan's chunks of a buffer of each rank that holds some chunks of the schedule."""
        if not len(self.first_ptr):
            return chunks * width
        low, high = self.first_ptr[:-1][buffer::4], self.first_ptr[1:][buffer::4]
        return np.where(high > low, self.first[np.minimum(low + chunks, high - 1)], 0) * width


def units_of(layout: BufferLayout, schedule: Transfers, messages: Messages, places: Places) -> Units:
    """Return the units of a program, from the places of all chunks."""
    none = np.zeros(0, dtype=np.int64)
    if not isinstance(layout, UnevenLayout):
        return Units(none, none)
    rank, place, chunk = _contents(schedule, messages, places)
    size = layout.demand.chunk_bytes // (layout.unit_bytes * layout.instances)
    key, index = 4 * rank + (place >> BUFFER_BITS), place & MASK
    count = np.zeros(4 * len(schedule.topology.nodes), dtype=np.int64)
    np.maximum.at(count, key, index + 2)  # one more than places, where there are any
    ptr = pointers(count)
    sizes = np.zeros(ptr[-1] + 1, dtype=np.int64)
    sizes[ptr[key] + index + 1] = size[chunk]
    total = np.cumsum(sizes)
    return Units(ptr, total[:-1] - np.repeat(total[np.minimum(ptr[:-1], len(total) - 1)], count))


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
