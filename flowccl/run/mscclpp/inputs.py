"""Inputs with exact results as words of the element type, repeated with a period, so that large buffers are fast."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.run.values import Dtype, Inputs, Ints, largest_value, values

Words = NDArray[Any]
PERIOD = 65537  # elements; a prime, so that no two chunks of an even division begin with the same elements


def encode(numbers: Ints, dtype: Dtype) -> Words:
    """Return whole numbers as words of the type: the bits of each element as an unsigned number."""
    if dtype.name == "bfloat16":
        return (numbers.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return numbers.astype(dtype.name).view(word_type(dtype))


def word_type(dtype: Dtype) -> str:
    """Return the numpy dtype of the words."""
    return f"uint{8 * dtype.itemsize}"


@dataclass(frozen=True)
class PeriodicInputs(Inputs):
    """Inputs as words: element i of a rank is element i modulo the period of its pattern."""

    @cached_property
    def _patterns(self) -> list[Ints]:
        ranks = self.layout.demand.num_gpus
        contributions = int(np.diff(self.layout.demand.source_ptr).max())
        most = largest_value(self.dtype, contributions)
        first = self.call * ranks
        return [values(first + rank, 0, PERIOD, ranks, most, self.dtype.exact) for rank in range(ranks)]

    def part(self, rank: int, start: int, stop: int) -> Words:
        """Return the words of elements `start` to `stop` of a rank's input."""
        return self._repeated(self._patterns[rank], start, stop)

    def total(self, start: int, stop: int) -> Words:
        """Return the words of the sum of elements `start` to `stop` of all ranks' inputs."""
        return self._repeated(np.sum(self._patterns, axis=0, dtype=np.int32), start, stop)

    def _repeated(self, pattern: Ints, start: int, stop: int) -> Words:
        return np.resize(encode(np.roll(pattern, -(start % PERIOD)), self.dtype), stop - start)
