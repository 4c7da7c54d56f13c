"""Interpreter that proves a program for all orders of execution that a runtime may choose.

Proved for all interleavings: (1) every output chunk ends with exactly the right contributions, each counted once, and
no input is changed; (2) any two steps that access the same chunk, one of them writing, are ordered by happens-before:
program order, dependencies, and the n-th send of a connection before its n-th receive; (3) there is no cycle of waits
with FIFOs of the connections' depth; (4) the limits of the target hold (checked by the readers); and calls may follow
each other without a barrier (reentry.py). Programs with loops are proved as loops.py says.
"""

import numpy as np

from flowccl.arrays import members, pointers
from flowccl.export.proof.contents import wrong_contents
from flowccl.export.proof.loops import check_loops
from flowccl.export.proof.precedence import (
    I64,
    PrecedenceGraph,
    Tokens,
    in_threadblocks,
    matched,
    named_waits,
    tokens_of,
    waits_of_tokens,
)
from flowccl.export.proof.program import Finding, RuntimeProgram
from flowccl.export.proof.reentry import early_writes
from flowccl.export.proof.results import CollectiveDefinition, NumberedCells
from flowccl.export.proof.steps import BUFFERS, Bool, StepArrays, cell_of, owners, parts_of, table_of

MOST_FINDINGS = 20  # findings of one kind
_NEAR = 256  # steps visited in a first search for each pair
_VISITED = 50_000_000  # steps visited in a second search, for all pairs that are left together
_COLUMN_BYTES = 200_000_000  # of vector clocks at a time


def interpret(program: RuntimeProgram) -> list[Finding]:
    """Return everything that is wrong with a program, the reader's findings first; an empty list proves it correct."""
    findings = list(program.findings)
    table = table_of(program)
    _bounds(program, table, findings)
    findings += check_loops(program, table)[:MOST_FINDINGS]
    waits, wrong = named_waits(program)
    findings += wrong
    tokens = tokens_of(table)
    _unmatched(program, table, tokens, findings)
    findings += _deadlocks(program, table, waits, tokens)
    edges = [waits, in_threadblocks(table.thread), matched(tokens)]
    graph = PrecedenceGraph.of(len(table), edges)
    order, stuck = graph.order()
    if len(stuck):
        return findings  # the finding of the deadlock names them
    findings += early_writes(program, table, graph, order)[:MOST_FINDINGS]
    for inplace in program.modes:
        definition = CollectiveDefinition(program, inplace)
        cells = definition.numbered(table)
        races = _races(program, table, graph, order, tokens, cells)
        findings += races
        if not races:
            findings += wrong_contents(program, table, order, tokens, definition, cells, MOST_FINDINGS)
    return findings


def _bounds(program: RuntimeProgram, table: StepArrays, findings: list[Finding]) -> None:
    """Check that every chunk is inside its buffer, and that the buffers are those of the collective."""
    if not program.modes:
        return
    for inplace in program.modes:
        definition = CollectiveDefinition(program, inplace)
        for rank, counts in enumerate(program.counts):
            for buffer, count, size in zip(("input", "output"), counts, definition.sizes(rank), strict=False):
                if size and count not in (0, size):
                    text = f"gpu {rank}: {count} {buffer} chunks; {program.collective} has {size}"
                    findings.append(Finding("bounds", text))
    most = np.array([[program.buffer_chunks(rank, name) for name in BUFFERS] for rank in range(program.num_gpus)])
    if False in program.modes:  # the caller passes no buffer on ranks that have none
        definition = CollectiveDefinition(program, program.modes[0])
        most[:, :2] *= np.array([definition.sizes(rank) for rank in range(program.num_gpus)]) > 0
    step, cell = table.accesses()
    where, what, index = parts_of(cell)
    outside = np.flatnonzero((index < 0) | (index >= most[where, what]))[:MOST_FINDINGS]
    for k in outside.tolist():
        owner, name, at = cell_of(int(cell[k]))
        words = f"{program.operations[int(step[k])]}: chunk {name}[{at}] of gpu {owner}"
        findings.append(Finding("bounds", f"{words}, whose buffer has {most[where[k], what[k]]} chunks"))


def _unmatched(program: RuntimeProgram, table: StepArrays, tokens: Tokens, findings: list[Finding]) -> None:
    """Find the sends without a receive and the receives without a send, and those that differ in size."""
    puts, takes = np.diff(tokens.put_ptr), np.diff(tokens.take_ptr)
    wrong = puts != takes
    if program.depth is not None:
        put, take = matched(tokens)
        differ = table.size[put] != table.size[take]
        wrong[tokens.of_matched[differ]] = True
    for key in sorted(np.flatnonzero(wrong).tolist(), key=lambda key: str(table.connections[key])):
        sent = tokens.put[tokens.put_ptr[key] : tokens.put_ptr[key + 1]].tolist()
        taken = tokens.take[tokens.take_ptr[key] : tokens.take_ptr[key + 1]].tolist()
        more, what = (sent, "no receive") if len(sent) > len(taken) else (taken, "no send")
        for n in more[min(len(sent), len(taken)) :][:MOST_FINDINGS]:
            findings.append(Finding("pair", f"{program.operations[n]}: {what} matches it at the other end"))
        for a, b in zip(sent, taken, strict=False):
            if program.depth is not None and table.size[a] != table.size[b]:
                one, other = program.operations[a], program.operations[b]
                findings.append(Finding("pair", f"{one} sends {one.size} chunks, but {other} receives {other.size}"))


# -- (3) deadlock -------------------------------------------------------------------------------------------------


