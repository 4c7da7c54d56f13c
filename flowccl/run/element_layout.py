"""Location of the chunks of a demand in real buffers, in elements.

A schedule is made for a number of bytes, but its chunks are fractions: piece k of block b. A buffer of any number of
elements is divided in the same way, each block and each piece as evenly as whole elements allow (the first ones get one
element more). A schedule for 1 MB therefore also runs for 7 elements; some pieces may then be empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from flowccl.demand.collectives import ROOTED
from flowccl.demand.demand import Demand
from flowccl.demand.files import root_if_named
from flowccl.errors import InputError

RankChunk = tuple[int, int]  # (rank, chunk)


@dataclass(frozen=True, eq=False)
class ElementLayout:
    """Buffers of all ranks for a demand whose whole buffer (nccl-tests' size) has `count` elements.

    `taken[rank, chunk]` is the slice of a source's input with the chunk, `placed[rank, chunk]` the slice of a
    destination's output for it. `kept` are parts that stay on their rank: (rank, slice of its input, slice of its
    output). `collective` is "custom" if the demand differs from the collective of its name; inputs and outputs are then
    the rank's chunks in order. `root` is -1 if there is none.
    """

    demand: Demand
    collective: str
    root: int
    count: int
    input_count: list[int]
    output_count: list[int]
    chunk_count: list[int]
    taken: dict[RankChunk, slice] = field(default_factory=dict)
    placed: dict[RankChunk, slice] = field(default_factory=dict)
    kept: list[tuple[int, slice, slice]] = field(default_factory=list)

    @property
    def call_count(self) -> int:
        """The count argument of the call, as nccl-tests prints it: of one block if the buffer has one per rank."""
        blocked = self.collective in ("allgather", "alltoall", "reduce_scatter", "gather", "scatter")
        return -(-self.count // self.demand.num_gpus) if blocked else self.count

    def views_in_place(self, rank: int, buffer: Any) -> tuple[Any, Any]:
        """Return the input and output of a rank as views of one buffer of `count_in_place` elements, as in NCCL."""
        inputs, outputs = self.input_count[rank], self.output_count[rank]
        start = part_start(self.count, self.demand.num_gpus, rank)
        if self.collective in ("allgather", "gather") and outputs:
            return buffer[start : start + inputs], buffer[:outputs]
        if self.collective in ("reduce_scatter", "scatter") and inputs:
            return buffer[:inputs], buffer[start : start + outputs]
        return buffer[:inputs], buffer[:outputs]

    def count_in_place(self, rank: int) -> int:
        """Return the number of elements of the buffer that a rank's input and output share in place."""
        return max(self.input_count[rank], self.output_count[rank])


def make_layout(demand: Demand, count: int) -> ElementLayout:
    """Return the layout of a demand whose whole buffer has `count` elements."""
    if count < 1:
        raise InputError(f"{demand.collective}: the buffer must have at least 1 element, got {count}")
    root = named_root(demand)
    if root is None:
        return _custom(demand, count)
    return _named(demand, root, count)


def named_root(demand: Demand) -> int | None:
    """Return the root (-1 if the collective has none) if the demand is the collective of its name, else None."""
    root = root_if_named(demand, one_shot=True)
    return root if root is None or demand.collective in ROOTED else -1


def count_of_inputs(demand: Demand, inputs: Sequence[Any]) -> int:
    """Return the number of elements of the whole buffer, from the inputs of all ranks."""
    sizes = [len(buffer) for buffer in inputs]
    if len(sizes) != demand.num_gpus:
        raise InputError(f"{demand.collective}: needs one input for each of {demand.num_gpus} ranks, got {len(sizes)}")
    root = named_root(demand)
    if root is None:
        raise InputError(f"a custom {demand.collective} demand needs `count`, the elements of the whole buffer")
    if demand.collective in ("allgather", "gather"):
        return sum(sizes)
    return sizes[max(root, 0)]


