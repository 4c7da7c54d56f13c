"""Division of chunks: the chunks of a demand become blocks of several smaller chunks each."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError


def divided(demand: Demand, count: int) -> Demand:
    """Return the demand with each chunk in `count` smaller ones, which differ by at most one byte.

    Chunk c becomes the chunks from c * count on. Raises DemandError where a chunk has fewer bytes, or tenants own the
    chunks.
    """
    if count == 1:
        return demand
    if demand.tenants:
        raise DemandError("the chunks of tenants are given")
    if demand.chunk_bytes.min(initial=count) < count:
        raise DemandError(f"a chunk of {int(demand.chunk_bytes.min())} bytes cannot be divided into {count}")
    least, more = np.divmod(demand.chunk_bytes, count)
    size = least[:, None] + (np.arange(count) < more[:, None])
    source_ptr, source = _repeated(demand.source_ptr, count)
    destination_ptr, destination = _repeated(demand.destination_ptr, count)
    return replace(
        demand,
        chunk_bytes=size.reshape(-1),
        source_ptr=source_ptr,
        source_rank=demand.source_rank[source],
        destination_ptr=destination_ptr,
        destination_rank=demand.destination_rank[destination],
        pieces=demand.pieces * count,
        ready_ps=None if demand.ready_ps is None else demand.ready_ps[source],
    )


def _repeated(pointer: NDArray[np.int64], count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The pointer of a table whose rows are repeated `count` times in place, and the entries of the old one."""
    size = np.repeat(np.diff(pointer), count)
    first = np.repeat(pointer[:-1], count)
    new = pointers(size)
    return new, np.repeat(first - new[:-1], size) + np.arange(new[-1])
