"""A reduction that a distribution continues: which chunk of the first becomes which chunk of the second."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER
from flowccl.demand.demand import Demand
from flowccl.schedule.schedule import Schedule

I64 = NDArray[np.int64]


def in_order_of_use(first: Schedule, second: Schedule, demand: Demand) -> Schedule:
    """Return the first schedule with its chunks renamed: of equal chunks, the first that arrives goes on first.

    Chunks are equal that have the same size, the same sources and destinations in the whole `demand`, and the same
    GPU where the first schedule ends and the second one begins. A distribution that follows its own reversal needs
    this: the chunk that it sends first arrives last in the reversal, so nothing could begin before all has arrived.
    """
    if demand.ready_ps is not None or demand.tenants:
        return first
    arrival, end = _arrivals(first)
    begin, root = _begins(second)
    able = np.flatnonzero((arrival >= 0) & (begin < NEVER) & (end == root))
    group = _groups(np.stack((demand.chunk_bytes, end, *_ranks_of(demand)), axis=1)[able])
    renamed = np.arange(len(demand))
    by_arrival, by_begin = (able[np.lexsort((able, key[able], group))] for key in (arrival, begin))
    renamed[by_arrival] = by_begin
    return replace(first, chunk=renamed[first.chunk].astype(np.int32))


def _arrivals(schedule: Schedule) -> tuple[I64, I64]:
    """When the last transfer of each chunk arrives, and where; -1 for chunks without transfers."""
    timing, count = schedule.timing, len(schedule.demand)
    order = np.lexsort((timing.end_node, timing.end_arrival_ps))
    chunk = schedule.chunk[timing.end_transfer[order]]
    arrival, node = np.full(count, -1), np.full(count, -1)
    arrival[chunk], node[chunk] = timing.end_arrival_ps[order], timing.end_node[order]  # the last one stays
    return arrival, node


def _begins(schedule: Schedule) -> tuple[I64, I64]:
    """When the first transfer of each chunk starts, and where; NEVER for chunks without transfers."""
    timing, count = schedule.timing, len(schedule.demand)
    order = np.lexsort((timing.root_node, timing.root_from_ps))[::-1]
    chunk = schedule.chunk[timing.root_transfer[order]]
    begin, node = np.full(count, NEVER), np.full(count, -1)
    begin[chunk], node[chunk] = timing.root_from_ps[order], timing.root_node[order]
    return begin, node


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
