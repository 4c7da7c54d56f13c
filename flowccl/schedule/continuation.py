"""A reduction that a distribution continues: which chunk of the first becomes which chunk of the second."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER
from flowccl.demand.demand import Demand
from flowccl.schedule.schedule import Schedule

I64 = NDArray[np.int64]


class ChunkEnds(NamedTuple):
    """When and where each chunk starts first, or arrives last; node -1 where it never does."""

    time_ps: I64
    node: I64

    @classmethod
    def last(cls, chunks: int, chunk: NDArray[np.int32], time_ps: I64, node: NDArray[np.int32]) -> "ChunkEnds":
        """The last arrival of each chunk."""
        latest, at = np.full(chunks, -1), np.full(chunks, -1)
        np.maximum.at(latest, chunk, time_ps)
        is_last = time_ps == latest[chunk]
        at[chunk[is_last]] = node[is_last]
        return cls(latest, at)

    @classmethod
    def first(cls, chunks: int, chunk: NDArray[np.int32], time_ps: I64, node: NDArray[np.int32]) -> "ChunkEnds":
        """The first start of each chunk."""
        earliest, at = np.full(chunks, NEVER), np.full(chunks, -1)
        np.minimum.at(earliest, chunk, time_ps)
        is_first = time_ps == earliest[chunk]
        at[chunk[is_first]] = node[is_first]
        return cls(earliest, at)


def in_order_of_use(arrival: ChunkEnds, begin: ChunkEnds, demand: Demand) -> I64:
    """Return for each chunk of a first schedule which one of a second schedule it becomes.

    Of equal chunks, the first that arrives goes on first. Chunks are equal that have the same size, the same sources
    and destinations in the whole `demand`, and the same GPU where the first schedule ends and the second one begins. A
    distribution that follows its own reversal needs this: the chunk that it sends first arrives last in the reversal,
    so nothing could begin before all has arrived.
    """
    becomes = np.arange(len(demand))
    if demand.ready_ps is not None or demand.tenants:
        return becomes
    able = np.flatnonzero((arrival.node >= 0) & (arrival.node == begin.node))
    group = _groups(np.stack((demand.chunk_bytes, arrival.node, *_ranks_of(demand)), axis=1)[able])
    by_arrival, by_begin = (able[np.lexsort((able, key.time_ps[able], group))] for key in (arrival, begin))
    becomes[by_arrival] = by_begin
    return becomes


def continuing(first: Schedule, second: Schedule, demand: Demand) -> I64:
    """`in_order_of_use` of two schedules with any routes, with the chunks of the demand."""
    one, other, count = first.timing, second.timing, len(demand)
    arrival = ChunkEnds.last(count, first.chunk[one.end_transfer], one.end_arrival_ps, one.end_node)
    begin = ChunkEnds.first(count, second.chunk[other.root_transfer], other.root_from_ps, other.root_node)
    return in_order_of_use(arrival, begin, demand)


def _ranks_of(demand: Demand) -> tuple[I64, I64]:
    """A number for the set of sources of each chunk, and one for its destinations: equal for equal sets."""
    tables = ((demand.source_ptr, demand.source_rank), (demand.destination_ptr, demand.destination_rank))
    found = []
    for ptr, rank in tables:
        member = np.zeros((len(demand), demand.num_gpus), dtype=np.bool_)
        member[np.repeat(np.arange(len(demand)), np.diff(ptr)), rank] = True
        found.append(_groups(np.packbits(member, axis=1)))
    return found[0], found[1]


def _groups(rows: NDArray[np.int64] | NDArray[np.uint8]) -> I64:
    """A number for each row, equal for equal rows."""
    return np.asarray(np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1), dtype=np.int64)
