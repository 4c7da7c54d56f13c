"""Chunks of a demand that are repeated, or divided into several smaller chunks each."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError


def like_chunks(demand: Demand, of: NDArray[np.integer], pieces: int) -> Demand:
    """Return the demand whose chunks have the bytes, sources and destinations of chunks `of`, `pieces` per block."""
    source_ptr, source = _repeated(demand.source_ptr, of)
    destination_ptr, destination = _repeated(demand.destination_ptr, of)
    return replace(
        demand,
        chunk_bytes=demand.chunk_bytes[of],
        source_ptr=source_ptr,
        source_rank=demand.source_rank[source],
        destination_ptr=destination_ptr,
        destination_rank=demand.destination_rank[destination],
        pieces=pieces,
        ready_ps=None if demand.ready_ps is None else demand.ready_ps[source],
    )


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
    fine = like_chunks(demand, np.repeat(np.arange(len(demand)), count), demand.pieces * count)
    least, more = np.divmod(fine.chunk_bytes, count)
    return replace(fine, chunk_bytes=least + (np.arange(len(fine)) % count < more))


def _repeated(pointer: NDArray[np.int64], of: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The pointer of a table with some rows of another one, and their entries in that."""
    size = np.diff(pointer)[of]
    new = pointers(size)
    return new, np.repeat(pointer[:-1][of] - new[:-1], size) + np.arange(new[-1])
