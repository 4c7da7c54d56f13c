"""Interpreter that proves a program for all orders of execution that a runtime may choose.

Proved for all interleavings: (1) every output chunk ends with exactly the right contributions, each counted once, and
no input is changed; (2) any two steps that access the same chunk, one of them writing, are ordered by happens-before:
program order, dependencies, and the n-th send of a connection before its n-th receive; (3) there is no cycle of waits
with FIFOs of the connections' depth; (4) the limits of the target hold (checked by the readers); and calls may follow
each other without a barrier (reentry.py).
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from flowccl.export.proof.program import Cell, Finding, RuntimeProgram
from flowccl.export.proof.reentry import early_writes
from flowccl.export.proof.results import CollectiveDefinition, Value, add, difference

MOST_FINDINGS = 20  # findings of one kind
_COLUMN_BYTES = 200_000_000  # of vector clocks at a time
_NEAR = 64  # steps visited in a search for one pair


@dataclass(slots=True)
class PrecedenceGraph:
    """A graph of precedence: the nodes `before[n]` must be complete before node n is."""

    before: list[list[int]]

    def order(self) -> tuple[list[int], list[int]]:
        """Return the nodes in a topological order, and the nodes on a cycle or behind one."""
        waits = [len(nodes) for nodes in self.before]
        after: list[list[int]] = [[] for _ in self.before]
        for node, nodes in enumerate(self.before):
            for other in nodes:
                after[other].append(node)
        ready = [node for node, count in enumerate(waits) if not count]
        for node in ready:
            for other in after[node]:
                waits[other] -= 1
                if not waits[other]:
                    ready.append(other)
        return ready, [node for node, count in enumerate(waits) if count]

    def cycle(self, stuck: list[int]) -> list[int]:
        """Return one cycle among the stuck nodes, each waiting for the next."""
        left = set(stuck)
        path: list[int] = []
        place: dict[int, int] = {}
        node = stuck[0]
        while node not in place:
            place[node] = len(path)
            path.append(node)
            node = next(other for other in self.before[node] if other in left)
        return path[place[node] :]


def interpret(program: RuntimeProgram) -> list[Finding]:
    """Return everything that is wrong with a program, the reader's findings first; an empty list proves it correct."""
    findings = list(program.findings)
    _bounds(program, findings)
    waits = _resolve(program, findings)
    pairs = _pairs(program, findings)
    findings += _deadlocks(program, waits, pairs)
    graph = _graph(program, waits, pairs)
    order, stuck = graph.order()
    if stuck:
        return findings  # the finding of the deadlock names them
    findings += early_writes(program, graph.before, order)[:MOST_FINDINGS]
    for inplace in program.modes:
        definition = CollectiveDefinition(program, inplace)
        races = _races(program, graph, order, pairs, definition)
        findings += races
        if not races:
            findings += _values(program, order, pairs, definition)
    return findings


def _bounds(program: RuntimeProgram, findings: list[Finding]) -> None:
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
    sizes = [CollectiveDefinition(program, program.modes[0]).sizes(rank) for rank in range(program.num_gpus)]
    words = []
    for operation in program.operations:
        for rank, buffer, index in sorted(operation.reads() | operation.writes()):
            count = program.buffer_chunks(rank, buffer)
            if buffer in ("i", "o") and False in program.modes and not sizes[rank]["io".index(buffer)]:
                count = 0  # the caller passes no such buffer on this rank
            if not 0 <= index < count:
                words.append(f"{operation}: chunk {buffer}[{index}] of gpu {rank}, whose buffer has {count} chunks")
    findings += [Finding("bounds", text) for text in words[:MOST_FINDINGS]]


def _resolve(program: RuntimeProgram, findings: list[Finding]) -> list[list[int]]:
    """Return for every step the numbers of the steps it waits for; all of these must publish their completion."""
    place = {(o.rank, o.block, o.index): n for n, o in enumerate(program.operations)}
    waits: list[list[int]] = []
    for operation in program.operations:
        found = []
        for block, index in operation.after:
            target = place.get((operation.rank, block, index))
            if target is None:
                words = f"{operation}: waits for threadblock {block} step {index}, which does not exist"
                findings.append(Finding("dependency", words))
                continue
            named = program.operations[target]
            if not named.is_published:
                findings.append(Finding("hasdep", f"{operation}: waits for {named}, which does not publish (hasdep=0)"))
            found.append(target)
        waits.append(found)
    return waits


@dataclass(slots=True)
class Pairs:
    """Steps that put and take tokens, by connection; the n-th put matches the n-th take."""

    puts: dict[Hashable, list[int]]
    takes: dict[Hashable, list[int]]

    def matched(self) -> Iterable[tuple[Hashable, list[tuple[int, int]]]]:
        """Yield the matched (put, take) pairs of every connection."""
        for key in self.puts:
            yield key, list(zip(self.puts[key], self.takes.get(key, []), strict=False))


