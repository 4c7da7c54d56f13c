"""A plan, or an exported file, on numpy arrays: the second proof of a file, by numbers instead of by logic.

Every threadblock runs by itself, and a draw by `seed` says which goes next, so a step comes as early or as late as the
waits of the program let it. What a connection holds, what a waiter sees and that a port sends when it likes are as in
the runtimes. The results are compared with the definition of the collective on real elements.
"""

import random
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.collectives import ROOTED, collective
from flowccl.errors import ScheduleError
from flowccl.export.program import Cell, Finding, Operation, Program
from flowccl.run.layout import Layout, make_layout
from flowccl.run.values import Inputs, find_dtype, numpy_dtype

Array = NDArray[Any]
_MOST_FINDINGS = 20
_PROMPT = 0.2  # how often a port sends before everything else has come to rest


def replay(program: Program, *, dtype: str = "int32", per_chunk: int = 3, seed: int = 0) -> list[Finding]:
    """What is wrong after a run with chunks of so many elements, for each way to call the program (in place or not)."""
    kind = find_dtype(dtype)
    extra = (program.root,) if program.collective in ROOTED else ()
    demand = collective(program.collective, program.num_gpus, program.chunks * program.num_gpus, 1, *extra)
    layout = make_layout(demand, program.chunks * per_chunk)
    inputs = Inputs(layout, kind)
    given = [inputs.of(rank).astype(numpy_dtype(kind)) for rank in range(program.num_gpus)]
    findings: list[Finding] = []
    for inplace in program.modes:
        pairs = [_buffers(layout, rank, array, inplace) for rank, array in enumerate(given)]
        try:
            execute_program(program, [pair[0] for pair in pairs], [pair[1] for pair in pairs], per_chunk, seed)
        except ScheduleError as error:
            findings.append(Finding("run", str(error)))
            continue
        for rank, (before, (after, output)) in enumerate(zip(given, pairs, strict=True)):
            findings += _compare(f"gpu {rank}, output", output, inputs.expected(rank), per_chunk)
            if not inplace:
                findings += _compare(f"gpu {rank}, input", after, before, per_chunk)
    return findings[:_MOST_FINDINGS]


def _buffers(layout: Layout, rank: int, given: Array, inplace: bool) -> tuple[Array, Array]:
    """Input and output of a rank, filled with ones where nothing is given."""
    if not inplace:
        return given.copy(), np.ones(layout.output_count[rank], dtype=given.dtype)
    source, output = layout.views_in_place(rank, np.ones(layout.count_in_place(rank), dtype=given.dtype))
    source[:] = given
    return source, output


def _compare(name: str, found: Array, wanted: Array, per_chunk: int) -> list[Finding]:
    wrong = np.flatnonzero(found != wanted).tolist()
    if not wrong:
        return []
    first = wrong[0]
    words = f"{name} chunk {first // per_chunk}: element {first} is {found[first]:g}, must be {wanted[first]:g}"
    return [Finding("number", f"{words} ({len(wrong)} of {len(found)} are wrong)")]


def execute_program(
    program: Program, inputs: Sequence[Array], outputs: Sequence[Array], per_chunk: int, seed: int = 0
) -> None:
    """Run all threadblocks on flat arrays with chunks of `per_chunk` elements; ScheduleError where they get stuck."""
    _Run(program, inputs, outputs, per_chunk, random.Random(seed)).run()


class _Run:
    """The memory of all GPUs, what is under way, and how far each threadblock is."""

    def __init__(
        self, program: Program, inputs: Sequence[Array], outputs: Sequence[Array], per_chunk: int, rng: random.Random
    ) -> None:
        self.program, self.rng = program, rng
        self.memory: list[dict[str, Array]] = []
        for given, wanted, (_, _, scratch) in zip(inputs, outputs, program.counts, strict=True):
            free = np.ones((scratch, per_chunk), dtype=given.dtype)
            self.memory.append({"i": given.reshape(-1, per_chunk), "o": wanted.reshape(-1, per_chunk), "s": free})
        self.blocks: dict[tuple[int, int], deque[int]] = {}
        for n, operation in enumerate(program.operations):
            self.blocks.setdefault((operation.rank, operation.block), deque()).append(n)
        self.flight: dict[Hashable, deque[dict[int, Array]]] = {}
        self.published: dict[tuple[int, int], int] = {}  # the last step that a threadblock has announced
        self.late: list[Operation] = []  # puts that ports have not sent yet

    def run(self) -> None:
        """Let threadblocks run, each a few steps at a time, until all are at their end."""
        left = list(self.blocks.items())
        while left:
            self.rng.shuffle(left)
            moved = False
            for key, steps in left:
                turns = self.rng.randint(1, 4)
                while steps and turns and self._is_ready(self.program.operations[steps[0]], key):
                    self._do(steps.popleft(), key)
                    moved, turns = True, turns - 1
            if self.late and (not moved or self.rng.random() < _PROMPT):
                self._send_late(self.late[:1])
            elif not moved:
                raise ScheduleError(f"deadlock: {self.program.operations[left[0][1][0]]} waits for ever")
            left = [row for row in left if row[1]]
        self._send_late(self.late)

    def _is_ready(self, operation: Operation, key: tuple[int, int]) -> bool:
        depth = self.program.depth
        return (
            all(self.published.get((key[0], block), -1) >= index for block, index in operation.after)
            and all(self.flight.get(connection) for connection in operation.pops)
            and (depth is None or all(len(self.flight.get(c, ())) < depth for c in operation.pushes))
        )

    def _do(self, n: int, key: tuple[int, int]) -> None:
        operation = self.program.operations[n]
        came: dict[int, Array] = {}
        for connection in operation.pops:
            came |= self.flight[connection].popleft()
        if operation.lingers:
            self.late.append(operation)
        else:
            self._finish(operation, came)
        self._send_late([o for o in self.late if (o.rank, o.block, o.flushed_by) == (*key, operation.index)])
        if operation.is_published:
            self.published[key] = operation.index

    def _finish(self, operation: Operation, came: dict[int, Array]) -> None:
        message = self._assign(operation, came)
        for connection in operation.pushes:
            self.flight.setdefault(connection, deque()).append(message)

    def _send_late(self, operations: list[Operation]) -> None:
        self.late = [operation for operation in self.late if operation not in operations]
        for operation in operations:
            self._finish(operation, {})

    def _assign(self, operation: Operation, came: dict[int, Array]) -> dict[int, Array]:
        """Store the sums in their cells; those that are sent are returned."""
        results = []
        for target, sources in operation.assigns:
            if any(isinstance(source, int) and source not in came for source in sources):
                raise ScheduleError(f"{operation}: receives fewer chunks than it takes")
            parts = [came[s] if isinstance(s, int) else self._at(s, operation) for s in sources]
            total = parts[0].copy()
            for part in parts[1:]:
                total += part
            results.append((target, total))
        for target, total in results:
            if not isinstance(target, int):
                self._at(target, operation)[:] = total
        return {target: total for target, total in results if isinstance(target, int)}

    def _at(self, cell: Cell, operation: Operation) -> Array:
        rank, buffer, index = cell
        chunks = self.memory[rank][buffer]
        if not 0 <= index < len(chunks):
            raise ScheduleError(f"{operation}: chunk {buffer}[{index}] of gpu {rank}, which has {len(chunks)} there")
        found: Array = chunks[index]
        return found
