"""Where chunks lie on GPUs: from which place each message reads, where it arrives, and what must be copied.

A GPU holds its own chunks in its input and is to have the chunks that it wants in its output; everything else is in
scratch, where every place is written once. A message inside a host may read from and write to several places. A message
over a NIC is one contiguous write: where its chunks are not adjacent at the sender, they are collected in scratch. Data
that arrives for such a message goes there at once, and only the rest is copied. Where the chunks are not adjacent in
the output of the receiver, they arrive side by side in its scratch, and those that it wants are copied.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.schedule.messages import NIC, Messages
from flowccl.schedule.transfers import Transfers

I64 = NDArray[np.int64]

BUFFER_BITS = 40
"""A place is `buffer << BUFFER_BITS | index`, counted in chunks; buffers are input, output, scratch, packets."""
INPUT, OUTPUT, SCRATCH, PACKETS = range(4)
_KEPT = ("allgather", "broadcast")  # whose ranks copy the data that they send to its place in their own output


@dataclass(frozen=True, eq=False)
class Places:
    """The places of all messages.

    Entry k of the messages is sent from place `sent[k]`; where `packed[k]` is not -1, the chunk is copied from that
    place first. It has the data of delivery `version[k]`, or that of the GPU's input (-1). Delivery d arrives in
    `arrives[d]`. Its result is in `place[d]`, after a copy if that differs, or after a reduction with `added[d]` (-1:
    none), which is that of delivery `added_version[d]` or of the input (-1). `scratch` and `packets` are the chunks of
    those buffers of each GPU. `problem` is (transfer, GPU) of the first message whose data is not there.
    """

    sent: I64
    packed: I64
    version: I64
    arrives: I64
    place: I64
    added: I64
    added_version: I64
    scratch: I64
    packets: I64
    problem: tuple[int, int] | None


@dataclass(frozen=True, eq=False)
class ChunksOfOne:
    """The chunks of messages where one GPU stands for all: as it sends them, and as they arrive there.

    `demand` is that of all GPUs; the one GPU has what GPU 0 has, and wants what that wants.
    """

    demand: Demand
    leaves: I64
    arrives: I64


def positions(demand: "Demand") -> tuple[I64, I64]:
    """Return the position of each chunk in the input of a GPU that has it, and in the output of one that wants it."""
    chunk = np.arange(len(demand), dtype=np.int64)
    piece = chunk % demand.pieces
    source = demand.source_rank[demand.source_ptr[:-1]].astype(np.int64)
    target = demand.destination_rank[demand.destination_ptr[:-1]].astype(np.int64)
    times = max(len(demand) // demand.pieces // max(demand.num_gpus, 1), 1)  # more than 1 in a one-shot allreduce
    block = chunk // demand.pieces // times
    none = np.zeros(len(demand), dtype=np.int64)
    if demand.collective == "alltoallv":  # chunks of different sizes: their places in the order of the buffers
        return _place_in(source, target), _place_in(target, source)
    found = {
        "allgather": (none, source),
        "gather": (none, source),
        "alltoall": (target, source),
        "allreduce": (block, block),
        "reduce_scatter": (target, none),
        "scatter": (target, none),
        "broadcast": (none, none),
        "reduce": (none, none),
    }.get(demand.collective)
    if found is None:
        return chunk, chunk
    return found[0] * demand.pieces + piece, found[1] * demand.pieces + piece


def _place_in(owner: I64, other: I64) -> I64:
    """The place of each chunk among those of its owner, sorted by the rank at the other end."""
    order = np.lexsort((other, owner))
    result = np.empty(len(owner), dtype=np.int64)
    result[order] = np.arange(len(owner)) - np.searchsorted(owner[order], owner[order])
    return result


def places_of(
    schedule: Transfers,
    messages: Messages,
    usable_ps: I64 | None = None,
    *,
    packets: bool = False,
    is_staged: bool = False,
    of_one: ChunksOfOne | None = None,
) -> Places:
    """Return the places of all chunks; `usable_ps` is when each message is complete at its last receiver.

    Without it, messages follow each other in the order of their starts, which is enough to see what must be copied.
    With `is_staged`, chunks for the output stay in scratch until all messages are sent. `of_one` are the chunks where
    one GPU stands for all.
    """
    from flowccl.schedule.placement_kernels import Buffers, Sent, place_chunks

    plain = ChunksOfOne(schedule.demand, schedule.chunk.astype(np.int64), schedule.chunk.astype(np.int64))
    chunk = plain if of_one is None else of_one
    demand, first = chunk.demand, messages.first
    start = np.zeros(len(schedule), dtype=np.int64)  # equal in a message, except while messages are being joined
    np.maximum.at(start, schedule.leader, schedule.start_ps)
    start = start[first]
    number = np.arange(len(messages), dtype=np.int64)
    event = np.concatenate((2 * number + 1, 2 * number))
    if usable_ps is None:
        order = np.lexsort((-event, event // 2, np.concatenate((start, start))))
    else:
        order = np.lexsort((event, event % 2, np.concatenate((start, usable_ps))))
    chunks = len(demand)
    is_reduced = np.diff(demand.source_ptr) > 1
    is_reduced[chunk.leaves[schedule.reduce]] = is_reduced[chunk.arrives[schedule.reduce]] = True
    sent = Sent(
        messages.ptr,
        chunk.leaves[messages.transfer],
        chunk.arrives[messages.transfer],
        messages.kind.astype(np.int64),
        messages.src,
        messages.root_ptr,
        messages.root,
        messages.end_ptr,
        messages.end,
        messages.delivery_ptr,
        schedule.reduce[first],
    )
    buffers = Buffers(is_reduced, *positions(demand), chunks, demand.collective in _KEPT, packets, is_staged)
    source = demand.source_rank.astype(np.int64) * chunks + demand.source_chunk
    wanted = demand.destination_rank.astype(np.int64) * chunks + demand.destination_chunk
    nodes = len(schedule.topology.nodes) if of_one is None else 1
    source, wanted = source[source < nodes * chunks], wanted[wanted < nodes * chunks]
    found = place_chunks(event[order], sent, buffers, nodes, source, wanted)
    entry, node = found[-1].tolist()
    return Places(*found[:-1], None if entry < 0 else (int(messages.transfer[entry]), node))


def copied_bytes(schedule: Transfers, messages: Messages, places: Places) -> tuple[I64, I64]:
    """Return, for the message of each transfer, the bytes that its sender packs and that its receiver unpacks."""
    size = schedule.demand.chunk_bytes[schedule.chunk[messages.transfer]]
    number = np.repeat(np.arange(len(messages)), np.diff(messages.ptr))
    pack = np.bincount(number, np.where(places.packed >= 0, size, 0), len(messages)).astype(np.int64)
    ends = np.diff(messages.end_ptr)[number]
    entry = np.repeat(np.arange(len(number)), ends)
    copied = (places.added < 0) & (places.arrives != places.place) & (messages.kind[number[entry]] == NIC)
    unpack = np.bincount(number[entry], np.where(copied, size[entry], 0), len(messages)).astype(np.int64)
    of = np.searchsorted(messages.first, schedule.leader)
    return pack[of], unpack[of]