def part_start(total: int, parts: int, part: int) -> int:
    """Return the start of a part of an even division; the first parts get one element more if there is a rest."""
    return part * (total // parts) + min(part, total % parts)


def part_sizes(total: int, parts: int) -> list[int]:
    """Return the sizes of the parts of an even division."""
    return [total // parts + (part < total % parts) for part in range(parts)]


# -- the named collectives ------------------------------------------------------------------------------------------

_WHOLE = ("broadcast", "reduce")  # the buffer is one block; else it has one for each rank
_PART_IN, _PART_OUT = ("allgather", "gather"), ("reduce_scatter", "scatter")  # a rank has only its own block there
_ROOT_IN, _ROOT_OUT = ("broadcast", "scatter"), ("reduce", "gather")  # only the root has an input, or an output
_REDUCING = ("reduce", "allreduce", "reduce_scatter")


def _named(demand: Demand, root: int, count: int) -> ElementLayout:
    """Return the layout of a named collective: blocks, and chunks inside them, as evenly as possible."""
    name, ranks = demand.collective, range(demand.num_gpus)
    blocks = 1 if name in _WHOLE else len(ranks)
    sizes, starts = part_sizes(count, blocks), [part_start(count, blocks, block) for block in range(blocks)]
    has_input = [name not in _ROOT_IN or rank == root for rank in ranks]
    has_output = [name not in _ROOT_OUT or rank == root for rank in ranks]

    def input_start(block: int) -> int:
        return 0 if name in _PART_IN else starts[block]

    def output_start(rank: int, block: int, source: int) -> int:
        if name == "alltoall":
            return source * sizes[rank]
        return 0 if name in _PART_OUT else starts[block]

    counts_in = [(sizes[rank] if name in _PART_IN else count) if has_input[rank] else 0 for rank in ranks]
    of_rank = [
        sizes[rank] if name in _PART_OUT else len(ranks) * sizes[rank] if name == "alltoall" else count
        for rank in ranks
    ]
    counts_out = [of_rank[rank] if has_output[rank] else 0 for rank in ranks]
    layout = ElementLayout(demand, name, root, count, counts_in, counts_out, [])
    for chunk in range(len(demand)):
        block, piece = _block_of(demand, chunk), chunk % demand.pieces
        inside = part_start(sizes[block], demand.pieces, piece)
        layout.chunk_count.append(sizes[block] // demand.pieces + (piece < sizes[block] % demand.pieces))
        sources = demand.sources(chunk).tolist()
        for rank in sources:
            layout.taken[rank, chunk] = _span(input_start(block) + inside, layout.chunk_count[chunk])
        for rank in demand.destinations(chunk).tolist():
            place = output_start(rank, block, sources[0]) + inside
            layout.placed[rank, chunk] = _span(place, layout.chunk_count[chunk])
    for rank in ranks if name not in _REDUCING else ():
        block = 0 if name in _WHOLE else rank
        if has_input[rank] and has_output[rank] and (name not in ROOTED or rank == root):
            to = output_start(rank, block, rank)
            layout.kept.append((rank, _span(input_start(block), sizes[block]), _span(to, sizes[block])))
    return layout


def _block_of(demand: Demand, chunk: int) -> int:
    """Return the block of the buffer that a chunk belongs to."""
    if demand.collective == "gather":
        return int(demand.sources(chunk)[0])
    if demand.collective in ("alltoall", "scatter"):
        return int(demand.destinations(chunk)[0])
    times = len(demand) // demand.pieces // demand.num_gpus if demand.collective == "allreduce" else 1
    return chunk // demand.pieces // times  # a one-shot allreduce has each block once per destination


def _span(start: int, size: int) -> slice:
    return slice(start, start + size)


def _custom(demand: Demand, count: int) -> ElementLayout:
    """Return the layout of a custom demand: chunks in order, each with its fraction of the elements."""
    ends = [int(end) * count // demand.size_bytes for end in accumulate(demand.chunk_bytes.tolist(), initial=0)]
    sizes = [b - a for a, b in pairwise(ends)]
    layout = ElementLayout(demand, "custom", -1, count, [], [], sizes)
    for places, total, chunks, ranks in (
        (layout.taken, layout.input_count, demand.source_chunk, demand.source_rank),
        (layout.placed, layout.output_count, demand.destination_chunk, demand.destination_rank),
    ):
        total.extend([0] * demand.num_gpus)
        for chunk, rank in zip(np.asarray(chunks).tolist(), np.asarray(ranks).tolist(), strict=True):
            places[rank, chunk] = _span(total[rank], sizes[chunk])
            total[rank] += sizes[chunk]
    return layout
