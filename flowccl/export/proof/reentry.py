"""Check that a program can be called repeatedly if GPUs write into each other's memory.

The target GPU may still be busy with the work before the call. A write into its input or output must therefore come
after one of its own steps of this call. Scratch belongs to the program and may be written earlier. In that case, all
accesses to the chunk must complete before the writer's last step, because the next call may write it again after that.

An operation of a switch also loads from other GPUs. It must come after a step of each GPU whose memory it accesses, and
before another one, because before and after the call that memory may contain other data.
"""

import numpy as np
from numpy.typing import NDArray

from flowccl.export.proof.precedence import PrecedenceGraph
from flowccl.export.proof.program import Finding, RuntimeProgram
from flowccl.export.proof.steps import BUFFERS, Bool, StepArrays, cell_of, distinct, owners, parts_of

I64 = NDArray[np.int64]


def early_writes(program: RuntimeProgram, table: StepArrays, graph: PrecedenceGraph, order: I64) -> list[Finding]:
    """Return the writes that may happen before the target GPU has entered the call, or left the previous one."""
    from flowccl.export.proof.order_kernels import ranks_around

    entered, left = ranks_around(order, graph.ptr, graph.before, table.rank, program.num_gpus)
    position = np.empty(len(table), dtype=np.int64)
    position[order] = np.arange(len(order))
    step, cell = table.accesses()
    rows = _outside(program, table, step, cell, entered, left)
    rows += _too_early(program, table, position, step, cell, entered, left)
    rows.sort(key=lambda row: position[row[0]])
    return [Finding("entry", words) for _, words in rows]


def _has(bits: I64, step: I64, rank: I64) -> Bool:
    """Whether the bits of steps have ranks."""
    return np.asarray(bits[step, rank >> 6] >> (rank & 63) & 1, dtype=np.bool_)


def _outside(
    program: RuntimeProgram, table: StepArrays, step: I64, cell: I64, entered: I64, left: I64
) -> list[tuple[int, str]]:
    """Return the GPUs that may not be in the call while an operation of a switch accesses their memory."""
    rank = parts_of(cell)[0]
    far = (table.group[step] >= 0) & (rank != table.rank[step])
    step, rank = step[far], rank[far]
    one, _ = distinct(step, rank)
    step, rank = step[one], rank[one]
    inside = ((_has(entered, step, rank), "may not have entered the call yet"),
              (_has(left, step, rank), "may have left the call"))  # fmt: skip
    found = []
    for k in np.flatnonzero(~(inside[0][0] & inside[1][0])).tolist():
        name = f"{program.operations[int(step[k])]}: accesses the memory of gpu {rank[k]}"
        found += [(int(step[k]), f"{name}, which {words}") for is_inside, words in inside if not is_inside[k]]
    return found


def _too_early(
    program: RuntimeProgram, table: StepArrays, position: I64, step: I64, cell: I64, entered: I64, left: I64
) -> list[tuple[int, str]]:
    """Return the writes to other GPUs that are too early: to scratch, those after which other accesses may come."""
    from flowccl.export.proof.order_kernels import late_users

    writer, target = owners(table.assign_ptr), table.target
    rank = parts_of(np.maximum(target, 0))[0]
    far = (target >= 0) & (table.group[writer] < 0) & (rank != table.rank[writer])
    far[far] = ~_has(entered, writer[far], rank[far])
    writer, target = writer[far], target[far]
    one, _ = distinct(writer, target)
    writer, target = writer[one], target[one]
    by_cell = np.lexsort((position[step], cell))
    step, cell = step[by_cell], cell[by_cell]
    begin, end = np.searchsorted(cell, target, "left"), np.searchsorted(cell, target, "right")
    late = late_users(begin, end, step, left, table.rank[writer])
    is_own = parts_of(target)[1] <= BUFFERS.index("o")
    found = []
    for k in np.flatnonzero(is_own | (late >= 0)).tolist():
        rank_of, buffer, index = cell_of(int(target[k]))
        name = f"{program.operations[int(writer[k])]}: writes {buffer}[{index}] of gpu {rank_of}"
        words = "which may not have entered the call yet"
        if not is_own[k]:
            user = program.operations[int(late[k])]
            words = f"and does not wait for {user}, which may come after the write of the next call"
            name += " before that gpu has entered the call"
        found.append((int(writer[k]), f"{name}, {words}"))
    return found
