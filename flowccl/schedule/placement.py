"""Where chunks lie on a GPU, and which messages need a copy because their chunks are not adjacent there.

A GPU holds its own chunks in its input, in the order of their numbers, and the chunks that it is to receive in its
output, in the same way. The chunks of a message are one contiguous write. Where they are not adjacent at the sender,
they are copied together first. Where they are not adjacent in the output of the receiver, they arrive side by side in
its scratch, from where they are copied to the output, if the receiver wants them, or sent on.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from flowccl.schedule.schedule import Schedule

I64 = NDArray[np.int64]


def copied_bytes(schedule: "Schedule") -> tuple[I64, I64]:
    """Return, for the message of each transfer, the bytes that its sender packs and that its receiver unpacks.

    Only messages of several chunks are ever copied. Reductions are read where they arrive, and partial results lie in
    scratch in the order in which they leave.
    """
    packed, unpacked = np.zeros(len(schedule), dtype=np.int64), np.zeros(len(schedule), dtype=np.int64)
    if not schedule.has_messages:
        return packed, unpacked
    from flowccl.schedule.placement_kernels import find_copies

    demand, shape = schedule.demand, schedule.shape
    nodes = len(schedule.topology.nodes)
    first_root, first_end = shape.root_node[shape.root_ptr[:-1]], shape.end_node[shape.end_ptr[:-1]]
    alone = (np.diff(shape.root_ptr) == 1) & (np.diff(shape.end_ptr) == 1)
    start = np.zeros(len(schedule), dtype=np.int64)  # equal in a message, except while messages are being joined
    np.maximum.at(start, schedule.leader, schedule.start_ps)
    order = np.lexsort((schedule.chunk, schedule.leader, start[schedule.leader]))
    pack, unpack = find_copies(
        order,
        schedule.leader,
        schedule.chunk.astype(np.int64),
        first_root[schedule.route].astype(np.int64),
        first_end[schedule.route].astype(np.int64),
        alone[schedule.route],
        schedule.reduce,
        *_positions(demand.source_chunk, demand.source_rank, nodes),
        *_positions(demand.destination_chunk, demand.destination_rank, nodes),
        nodes,
    )
    size = schedule.sent_bytes
    return np.where(pack[schedule.leader], size, 0), np.where(unpack[schedule.leader], size, 0)


def _positions(chunk: NDArray[np.int32], rank: NDArray[np.int32], nodes: int) -> tuple[I64, I64]:
    """Return sorted keys (chunk, GPU) and the position of each chunk in the buffer of its GPU."""
    order = np.lexsort((chunk, rank))
    sorted_rank = rank[order].astype(np.int64)
    place = np.arange(len(order)) - np.searchsorted(sorted_rank, sorted_rank, side="left")
    key = chunk[order].astype(np.int64) * nodes + sorted_rank
    by_key = np.argsort(key, kind="stable")
    return key[by_key], place[by_key].astype(np.int64)
