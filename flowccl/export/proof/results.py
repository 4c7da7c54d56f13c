"""Definition of every collective: the initial and final contents of the buffers, as contributions with multiplicity."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from flowccl.errors import InputError
from flowccl.export.proof.program import Cell, RuntimeProgram

Value = tuple[tuple[int, int, int], ...]
"""A reduction: sorted (rank, chunk of that rank's input, multiplicity)."""

_PER_RANK = {  # whether the input and the output buffer have the blocks of all ranks (else one block)
    "allgather": (False, True),
    "alltoall": (True, True),
    "allreduce": (True, True),
    "reduce_scatter": (True, False),
    "broadcast": (True, True),
    "reduce": (True, True),
    "gather": (False, True),
    "scatter": (True, False),
}


@dataclass(frozen=True, slots=True)
class CollectiveDefinition:
    """The collective of a program on its buffers, in place or out of place."""

    program: RuntimeProgram
    inplace: bool

    def __post_init__(self) -> None:
        program = self.program
        if program.collective not in _PER_RANK:
            raise InputError(f"collective {program.collective!r} has no definition to check")
        if program.chunks % program.num_gpus and program.collective not in ("allreduce", "broadcast", "reduce"):
            raise InputError(f"{program.chunks} chunks cannot be divided into equal blocks of {program.num_gpus} ranks")
        if not 0 <= program.root < program.num_gpus:
            raise InputError(f"root must be a rank, 0 to {program.num_gpus - 1}, got {program.root}")

    @property
    def block(self) -> int:
        """Number of chunks of one rank's block."""
        return self.program.chunks // self.program.num_gpus

    def sizes(self, rank: int) -> tuple[int, int]:
        """Return the numbers of chunks of the rank's input and output buffer by definition; 0 if it has none."""
        whole = [self.program.chunks if all_ranks else self.block for all_ranks in _PER_RANK[self.program.collective]]
        is_root = rank == self.program.root
        if self.program.collective in ("broadcast", "scatter") and not is_root:
            whole[0] = 0
        if self.program.collective in ("reduce", "gather") and not is_root:
            whole[1] = 0
        return whole[0], whole[1]

    def canonical(self, cell: Cell) -> Cell:
        """Return the canonical cell of a memory: in place, the smaller buffer is the rank's block of the larger one."""
        rank, buffer, index = cell
        if not self.inplace or buffer in ("s", "p"):
            return cell
        have = self.sizes(rank)
        larger = 1 if have[1] > have[0] else 0
        if buffer == "io"[larger]:
            return cell
        same = have[0] == have[1] or not have[1 - larger]
        return rank, "io"[larger], index if same else rank * self.block + index

    def initial(self) -> Iterator[tuple[Cell, Value]]:
        """Yield the cells of the inputs and their values at the start."""
        for rank in range(self.program.num_gpus):
            for index in range(self.sizes(rank)[0]):
                yield self.canonical((rank, "i", index)), ((rank, index, 1),)

    def final(self) -> Iterator[tuple[Cell, str, Value]]:
        """Yield the cells of the outputs, their descriptions, and the values that they must have at the end."""
        name, ranks, block = self.program.collective, range(self.program.num_gpus), self.block
        for rank in ranks:
            for index in range(self.sizes(rank)[1]):
                owner, piece = divmod(index, block) if block else (0, index)
                value: Value = {
                    "allgather": ((owner, piece, 1),),
                    "gather": ((owner, piece, 1),),
                    "alltoall": ((owner, rank * block + piece, 1),),
                    "broadcast": ((self.program.root, index, 1),),
                    "scatter": ((self.program.root, rank * block + index, 1),),
                    "allreduce": tuple((s, index, 1) for s in ranks),
                    "reduce": tuple((s, index, 1) for s in ranks),
                    "reduce_scatter": tuple((s, rank * block + index, 1) for s in ranks),
                }[name]
                yield self.canonical((rank, "o", index)), f"gpu {rank}, output chunk {index}", value


def add(values: list[Value]) -> Value:
    """Return the reduction of some values."""
    if len(values) == 1:
        return values[0]
    total: Counter[tuple[int, int]] = Counter()
    for value in values:
        for rank, index, times in value:
            total[rank, index] += times
    return tuple((rank, index, times) for (rank, index), times in sorted(total.items()))


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