def _pairs(program: RuntimeProgram, findings: list[Finding]) -> Pairs:
    pairs = Pairs({}, {})
    for n, operation in enumerate(program.operations):
        for key in operation.pushes:
            pairs.puts.setdefault(key, []).append(n)
        for key in operation.pops:
            pairs.takes.setdefault(key, []).append(n)
    for key in sorted({*pairs.puts, *pairs.takes}, key=str):
        puts, takes = pairs.puts.get(key, []), pairs.takes.get(key, [])
        more, what = (puts, "no receive") if len(puts) > len(takes) else (takes, "no send")
        for n in more[min(len(puts), len(takes)) :][:MOST_FINDINGS]:
            findings.append(Finding("pair", f"{program.operations[n]}: {what} matches it at the other end"))
        for put, take in zip(puts, takes, strict=False):
            a, b = program.operations[put], program.operations[take]
            if program.depth is not None and a.size != b.size:
                findings.append(Finding("pair", f"{a} sends {a.size} chunks, but {b} receives {b.size}"))
    return pairs


def _graph(program: RuntimeProgram, waits: list[list[int]], pairs: Pairs) -> PrecedenceGraph:
    """Return the happens-before graph of whole steps, without the waits that the depth of a connection adds."""
    before = [list(found) for found in waits]
    last: dict[tuple[int, int], int] = {}
    for n, operation in enumerate(program.operations):
        key = operation.rank, operation.block
        if key in last:
            before[n].append(last[key])
        last[key] = n
    for _, matched in pairs.matched():
        for put, take in matched:
            before[take].append(put)
    return PrecedenceGraph(before)


# -- (3) deadlock -------------------------------------------------------------------------------------------------


def _deadlocks(program: RuntimeProgram, waits: list[list[int]], pairs: Pairs) -> list[Finding]:
    """Return a cycle of waiting steps, if any; checked with whole steps and with single chunks in the FIFOs.

    Every step waits for a fixed set of others, so one order decides for all: if one run completes, all do.
    """
    for per_chunk in (False,) if program.depth is None else (False, True):
        graph, owner = _waiting(program, waits, pairs, per_chunk)
        _, stuck = graph.order()
        if stuck:
            steps = list(dict.fromkeys(owner[node] for node in graph.cycle(stuck)))
            chain = " waits for ".join(str(program.operations[n]) for n in [*steps[:12], *steps[:1]])
            depth = "" if program.depth is None else f" (the depth of a connection is {program.depth})"
            return [Finding("deadlock", f"{chain}{depth}")]
    return []


def _waiting(
    program: RuntimeProgram, waits: list[list[int]], pairs: Pairs, per_chunk: bool
) -> tuple[PrecedenceGraph, list[int]]:
    """Return the graph of waits with connections of bounded depth, and the step of each of its nodes."""
    size = [max(o.size, 1) if per_chunk else 1 for o in program.operations]
    first = np.concatenate(([0], np.cumsum(size))).tolist()
    before: list[list[int]] = [[] for _ in range(first[-1])]
    owner = [n for n, count in enumerate(size) for _ in range(count)]
    last: dict[tuple[int, int], int] = {}
    for n, operation in enumerate(program.operations):
        before[first[n]] += [first[other + 1] - 1 for other in waits[n]]
        for node in range(first[n], first[n + 1]):
            key = operation.rank, operation.block
            if key in last:
                before[node].append(last[key])
            last[key] = node
    for connection, puts in pairs.puts.items():
        put = [node for n in puts for node in range(first[n], first[n + 1])]
        take = [node for n in pairs.takes.get(connection, []) for node in range(first[n], first[n + 1])]
        for a, b in zip(put, take, strict=False):
            before[b].append(a)
        if program.depth is not None:
            for a, b in zip(take, put[program.depth :], strict=False):
                before[b].append(a)
    return PrecedenceGraph(before), owner


# -- (2) races ----------------------------------------------------------------------------------------------------


def _races(
    program: RuntimeProgram, graph: PrecedenceGraph, order: list[int], pairs: Pairs, definition: CollectiveDefinition
) -> list[Finding]:
    """Return the pairs of steps that access the same chunk in no fixed order."""
    ends = _ends(program, pairs)
    wrote: dict[Cell, int] = {}
    read: dict[Cell, list[int]] = {}
    checks: dict[tuple[int, int], Cell] = {}
    for n in order:
        operation = program.operations[n]
        reads = {definition.canonical(cell) for cell in operation.reads()}
        writes = {definition.canonical(cell) for cell in operation.writes()}
        for cell in reads:
            if cell in wrote:
                checks.setdefault((wrote[cell], n), cell)
            if cell not in writes:
                read.setdefault(cell, []).append(n)
        for cell in writes:
            if cell in wrote:
                checks.setdefault((wrote[cell], n), cell)
            for other in read.get(cell, []):
                checks.setdefault((other, n), cell)
            wrote[cell], read[cell] = n, []
    asked = [pair for pair in checks if pair[0] != pair[1]]
    later = [(end, b) for a, b in asked for end in ends.get(a, ())]  # a write after an asynchronous read
    loose = set(unordered(program, graph, order, list(dict.fromkeys(asked + later))))
    result = []
    for a, b in asked:
        lingers = a in ends and all((end, b) in loose for end in ends[a])
        if (a, b) not in loose and not (lingers and checks[a, b] in program.operations[a].lingers):
            continue
        rank, buffer, index = checks[a, b]
        words = f"{program.operations[a]} and {program.operations[b]} both access {buffer}[{index}] of gpu {rank}"
        result.append(Finding("race", f"{words}, and nothing orders them"))
    return result[:MOST_FINDINGS]


