"""The compiled part of the proof that looks at data: which steps access the same cell, and what is in it.

Value v is the reduction of contributions. Where `piece[v]` is not negative, they are that chunk of the inputs of the
ranks in the bits of `ranks[v]`, each once. Other values have only their parts, `part[part_ptr[v]:part_ptr[v + 1]]`.
"""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import I64, Bool, compiled, grown, inner, maker

NOTHING, MIXED = -1, -2
GARBAGE, INPUT = 0, 1
"""What can be wrong with a step: it reads a cell without data, or it changes an input."""


@compiled
def meetings(
    order: I64, assign_ptr: I64, target: I64, source_ptr: I64, source: I64, cells: int
) -> tuple[I64, I64, I64]:
    """Return (step, later step, cell) wherever two steps access a cell in turn and one of them writes it."""
    space = 2 * len(source) + len(target) + 1
    a, b, where = np.empty(space, dtype=np.int64), np.empty(space, dtype=np.int64), np.empty(space, dtype=np.int64)
    wrote, last = np.full(cells, -1, dtype=np.int64), np.full(cells, -1, dtype=np.int64)
    previous, reader = np.empty(len(source), dtype=np.int64), np.empty(len(source), dtype=np.int64)
    size = 0
    for n in order:
        for s in range(source_ptr[assign_ptr[n]], source_ptr[assign_ptr[n + 1]]):
            cell = source[s]
            if cell >= 0:
                if wrote[cell] >= 0:
                    a[size], b[size], where[size] = wrote[cell], n, cell
                    size += 1
                previous[s], reader[s], last[cell] = last[cell], n, s
        for k in range(assign_ptr[n], assign_ptr[n + 1]):
            cell = target[k]
            if cell >= 0:
                if wrote[cell] >= 0 and wrote[cell] != n:
                    a[size], b[size], where[size] = wrote[cell], n, cell
                    size += 1
                s = last[cell]
                while s >= 0:
                    if reader[s] != n:
                        a[size], b[size], where[size] = reader[s], n, cell
                        size += 1
                    s = previous[s]
                wrote[cell], last[cell] = n, -1
    return a[:size], b[:size], where[:size]


class Values(NamedTuple):
    """Values that were made so far."""

    piece: I64
    ranks: I64
    part_ptr: I64
    part: I64


@maker
def _reduced(made: Values, size: int, parts: I64) -> None:
    """Set value `size` to the reduction of others."""
    piece, ranks = made.piece, made.ranks
    piece[size] = piece[parts[0]]
    for i in range(len(parts)):
        if piece[parts[i]] != piece[size]:
            piece[size] = MIXED
        for w in range(ranks.shape[1]):
            if ranks[size, w] & ranks[parts[i], w]:
                piece[size] = MIXED
            ranks[size, w] |= ranks[parts[i], w]
        made.part[made.part_ptr[size] + i] = parts[i]
    made.part_ptr[size + 1] = made.part_ptr[size] + len(parts)


@inner
def _report(kind: int, step: int, operand: int, problems: I64, found: I64, most: int) -> None:
    if found[kind] < most:
        problems[kind * most + found[kind], 0], problems[kind * most + found[kind], 1] = step, operand
        problems[kind * most + found[kind], 2] = found[0] + found[1]
        found[kind] += 1


@inner
def _operands(k: int, source_ptr: I64, source: I64, memory: I64, sent: I64, first: int, last: int, taken: I64) -> int:
    """Write the values that an assignment reads; return the operand that has none, or -1.

    What the step receives is in `sent[first:last]`.
    """
    lost = -1
    for i in range(source_ptr[k + 1] - source_ptr[k]):
        operand = source[source_ptr[k] + i]
        if operand >= 0:
            taken[i] = memory[operand]
        else:
            taken[i] = sent[first - 1 - operand] if first - 1 - operand < last else NOTHING
        if taken[i] == NOTHING and lost < 0:
            lost = source_ptr[k] + i
    return lost


@inner
def _write(n: int, low: int, results: I64, target: I64, sent_ptr: I64, sent: I64, memory: I64, high: int) -> None:
    """Write the results of a step into memory, or into what it sends."""
    for k in range(low, high):
        if target[k] < 0:
            sent[sent_ptr[n] - 1 - target[k]] = results[k - low]
        else:
            memory[target[k]] = results[k - low]


@compiled
def run_steps(
    order: I64,
    assign_ptr: I64,
    target: I64,
    source_ptr: I64,
    source: I64,
    came: I64,
    sent_ptr: I64,
    memory: I64,
    keep: Bool,
    piece: I64,
    ranks: I64,
    reductions: int,
    parts: int,
    most: int,
) -> tuple[Values, I64, I64]:
    """Run all steps on symbolic values; return the values, and (step, operand, number) of what is wrong.

    `memory` has the value of each cell and changes. `piece` and `ranks` are those of the inputs, `reductions` and
    `parts` the most values and parts that reductions make. `came[n]` is the step whose chunks step n receives, or -1.
    """
    size = len(piece)
    made = Values(
        np.concatenate((piece, np.full(reductions, MIXED, dtype=np.int64))),
        np.concatenate((ranks, np.zeros((reductions, ranks.shape[1]), dtype=np.int64))),
        np.zeros(size + reductions + 1, dtype=np.int64),
        np.empty(parts, dtype=np.int64),
    )
    sent = np.full(sent_ptr[-1], NOTHING, dtype=np.int64)
    problems, found = np.full((2 * most, 3), -1, dtype=np.int64), np.zeros(2, dtype=np.int64)
    results, taken = np.empty(16, dtype=np.int64), np.empty(16, dtype=np.int64)
    for n in order:
        low, high = assign_ptr[n], assign_ptr[n + 1]
        while len(results) < high - low:
            results = grown(results)
        first, last = (sent_ptr[came[n]], sent_ptr[came[n] + 1]) if came[n] >= 0 else (0, 0)
        for k in range(low, high):
            count = source_ptr[k + 1] - source_ptr[k]
            while len(taken) < count:
                taken = grown(taken)
            lost = _operands(k, source_ptr, source, memory, sent, first, last, taken)
            if lost >= 0:
                results[k - low] = NOTHING
                if source[lost] >= 0:
                    _report(GARBAGE, n, lost, problems, found, most)
            elif count == 1:
                results[k - low] = taken[0]
            else:
                _reduced(made, size, taken[:count])
                results[k - low] = size
                size += 1
        for k in range(low, high):
            if target[k] >= 0 and keep[target[k]]:
                _report(INPUT, n, k, problems, found, most)
        _write(n, low, results, target, sent_ptr, sent, memory, high)
    return made, problems, found
