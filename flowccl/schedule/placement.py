"""Where chunks lie on a GPU, and which messages need a copy because their chunks are not adjacent there.

A GPU holds its own chunks in its input, in the order of their numbers, and the chunks that it is to receive in its
output, in the same way. The chunks of a message are one contiguous write, in the order of their transfers in the
schedule. Where they are not adjacent in this order at the sender, they are copied together first. Where they are not
adjacent in the output of the receiver, they arrive side by side in its scratch, from where they are copied to the
output, if the receiver wants them, or sent on.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand

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
    order = np.lexsort((np.arange(len(schedule)), schedule.leader, start[schedule.leader]))
    keys_in, place_in = _positions(demand, sends=True, nodes=nodes)
    keys_out, place_out = _positions(demand, sends=False, nodes=nodes)
    pack, unpack = find_copies(
        order,
        schedule.leader,
        schedule.chunk.astype(np.int64),
        first_root[schedule.route].astype(np.int64),
        first_end[schedule.route].astype(np.int64),
        alone[schedule.route],
        schedule.reduce,
        keys_in,
        place_in,
        keys_out,
        place_out,
        _own_in_output(demand),
        nodes,
    )
    size = schedule.sent_bytes
    return np.where(pack[schedule.leader], size, 0), np.where(unpack[schedule.leader], size, 0)


def _own_in_output(demand: Demand) -> I64:
    """For each chunk, its place in the output of its own source, which a local copy brings there; -1: none."""
    place = np.full(len(demand), -1, dtype=np.int64)
    if demand.collective == "allgather":
        place[:] = _places(demand, sends=False)
    return place


def _positions(demand: Demand, *, sends: bool, nodes: int) -> tuple[I64, I64]:
    """Return sorted keys (chunk, GPU) and the position of each chunk in the input or the output of its GPU."""
    chunk = demand.source_chunk if sends else demand.destination_chunk
    rank = demand.source_rank if sends else demand.destination_rank
    key = chunk.astype(np.int64) * nodes + rank
    order = np.argsort(key, kind="stable")
    return key[order], _places(demand, sends=sends)[chunk[order]]


def _places(demand: Demand, *, sends: bool) -> I64:
    """The position of each chunk in the input of its sources or the output of its destinations.

    Collectives have blocks of `pieces` chunks: one for each peer, or one in all. Other demands are in the order of
    their chunks.
    """
    chunk = np.arange(len(demand), dtype=np.int64)
    piece = chunk % demand.pieces
    source = demand.source_rank[demand.source_ptr[:-1]].astype(np.int64)
    destination = demand.destination_rank[demand.destination_ptr[:-1]].astype(np.int64)
    block = {
        ("allgather", False): source,
        ("alltoall", True): destination,
        ("alltoall", False): source,
        ("reduce_scatter", True): destination,
    }.get((demand.collective, sends))
    if block is not None:
        return np.asarray(block * demand.pieces + piece)
    single = (demand.collective, sends) in (("allgather", True), ("reduce_scatter", False))
    return piece if single else chunk