def _ends(program: RuntimeProgram, pairs: Pairs) -> dict[int, list[int]]:
    """Return, for steps with asynchronous reads, the steps after any of which these reads are complete."""
    place = {(o.rank, o.block, o.index): n for n, o in enumerate(program.operations)}
    ends: dict[int, list[int]] = {n: [] for n, o in enumerate(program.operations) if o.lingers}
    for _, matched in pairs.matched():
        for put, take in matched:
            if put in ends:
                ends[put].append(take)
    for n, found in ends.items():
        operation = program.operations[n]
        flush = place.get((operation.rank, operation.block, operation.flushed_by))
        if flush is not None:
            found.append(flush)
    return ends


def unordered(
    program: RuntimeProgram, graph: PrecedenceGraph, order: list[int], pairs: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the pairs (a, b) in which a does not happen before b.

    Most pairs are only a few steps apart. For the others there are vector clocks, over the threadblocks of their first
    steps.
    """
    number: dict[tuple[int, int], int] = {}
    for operation in program.operations:
        number.setdefault((operation.rank, operation.block), len(number))
    of = [number[o.rank, o.block] for o in program.operations]
    index = [o.index for o in program.operations]
    pairs = [pair for pair in pairs if not _near(graph.before, of, index, *pair)]
    asked = sorted({of[a] for a, _ in pairs})
    width = max(1, _COLUMN_BYTES // max(4 * len(of), 1))
    result = []
    for low in range(0, len(asked), width):
        column = {block: k for k, block in enumerate(asked[low : low + width])}
        clock = np.full((len(of), len(column)), -1, dtype=np.int32)
        for n in order:
            row = clock[n]
            for other in graph.before[n]:
                np.maximum(row, clock[other], out=row)
            if of[n] in column:
                row[column[of[n]]] = index[n]
        result += [(a, b) for a, b in pairs if of[a] in column and clock[b, column[of[a]]] < index[a]]
    return result


def _near(before: list[list[int]], of: list[int], index: list[int], a: int, b: int) -> bool:
    """Whether a search of a few steps backwards from b finds a, or a later step of its threadblock."""
    seen = {b}
    queue = [b]
    for node in queue:
        for other in before[node]:
            if of[other] == of[a] and index[other] >= index[a]:
                return True
            if other not in seen and len(seen) < _NEAR:
                seen.add(other)
                queue.append(other)
    return False


# -- (1) results --------------------------------------------------------------------------------------------------


def _values(program: RuntimeProgram, order: list[int], pairs: Pairs, definition: CollectiveDefinition) -> list[Finding]:
    """Run the steps on symbolic values and compare the outputs with the definition."""
    memory: dict[Cell, Value] = dict(definition.initial())
    outputs = {cell for cell, _, _ in definition.final()}
    keep = set(memory) - outputs
    came = {take: put for _, matched in pairs.matched() for put, take in matched}
    sent: dict[int, dict[int, Value | None]] = {}
    findings: list[Finding] = []

    def found(kind: str, message: str) -> None:
        if sum(f.kind == kind for f in findings) < MOST_FINDINGS:
            findings.append(Finding(kind, message))

    for n in order:
        operation = program.operations[n]
        inside = sent.get(came.get(n, -1), {})
        results: list[tuple[Cell | int, Value | None]] = []
        for target, sources in operation.assigns:
            values = [inside.get(s) if isinstance(s, int) else memory.get(definition.canonical(s)) for s in sources]
            known = [value for value in values if value is not None]
            if len(known) < len(values):
                lost = sources[values.index(None)]
                if not isinstance(lost, int):
                    found("garbage", f"{operation}: reads {lost[1]}[{lost[2]}] of gpu {lost[0]}, which has no data")
            results.append((target, add(known) if len(known) == len(values) else None))
        for target, value in results:
            if isinstance(target, int):
                sent.setdefault(n, {})[target] = value
                continue
            cell = definition.canonical(target)
            if cell in keep:
                found("input", f"{operation}: changes the input {target[1]}[{target[2]}] of gpu {target[0]}")
            if value is None:
                memory.pop(cell, None)
            else:
                memory[cell] = value
    for cell, name, wanted in definition.final():
        if memory.get(cell) != wanted:
            found("result", f"{name}: {difference(memory.get(cell), wanted)}")
    return findings