def _deadlocks(program: RuntimeProgram, table: StepArrays, waits: tuple[I64, I64], tokens: Tokens) -> list[Finding]:
    """Return a cycle of waiting steps, if any; checked with whole steps and with single chunks in the FIFOs.

    Every step waits for a fixed set of others, so one order decides for all: if one run completes, all do.
    """
    for per_chunk in (False,) if program.depth is None else (False, True):
        graph, owner = _waiting(program, table, waits, tokens, per_chunk)
        _, stuck = graph.order()
        if len(stuck):
            steps = list(dict.fromkeys(int(owner[node]) for node in graph.cycle(stuck)))
            chain = " waits for ".join(str(program.operations[n]) for n in [*steps[:12], *steps[:1]])
            depth = "" if program.depth is None else f" (the depth of a connection is {program.depth})"
            return [Finding("deadlock", f"{chain}{depth}")]
    return []


def _waiting(
    program: RuntimeProgram, table: StepArrays, waits: tuple[I64, I64], tokens: Tokens, per_chunk: bool
) -> tuple[PrecedenceGraph, I64]:
    """Return the graph of waits with connections of bounded depth, and the step of each of its nodes."""
    first = pointers(np.maximum(table.size, 1) if per_chunk else np.ones(len(table), dtype=np.int64))
    owner = owners(first)
    later = first[waits[0] + 1] - 1, first[waits[1]]
    edges = [later, in_threadblocks(table.thread[owner]), *waits_of_tokens(tokens, first, program.depth)]
    return PrecedenceGraph.of(len(owner), edges), owner


# -- (2) races ----------------------------------------------------------------------------------------------------


def _races(
    program: RuntimeProgram,
    table: StepArrays,
    graph: PrecedenceGraph,
    order: I64,
    tokens: Tokens,
    cells: NumberedCells,
) -> list[Finding]:
    """Return the pairs of steps that access the same chunk in no fixed order."""
    from flowccl.export.proof.value_kernels import meetings

    columns = order, table.assign_ptr, cells.target, table.source_ptr, cells.source, len(cells.code)
    a, b, where = meetings(*columns)
    _, one = np.unique(a * len(table) + b, return_index=True)
    one = one[(a != b)[one]]
    one.sort()
    a, b, where = a[one], b[one], where[one]
    is_loose = ~happens_before(table, graph, order, a, b)
    lingers = table.lingers[a] & (parts_of(cells.code[where])[0] == table.rank[a])  # it still reads the chunk
    rows, end = _ends(table, tokens, a, np.flatnonzero(lingers))
    lingers[rows[happens_before(table, graph, order, end, b[rows])]] = False
    result = []
    for k in np.flatnonzero(is_loose | lingers)[:MOST_FINDINGS].tolist():
        rank, buffer, index = cell_of(int(cells.code[where[k]]))
        words = f"{program.operations[int(a[k])]} and {program.operations[int(b[k])]} both access {buffer}[{index}]"
        result.append(Finding("race", f"{words} of gpu {rank}, and nothing orders them"))
    return result


def _ends(table: StepArrays, tokens: Tokens, a: I64, rows: I64) -> tuple[I64, I64]:
    """Return (row, step) for these rows of `a`, which linger, and each step after which their reads are complete."""
    if not len(rows):
        return rows, rows
    put, take = matched(tokens)
    sort = np.argsort(put, kind="stable")
    low, high = (np.searchsorted(put[sort], a[rows], side) for side in ("left", "right"))
    times = high - low
    owner, number = members(times)
    at = low[owner] + number
    flushed = rows[table.flushed_by[a[rows]] >= 0]
    place = table.step_at()
    of = a[flushed]
    flush = [place[key] for key in zip(table.thread[of].tolist(), table.flushed_by[of].tolist(), strict=True)]
    end = np.concatenate((take[sort][at], np.array(flush, dtype=np.int64)))
    return np.concatenate((rows[owner], flushed)), end


def happens_before(table: StepArrays, graph: PrecedenceGraph, order: I64, a: I64, b: I64) -> Bool:
    """Return the pairs in which a happens before b.

    Most pairs are only a few steps apart, and for a few others a search between them takes less than vector clocks of
    all steps. For the rest there are such clocks, over the threadblocks of their first steps.
    """
    from flowccl.export.proof.order_kernels import are_near, follow

    turn = np.full(len(table), -1, dtype=np.int64)
    turn[order] = np.arange(len(order))
    result, far = np.zeros(len(a), dtype=np.bool_), np.arange(len(a))
    for most in (_NEAR, len(table)):
        visited = min(most, max(_NEAR, _VISITED // max(len(far), 1)))
        ends = a[far], b[far]
        result[far] = are_near(*ends, graph.ptr, graph.before, turn, table.thread, table.index, visited)
        far = np.flatnonzero(~result & (turn[a] < turn[b]))  # others are not in that order
    asked = np.unique(table.thread[a[far]])
    width = max(1, _COLUMN_BYTES // max(4 * len(table), 1))
    column = np.full(int(table.thread.max(initial=-1)) + 1, -1, dtype=np.int64)
    for low in range(0, len(asked), width):
        column[:] = -1
        column[asked[low : low + width]] = np.arange(len(asked[low : low + width]))
        clock = follow(order, graph.ptr, graph.before, column[table.thread], table.index, min(width, len(asked) - low))
        rows = far[column[table.thread[a[far]]] >= 0]
        result[rows] = clock[b[rows], column[table.thread[a[rows]]]] >= table.index[a[rows]]
    return result
