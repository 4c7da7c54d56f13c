"""Definition of every collective: the initial and final contents of the buffers, as contributions with multiplicity."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import members
from flowccl.errors import InputError
from flowccl.export.proof.program import RuntimeProgram
from flowccl.export.proof.steps import StepArrays, codes_of, parts_of

I64 = NDArray[np.int64]

Value = tuple[tuple[int, int, int], ...]
"""A reduction: sorted (rank, chunk of that rank's input, multiplicity)."""

_PER_RANK = {  # whether the input and the output buffer have the blocks of all ranks (else one block)
    "allgather": (False, True),
    "alltoall": (True, True),
    "alltoallv": (True, True),
    "allreduce": (True, True),
    "reduce_scatter": (True, False),
    "broadcast": (True, True),
    "reduce": (True, True),
    "gather": (False, True),
    "scatter": (True, False),
}


_NO_BLOCKS = ("allreduce", "broadcast", "reduce", "alltoallv")


@dataclass(frozen=True, slots=True)
class CollectiveDefinition:
    """The collective of a program on its buffers, in place or out of place."""

    program: RuntimeProgram
    inplace: bool

    def __post_init__(self) -> None:
        program = self.program
        if program.collective not in _PER_RANK:
            raise InputError(f"collective {program.collective!r} has no definition to check")
        if (program.collective == "alltoallv") != (program.blocks is not None) or (self.inplace and self.is_uneven):
            raise InputError("an alltoallv needs the chunks of all blocks, and does not run in place")
        if program.chunks % program.num_gpus and program.collective not in _NO_BLOCKS:
            raise InputError(f"{program.chunks} chunks cannot be divided into equal blocks of {program.num_gpus} ranks")
        if not 0 <= program.root < program.num_gpus:
            raise InputError(f"root must be a rank, 0 to {program.num_gpus - 1}, got {program.root}")

    @property
    def is_uneven(self) -> bool:
        """Whether blocks differ in size."""
        return self.program.blocks is not None

    @property
    def block(self) -> int:
        """Number of chunks of one rank's block."""
        return self.program.chunks // self.program.num_gpus

    def sizes(self, rank: int) -> tuple[int, int]:
        """Return the numbers of chunks of the rank's input and output buffer by definition; 0 if it has none."""
        if self.program.blocks is not None:
            return int(self.program.blocks[rank].sum()), int(self.program.blocks[:, rank].sum())
        whole = [self.program.chunks if all_ranks else self.block for all_ranks in _PER_RANK[self.program.collective]]
        is_root = rank == self.program.root
        if self.program.collective in ("broadcast", "scatter") and not is_root:
            whole[0] = 0
        if self.program.collective in ("reduce", "gather") and not is_root:
            whole[1] = 0
        return whole[0], whole[1]

    def canonical(self, code: I64) -> I64:
        """Return the canonical codes of cells: in place, the smaller buffer is the rank's block of the larger one."""
        if not self.inplace:
            return code
        rank, buffer, index = parts_of(np.maximum(code, 0))
        have = np.array([self.sizes(r) for r in range(self.program.num_gpus)], dtype=np.int64)[rank]
        larger = (have[:, 1] > have[:, 0]).astype(np.int64)
        smaller = have[np.arange(len(code)), 1 - larger]
        offset = np.where((have[:, 0] == have[:, 1]) | (smaller == 0), 0, rank * self.block)
        moves = (code >= 0) & (buffer < 2) & (buffer != larger)
        return np.where(moves, codes_of(rank, larger, index + offset), code)

    def numbered(self, table: StepArrays) -> "NumberedCells":
        """Return all cells of a program and of the collective."""
        target, source = self.canonical(table.target), self.canonical(table.source)
        code = np.concatenate((target[target >= 0], source[source >= 0], self.initial().code, self.final().code))
        code = np.unique(code)
        target, source = (np.where(c >= 0, np.searchsorted(code, c), c) for c in (target, source))
        return NumberedCells(code, target, source)

    def initial(self) -> "InitialCells":
        """Return the cells of the inputs and their contents at the start."""
        count = np.array([self.sizes(rank)[0] for rank in range(self.program.num_gpus)], dtype=np.int64)
        rank, index = members(count)
        return InitialCells(self.canonical(codes_of(rank, 0, index)), rank, index)

    def final(self) -> "FinalCells":
        """Return the cells of the outputs and what they must contain at the end."""
        count = np.array([self.sizes(rank)[1] for rank in range(self.program.num_gpus)], dtype=np.int64)
        owner, index = members(count)
        if self.program.blocks is not None:
            source, chunk = _uneven(self.program.blocks)
            return FinalCells(codes_of(owner, 1, index), owner, index, source, chunk)
        source, piece = np.divmod(index, self.block) if self.block else (np.zeros_like(index), index)
        root, all_ranks = np.full_like(owner, self.program.root), np.full_like(owner, -1)
        rank, chunk = {
            "allgather": (source, piece),
            "gather": (source, piece),
            "alltoall": (source, owner * self.block + piece),
            "broadcast": (root, index),
            "scatter": (root, owner * self.block + index),
            "allreduce": (all_ranks, index),
            "reduce": (all_ranks, index),
            "reduce_scatter": (all_ranks, owner * self.block + index),
        }[self.program.collective]
        return FinalCells(self.canonical(codes_of(owner, 1, index)), owner, index, rank, chunk)

    def wanted(self, final: "FinalCells", k: int) -> Value:
        """Return what one of the cells of the outputs must contain."""
        rank = int(final.rank[k])
        ranks = range(self.program.num_gpus) if rank < 0 else (rank,)
        return tuple((rank, int(final.piece[k]), 1) for rank in ranks)


@dataclass(frozen=True, slots=True, eq=False)
class NumberedCells:
    """The cells of a program, numbered in the order of their codes; `target` and `source` are those of its steps."""

    code: I64
    target: I64
    source: I64

    def number(self, code: I64) -> I64:
        """Return the numbers of cells."""
        return np.searchsorted(self.code, code)


@dataclass(frozen=True, slots=True, eq=False)
class InitialCells:
    """Cells that contain a chunk of the input of a rank at the start."""

    code: I64
    rank: I64
    piece: I64


@dataclass(frozen=True, slots=True, eq=False)
class FinalCells:
    """Cells that must contain the chunk `piece` of the input of a rank at the end, or its sum over all ranks (-1).

    They are the chunks `index` of the outputs of the ranks `owner`.
    """

    code: I64
    owner: I64
    index: I64
    rank: I64
    piece: I64


def _uneven(blocks: I64) -> tuple[I64, I64]:
    """Return (rank, chunk of its input) of all cells of the outputs of an alltoallv, rank by rank."""
    before = np.cumsum(blocks, axis=1) - blocks  # in the input of each rank
    block, piece = members(blocks.T.reshape(-1))
    owner, source = np.divmod(block, len(blocks))
    return source, before[source, owner] + piece


def difference(found: Value | None, wanted: Value) -> str:
    """Describe how a value differs from the required one."""
    if found is None:
        return "is never written"
    have = {(rank, index): times for rank, index, times in found}
    need = {(rank, index) for rank, index, _ in wanted}
    twice = [f"rank {r}'s chunk {i} {times} times" for (r, i), times in have.items() if times > 1 and (r, i) in need]
    wrong = [f"rank {r}'s chunk {i}" for r, i in have if (r, i) not in need]
    lacks = [f"rank {r}'s chunk {i}" for r, i in sorted(need) if (r, i) not in have]
    parts = [
        f"{verb} {', '.join(what[:3])}{' ...' if len(what) > 3 else ''}"
        for verb, what in (("counts", twice), ("contains", wrong), ("lacks", lacks))
        if what
    ]
    return ", ".join(parts)
