"""Chunk counts: which numbers of chunks per block are allowed, and what more of them may still gain."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.runtimes.profiles import ALIGNMENT_BYTES

_NEAR = 1.3  # times a count: counts between are not tried
_FURTHER = 16  # times a count: how far the next one may be where alignment allows none nearer


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
        if self.for_runtime and count > 1 and self.units % count:
            return None
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

    @cached_property
    def units(self) -> int:
        """The 16-byte units in the largest part that all blocks are multiples of; 0 where these are not aligned."""
        return int(np.gcd.reduce(self.allowed(1).chunk_bytes)) // ALIGNMENT_BYTES

    def above(self, count: int, *, powers: bool) -> int | None:
        """The next allowed count of 1, 2, 3, 4, 6, 8, 12, ...; only powers of two where asked; None at the end.

        Where the alignment of a runtime allows none of these, the next count that it allows.
        """
        power = 1 << (count.bit_length() - 1)
        higher = (n for n in (power * 3 // 2, 2 * power, 3 * power) if n > count and not (powers and n & (n - 1)))
        found = next((n for n in higher if self.demand(n) is not None), None)
        return found or self._aligned_above(count, 2 * count if powers else count + 1)

    def doublings(self, most: int) -> list[int]:
        """The allowed powers of two above one, up to `most`; where a runtime's alignment allows others only, these."""
        found, count = list[int](), self.above(1, powers=True)
        while count is not None and count <= most:
            found.append(count)
            count = self.above(count, powers=True)
        return found

    def beside(self, count: int, tried: list[int]) -> int | None:
        """An allowed count about halfway from this one to the next higher or lower one that was tried; None if near."""
        higher, lower = (n for n in tried if n > count), (n for n in tried if n < count)
        for other in (min(higher, default=count), max(lower, default=count)):
            low, high = sorted((count, other))
            between = range(low + 1, high if high > _NEAR * low else low + 1)
            nearest = sorted(between, key=lambda n: max(n * n / (low * high), low * high / (n * n)))
            if (found := next((n for n in nearest if self.demand(n) is not None), None)) is not None:
                return found
        return None

    def multiple(self, count: int, times: int) -> int | None:
        """The smallest allowed multiple of a count that is at least `times` it; None where there is none."""
        if not self.for_runtime:
            return times * count if self.demand(times * count) is not None else None
        more = range(times * count, min(self.units, times * _FURTHER * count) + 1, count)
        return next((n for n in more if self.demand(n) is not None), None)

    def _aligned_above(self, count: int, least: int) -> int | None:
        """For a runtime, the smallest allowed count from `least` on."""
        most = min(self.units, _FURTHER * count) if self.for_runtime else 0
        return next((n for n in range(least, most + 1) if self.demand(n) is not None), None)


def limit_ps(count: int, finish_ps: float, more: int, more_ps: float) -> float:
    """Completion time with arbitrarily many chunks, by the law of pipelines: T(c) = a + b / c, from two counts."""
    return (more * more_ps - count * finish_ps) / (more - count)
