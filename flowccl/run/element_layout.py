"""Location of the chunks of a demand in real buffers, in elements.

A schedule is made for a number of bytes, but its chunks are fractions: piece k of block b. A buffer of any number of
elements is divided in the same way, each block and each piece as evenly as whole elements allow (the first ones get one
element more). A schedule for 1 MB therefore also runs for 7 elements; some pieces may then be empty.
"""

from collections.abc import Callable, Sequence
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
    layout = ElementLayout(demand, demand.collective, root, count, [], [], _piece_counts(demand, count))
    _RULES[demand.collective](layout)
    return layout


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


def _blocks(layout: ElementLayout) -> int:
    """Return the number of blocks of the buffer."""
    return 1 if layout.collective in ("broadcast", "reduce") else layout.demand.num_gpus


def _block_of(demand: Demand, chunk: int) -> int:
    """Return the block of the buffer that a chunk belongs to."""
    if demand.collective == "gather":
        return int(demand.sources(chunk)[0])
    if demand.collective in ("alltoall", "scatter"):
        return int(demand.destinations(chunk)[0])
    times = len(demand) // demand.pieces // demand.num_gpus if demand.collective == "allreduce" else 1
    return chunk // demand.pieces // times  # a one-shot allreduce has each block once per destination


def _piece_counts(demand: Demand, count: int) -> list[int]:
    """Return the number of elements of every chunk."""
    blocks = 1 if demand.collective in ("broadcast", "reduce") else demand.num_gpus
    pieces = {size: part_sizes(size, demand.pieces) for size in set(part_sizes(count, blocks))}
    sizes = part_sizes(count, blocks)
    return [pieces[sizes[_block_of(demand, c)]][c % demand.pieces] for c in range(len(demand))]


def _fill(layout: ElementLayout, start_in: Callable[[int, int], int], start_out: Callable[[int, int], int]) -> None:
    """Set the slices of all chunks; the arguments return the start of (rank, chunk)'s block in input and output."""
    demand, blocks = layout.demand, _blocks(layout)
    sizes = part_sizes(layout.count, blocks)
    for chunk in range(len(demand)):
        size = sizes[_block_of(demand, chunk)]
        inside, length = part_start(size, demand.pieces, chunk % demand.pieces), layout.chunk_count[chunk]
        for rank in demand.sources(chunk).tolist():
            at = start_in(rank, chunk) + inside
            layout.taken[rank, chunk] = slice(at, at + length)
        for rank in demand.destinations(chunk).tolist():
            at = start_out(rank, chunk) + inside
            layout.placed[rank, chunk] = slice(at, at + length)


def _starts(layout: ElementLayout) -> Callable[[int, int], int]:
    """Return a function for the start of a chunk's block in the whole buffer."""
    starts = [part_start(layout.count, _blocks(layout), block) for block in range(_blocks(layout))]
    return lambda _rank, chunk: starts[_block_of(layout.demand, chunk)]


def _zero(_rank: int, _chunk: int) -> int:
    return 0


def _span(start: int, size: int) -> slice:
    return slice(start, start + size)


def _allgather(layout: ElementLayout) -> None:
    ranks = layout.demand.num_gpus
    layout.input_count.extend(part_sizes(layout.count, ranks))
    layout.output_count.extend([layout.count] * ranks)
    _fill(layout, _zero, _starts(layout))
    for rank, size in enumerate(layout.input_count):
        layout.kept.append((rank, slice(0, size), _span(part_start(layout.count, ranks, rank), size)))


def _alltoall(layout: ElementLayout) -> None:
    ranks = layout.demand.num_gpus
    sizes = part_sizes(layout.count, ranks)
    layout.input_count.extend([layout.count] * ranks)
    layout.output_count.extend([ranks * size for size in sizes])
    source = layout.demand.source.tolist()
    _fill(layout, _starts(layout), lambda rank, chunk: source[chunk] * sizes[rank])
    for rank, size in enumerate(sizes):
        layout.kept.append((rank, _span(part_start(layout.count, ranks, rank), size), _span(rank * size, size)))


def _whole(layout: ElementLayout) -> None:
    """Broadcast, reduce and allreduce: input and output are the whole buffer on the ranks that have one."""
    ranks, root = layout.demand.num_gpus, layout.root
    only_in, only_out = layout.collective == "broadcast", layout.collective == "reduce"
    layout.input_count.extend([layout.count if not only_in or rank == root else 0 for rank in range(ranks)])
    layout.output_count.extend([layout.count if not only_out or rank == root else 0 for rank in range(ranks)])
    _fill(layout, _starts(layout), _starts(layout))
    if only_in:
        layout.kept.append((root, slice(0, layout.count), slice(0, layout.count)))


def _reduce_scatter(layout: ElementLayout) -> None:
    ranks = layout.demand.num_gpus
    layout.input_count.extend([layout.count] * ranks)
    layout.output_count.extend(part_sizes(layout.count, ranks))
    _fill(layout, _starts(layout), _zero)


def _scatter(layout: ElementLayout) -> None:
    ranks, root = layout.demand.num_gpus, layout.root
    layout.input_count.extend([layout.count if rank == root else 0 for rank in range(ranks)])
    layout.output_count.extend(part_sizes(layout.count, ranks))
    _fill(layout, _starts(layout), _zero)
    size = layout.output_count[root]
    layout.kept.append((root, _span(part_start(layout.count, ranks, root), size), slice(0, size)))


def _gather(layout: ElementLayout) -> None:
    ranks, root = layout.demand.num_gpus, layout.root
    layout.input_count.extend(part_sizes(layout.count, ranks))
    layout.output_count.extend([layout.count if rank == root else 0 for rank in range(ranks)])
    _fill(layout, _zero, _starts(layout))
    size = layout.input_count[root]
    layout.kept.append((root, slice(0, size), _span(part_start(layout.count, ranks, root), size)))


_RULES: dict[str, Callable[[ElementLayout], None]] = {
    "allgather": _allgather,
    "alltoall": _alltoall,
    "broadcast": _whole,
    "reduce": _whole,
    "allreduce": _whole,
    "reduce_scatter": _reduce_scatter,
    "scatter": _scatter,
    "gather": _gather,
}


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
