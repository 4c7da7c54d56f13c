"""Location of each chunk in the input and output buffers of a rank, for every collective, in place and out of place.

A buffer consists of blocks; a block has `instances` parts of `pieces` chunks each. Runtimes divide a buffer evenly. The
file stays correct if chunks of a schedule differ by a byte, because it counts chunks, not bytes.
"""

from dataclasses import dataclass

import numpy as np

from flowccl.demand.collectives import COLLECTIVES_BY_NAME, ROOTED
from flowccl.demand.demand import Demand
from flowccl.errors import InputError

BufferSlot = tuple[str, int]
"""A chunk-sized slot of a buffer: ("i" | "o" | "s" for input, output, scratch; index)."""

_BLOCKS = {  # whether the input and the output buffer have one block per rank (else one block)
    "allgather": (False, True),
    "alltoall": (True, True),
    "allreduce": (True, True),
    "reduce_scatter": (True, False),
    "broadcast": (False, False),
    "reduce": (False, False),
    "gather": (False, True),
    "scatter": (True, False),
}


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """The buffers of a named collective; `chunk_block[c]` is (block in the input, block in the output) of chunk c."""

    demand: Demand
    root: int
    instances: int
    inplace: bool
    chunk_block: tuple[tuple[int, int], ...]

    @property
    def collective(self) -> str:
        """The collective, as flowccl spells it."""
        return self.demand.collective

    @property
    def per_block(self) -> int:
        """Number of chunks in a block."""
        return self.demand.pieces * self.instances

    @property
    def is_one_shot(self) -> bool:
        """Whether this is a one-shot allreduce: every rank reduces all contributions itself, so chunks share inputs."""
        return self.collective == "allreduce" and len(self.demand) > self.demand.num_gpus * self.demand.pieces

    @property
    def chunks(self) -> int:
        """Number of chunks of the whole buffer: the larger of input and output."""
        return max(self.whole_counts)

    @property
    def whole_counts(self) -> tuple[int, int]:
        """Numbers of chunks of the input and output buffer of a rank that uses both."""
        return self._blocks(0) * self.per_block, self._blocks(1) * self.per_block

    def counts(self, rank: int) -> tuple[int, int]:
        """Return the numbers of chunks of the rank's input and output buffer; 0 if the rank does not use the buffer."""
        used_in = self.collective not in ("broadcast", "scatter") or rank == self.root
        used_out = self.collective not in ("reduce", "gather") or rank == self.root
        have = self._blocks(0) * used_in * self.per_block, self._blocks(1) * used_out * self.per_block
        if not self.inplace:
            return have
        if self.collective in ("allreduce", "reduce_scatter", "reduce", "alltoall", "scatter"):
            return (have[0], 0) if have[0] else have
        return (0, have[1]) if have[1] else have

    def input(self, rank: int, chunk: int, instance: int) -> BufferSlot:
        """Return the slot of a chunk on one of its sources at the start."""
        return self._slot(rank, 0, self.chunk_block[chunk][0], chunk % self.demand.pieces, instance)

    def output(self, rank: int, chunk: int, instance: int) -> BufferSlot:
        """Return the slot of a chunk on one of its destinations at the end."""
        return self._slot(rank, 1, self.chunk_block[chunk][1], chunk % self.demand.pieces, instance)

    def own_copies(self, rank: int, instance: int) -> list[tuple[BufferSlot, BufferSlot]]:
        """Return first (source, target) slots of the blocks that a rank must copy from its input to its output."""
        if self.inplace or self.collective in ("allreduce", "reduce_scatter", "reduce"):
            return []
        if self.collective in ("broadcast", "gather", "scatter") and rank != self.root:
            return []
        blocks = {
            "allgather": (0, rank),
            "alltoall": (rank, rank),
            "broadcast": (0, 0),
            "gather": (0, rank),
            "scatter": (rank, 0),
        }[self.collective]
        return [(self._slot(rank, 0, blocks[0], 0, instance), self._slot(rank, 1, blocks[1], 0, instance))]

    def _blocks(self, side: int) -> int:
        return self.demand.num_gpus if _BLOCKS[self.collective][side] else 1

    def _slot(self, rank: int, side: int, block: int, piece: int, instance: int) -> BufferSlot:
        """Return a slot; in place, the smaller buffer is the rank's own block of the larger one."""
        if self.inplace:
            larger = 0 if self.counts(rank)[0] else 1
            if side != larger and self._blocks(side) < self._blocks(larger):
                block = rank
            side = larger
        return "io"[side], (block * self.instances + instance) * self.demand.pieces + piece


def layout_of(demand: Demand, instances: int, inplace: bool) -> BufferLayout:
    """Return the layout of a demand that is a named collective of all its ranks; raise InputError for any other."""
    name = demand.collective
    if name not in _BLOCKS:
        raise InputError(f"runtimes cannot run {name}: they define no buffers for it")
    root = 0
    if name in ROOTED:
        ranks = demand.source_rank if name in ("broadcast", "scatter") else demand.destination_rank
        root = int(ranks[0])
    size = max(demand.size_bytes, demand.num_gpus * demand.pieces)
    extra = (root,) if name in ROOTED else ()
    plain = COLLECTIVES_BY_NAME[name](demand.num_gpus, size, demand.pieces, *extra)
    columns = ("source_ptr", "source_rank", "destination_ptr", "destination_rank")
    is_plain = all(np.array_equal(getattr(plain, c), getattr(demand, c)) for c in columns)
    form = plain if is_plain or name != "allreduce" or len(demand) == len(plain) else plain.per_destination
    if not is_plain and not all(np.array_equal(getattr(form, c), getattr(demand, c)) for c in columns):
        raise InputError(
            f"the demand is called {name}, but its chunks are not those of {name} on {demand.num_gpus} ranks with "
            f"{demand.pieces} chunks per block; runtimes run only whole collectives"
        )
    return BufferLayout(demand, root, instances, inplace, tuple(_chunk_blocks(demand)))


def _chunk_blocks(demand: Demand) -> list[tuple[int, int]]:
    source = demand.source_rank[demand.source_ptr[:-1]].tolist()
    destination = demand.destination_rank[demand.destination_ptr[:-1]].tolist()
    times = len(demand) // demand.pieces // demand.num_gpus  # more than 1 in a one-shot allreduce
    rows = []
    for chunk, (s, d) in enumerate(zip(source, destination, strict=True)):
        rows.append(
            {
                "allgather": (0, s),
                "alltoall": (d, s),
                "allreduce": (chunk // demand.pieces // max(times, 1),) * 2,
                "reduce_scatter": (d, 0),
                "gather": (0, s),
                "scatter": (d, 0),
            }.get(demand.collective, (0, 0))
        )
    return rows
