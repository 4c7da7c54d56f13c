"""Runs the steps of a program on symbolic values, and compares the outputs with the definition of the collective."""

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.export.proof.precedence import Tokens, matched
from flowccl.export.proof.program import Finding, RuntimeProgram
from flowccl.export.proof.results import CollectiveDefinition, InitialCells, NumberedCells, Value, difference
from flowccl.export.proof.steps import StepArrays, cell_of, owners

if TYPE_CHECKING:
    from flowccl.export.proof.value_kernels import Values

I64 = NDArray[np.int64]


def wrong_contents(
    program: RuntimeProgram,
    table: StepArrays,
    order: I64,
    tokens: Tokens,
    definition: CollectiveDefinition,
    cells: NumberedCells,
    most: int,
) -> list[Finding]:
    """Return at most `most` findings of each kind: cells without data that are read, changed inputs, wrong results."""
    from flowccl.export.proof.value_kernels import NOTHING, run_steps

    start, final = definition.initial(), definition.final()
    memory = np.full(len(cells.code), NOTHING, dtype=np.int64)
    at = cells.number(start.code)
    memory[at] = np.arange(len(at))
    keep = np.zeros(len(memory), dtype=np.bool_)
    keep[at] = True
    keep[cells.number(final.code)] = False
    terms = np.diff(table.source_ptr)
    made, problems, found = run_steps(
        order,
        table.assign_ptr,
        cells.target,
        table.source_ptr,
        cells.source,
        _came(table, tokens),
        _sent_pointers(table),
        memory,
        keep,
        start.piece,
        _bits(start.rank, program.num_gpus),
        int(np.count_nonzero(terms > 1)),
        int(terms[terms > 1].sum()),
        most,
    )
    findings = _problems(program, table, problems, found, most)
    value = memory[cells.number(final.code)]
    everyone = _bits(np.arange(program.num_gpus), program.num_gpus).sum(axis=0)
    wanted = np.where((final.rank < 0)[:, None], everyone, _bits(np.maximum(final.rank, 0), program.num_gpus))
    known = np.maximum(value, 0)
    right = (value >= 0) & (made.piece[known] == final.piece) & np.all(made.ranks[known] == wanted, axis=1)
    for k in np.flatnonzero(~right)[:most].tolist():
        have = None if value[k] < 0 else _expanded(made, int(value[k]), start)
        name = f"gpu {final.owner[k]}, output chunk {final.index[k]}"
        findings.append(Finding("result", f"{name}: {difference(have, definition.wanted(final, k))}"))
    return findings


def _came(table: StepArrays, tokens: Tokens) -> I64:
    """Return the step whose chunks each step receives, or -1."""
    came = np.full(len(table), -1, dtype=np.int64)
    put, take = matched(tokens)
    came[take] = put
    return came


def _sent_pointers(table: StepArrays) -> I64:
    """Return where the chunks begin that each step sends without writing them to a cell."""
    count = np.zeros(len(table), dtype=np.int64)
    np.maximum.at(count, owners(table.assign_ptr), -table.target)
    return pointers(count)


def _bits(rank: I64, ranks: int) -> I64:
    result = np.zeros((len(rank), (ranks + 63) // 64), dtype=np.int64)
    result[np.arange(len(rank)), rank >> 6] = np.left_shift(np.int64(1), rank & 63)
    return result


def _problems(program: RuntimeProgram, table: StepArrays, problems: I64, found: I64, most: int) -> list[Finding]:
    """Describe what was wrong with steps, in the order in which it was found."""
    rows = [(int(problems[kind * most + k, 2]), kind, kind * most + k) for kind in (0, 1) for k in range(found[kind])]
    findings = []
    for _, kind, row in sorted(rows):
        step, operand = problems[row, :2].tolist()
        rank, buffer, index = cell_of(int((table.target if kind else table.source)[operand]))
        operation = program.operations[step]
        if kind:
            words = f"{operation}: changes the input {buffer}[{index}] of gpu {rank}"
            findings.append(Finding("input", words))
        else:
            words = f"{operation}: reads {buffer}[{index}] of gpu {rank}, which has no data"
            findings.append(Finding("garbage", words))
    return findings


def _expanded(made: "Values", value: int, start: InitialCells) -> Value:
    """Return the contributions to a value, with multiplicity; the parts of a value have lower numbers."""
    times = Counter({value: 1})
    while (v := max(times)) >= len(start.rank):
        count = times.pop(v)
        for part in made.part[made.part_ptr[v] : made.part_ptr[v + 1]].tolist():
            times[part] += count
    found = {(int(start.rank[v]), int(start.piece[v])): count for v, count in times.items()}
    return tuple((rank, index, count) for (rank, index), count in sorted(found.items()))
