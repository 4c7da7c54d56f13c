"""Chunk counts: which numbers of chunks per block are allowed, and what more of them may still gain."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.runtimes.profiles import ALIGNMENT_BYTES


@dataclass
class ChunkCounts:
    """The demand for each allowed chunk count.

    A count above one is allowed if every chunk has at least `min_chunk_bytes` and all chunks are multiples of 16 bytes.
    Without a runtime (`for_runtime`), other chunks are allowed too if the count is a power of two, if the blocks
    themselves are not multiples of 16 bytes, or if `min_chunk_bytes` is below 16.
    """

    demand_of: Callable[[int], Demand]
    min_chunk_bytes: int
    max_deliveries: int
    for_runtime: bool = False
    known: dict[int, Demand | None] = field(default_factory=dict)

    def demand(self, count: int) -> Demand | None:
        """The demand with this many chunks per block; None where that is not allowed or not possible."""
        if count not in self.known:
            self.known[count] = self._demand(count)
        return self.known[count]

    def allowed(self, count: int) -> Demand:
        """The demand with a chunk count that is known to be allowed."""
        if (demand := self.demand(count)) is None:
            raise DemandError(f"{count} chunks per block are not allowed")
        return demand

    def _demand(self, count: int) -> Demand | None:
        try:
            demand = self.demand_of(count)
        except DemandError:  # the chunks are given, or a block has fewer bytes
            return None
        if count == 1:
            return demand
        if len(demand.destination_rank) > self.max_deliveries or demand.chunk_bytes.min() < self.min_chunk_bytes:
            return None
        aligned, blocks = (not np.any(one.chunk_bytes % ALIGNMENT_BYTES) for one in (demand, self.allowed(1)))
        other = self.min_chunk_bytes < ALIGNMENT_BYTES or count & (count - 1) == 0 or not blocks
        return demand if aligned or (other and not self.for_runtime) else None

    @cached_property
    def most(self) -> int:
        """The largest allowed count, where it lies between two powers of two; else 1.

        Where a pipeline fills slowly, its smallest chunks are the best.
        """
        block = int(self.allowed(1).chunk_bytes.min())
        largest = min(block // self.min_chunk_bytes, self.max_deliveries // max(self.deliveries, 1))
        power = 1 << max(largest.bit_length() - 1, 0)
        divides = (
            n for n in range(largest, power, -1) if block % (n * ALIGNMENT_BYTES) == 0 or block % ALIGNMENT_BYTES
        )
        return next((n for n in divides if self.demand(n) is not None), 1)

    @property
    def deliveries(self) -> int:
        """The number of (chunk, destination) pairs with one chunk per block."""
        return len(self.allowed(1).destination_rank)

    def above(self, count: int, *, powers: bool) -> int | None:
        """The next allowed count of 1, 2, 3, 4, 6, 8, 12, ...; only powers of two where asked; None at the end."""
        power = 1 << (count.bit_length() - 1)
        higher = (n for n in (power * 3 // 2, 2 * power, 3 * power) if n > count and not (powers and n & (n - 1)))
        return next((n for n in higher if self.demand(n) is not None), None)


def limit_ps(count: int, finish_ps: float, more: int, more_ps: float) -> float:
    """Completion time with arbitrarily many chunks, by the law of pipelines: T(c) = a + b / c, from two counts."""
    return (more * more_ps - count * finish_ps) / (more - count)
