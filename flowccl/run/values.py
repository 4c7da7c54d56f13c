"""Inputs with exact results, and the results by the definition of each collective.

Inputs are small whole numbers that depend on the rank and the position, so that misplaced data is found. Their sum over
all ranks is exact in the dtype in any order. Results are computed in whole numbers from the definition of the
collective alone, without a schedule or a layout of chunks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import InputError
from flowccl.run.element_layout import ElementLayout, part_start

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Dtype:
    """A type of elements that represents whole numbers up to `exact` exactly (at most 2^31 - 1 is needed)."""

    name: str
    nccl: str
    itemsize: int
    exact: int
    numpy: bool = True


DTYPES = {
    dtype.name: dtype
    for dtype in (
        Dtype("float32", "float", 4, 2**24),
        Dtype("float16", "half", 2, 2**11),
        Dtype("bfloat16", "bfloat16", 2, 2**8, numpy=False),
        Dtype("float64", "double", 8, 2**31 - 1),
        Dtype("int8", "int8", 1, 2**7 - 1),
        Dtype("uint8", "uint8", 1, 2**8 - 1),
        Dtype("int32", "int32", 4, 2**31 - 1),
        Dtype("int64", "int64", 8, 2**31 - 1),
    )
}


def find_dtype(name: str) -> Dtype:
    """Return a dtype by its name in numpy, torch or nccl-tests."""
    plain = name.strip().lower().removeprefix("torch.")
    for dtype in DTYPES.values():
        if plain in (dtype.name, dtype.nccl):
            return dtype
    raise InputError(f"unknown dtype {name!r}; known dtypes: {', '.join(DTYPES)}")


def largest_value(dtype: Dtype, contributions: int) -> int:
    """Return the largest input 2^k - 1 for which the sum of `contributions` inputs is exact, possibly 0."""
    return int((1 << (min(dtype.exact // contributions, 2**20) + 1).bit_length() - 1) - 1)


def values(rank: int, start: int, stop: int, ranks: int, most: int, exact: int) -> Ints:
    """Return elements `start` to `stop` of a rank's input, from 0 to `most`, which is 2^k - 1.

    If the sum of ones from all ranks would not be exact (`most` is 0), only `exact` ranks contribute a one.
    """
    index = np.arange(start, stop, dtype=np.uint32)
    if most == 0:
        return (((index + np.uint32(rank)) % np.uint32(ranks)) < exact).astype(np.int32)
    index *= np.uint32(0x9E3779B1)  # a simple hash; uint32 arithmetic wraps around
    index += np.uint32((rank + 1) * 0x85EBCA77 % 2**32)
    index >>= np.uint32(11)
    index &= np.uint32(most)
    return index.view(np.int32)


@dataclass(frozen=True)
class Inputs:
    """The inputs of all ranks for a layout and a dtype; they differ from one `call` to the next."""

    layout: ElementLayout
    dtype: Dtype
    call: int = 0

    def part(self, rank: int, start: int, stop: int) -> Ints:
        """Return elements `start` to `stop` of a rank's input."""
        contributions = int(np.diff(self.layout.demand.source_ptr).max())
        most = largest_value(self.dtype, contributions)
        ranks = self.layout.demand.num_gpus
        return values(rank + self.call * ranks, start, stop, ranks, most, self.dtype.exact)

    def of(self, rank: int) -> Ints:
        """Return the whole input of a rank."""
        return self.part(rank, 0, self.layout.input_count[rank])

    def expected(self, rank: int) -> Ints:
        """Return the output of a rank by the definition of the collective."""
        if not self.layout.output_count[rank]:
            return np.zeros(0, dtype=np.int32)
        return _DEFINITIONS[self.layout.collective](self, rank)

    def block(self, rank: int) -> tuple[int, int]:
        """Return the start and end of block `rank` of the whole buffer."""
        ranks = self.layout.demand.num_gpus
        return part_start(self.layout.count, ranks, rank), part_start(self.layout.count, ranks, rank + 1)

    def total(self, start: int, stop: int) -> Ints:
        """Return the sum of elements `start` to `stop` of all ranks' inputs."""
        result = np.zeros(stop - start, dtype=np.int32)
        for rank in range(self.layout.demand.num_gpus):
            result += self.part(rank, start, stop)
        return result


def _concatenated(inputs: Inputs, _rank: int) -> Ints:
    return np.concatenate([inputs.of(r) for r in range(inputs.layout.demand.num_gpus)])


def _exchanged(inputs: Inputs, rank: int) -> Ints:
    return np.concatenate([inputs.part(r, *inputs.block(rank)) for r in range(inputs.layout.demand.num_gpus)])


def _by_chunks(inputs: Inputs, rank: int) -> Ints:
    """Return the output for a custom demand: each wanted chunk is the sum over its sources."""
    layout = inputs.layout
    result = np.zeros(layout.output_count[rank], dtype=np.int32)
    for (owner, chunk), place in layout.placed.items():
        if owner == rank:
            parts = [(s, layout.taken[s, chunk]) for s in layout.demand.sources(chunk).tolist()]
            result[place] = sum(inputs.part(s, part.start, part.stop) for s, part in parts)
    return result


_DEFINITIONS: dict[str, Callable[[Inputs, int], Ints]] = {
    "allgather": _concatenated,
    "gather": _concatenated,
    "alltoall": _exchanged,
    "broadcast": lambda inputs, _: inputs.of(inputs.layout.root),
    "scatter": lambda inputs, rank: inputs.part(inputs.layout.root, *inputs.block(rank)),
    "reduce": lambda inputs, _: inputs.total(0, inputs.layout.count),
    "allreduce": lambda inputs, _: inputs.total(0, inputs.layout.count),
    "reduce_scatter": lambda inputs, rank: inputs.total(*inputs.block(rank)),
    "custom": _by_chunks,
}


def numpy_dtype(dtype: Dtype) -> np.dtype[Any]:
    """Return the numpy dtype; raise InputError for bfloat16, which numpy lacks."""
    if not dtype.numpy:
        raise InputError(f"numpy has no {dtype.name}; run it with --on gloo")
    return np.dtype(dtype.name)
