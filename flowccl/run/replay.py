"""Replay of a plan or an exported file on numpy arrays: a second check of a file, by numbers instead of logic.

Every threadblock runs independently, in a random order by `seed`, so a step runs as early or as late as the waits of
the program allow. The depth of connections, the visibility of completed steps and the asynchronous sends of ports are
as in the runtimes. Calls follow each other without a barrier: a GPU that has completed a call checks its output,
changes its buffers and starts the next call while others are still busy. The results are compared with the definition.
"""

import random
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.collectives import ROOTED, collective
from flowccl.errors import InputError, ScheduleError
from flowccl.export.proof.program import Cell, Finding, Operation, RuntimeProgram
from flowccl.run.element_layout import make_layout
from flowccl.run.values import Inputs, find_dtype, numpy_dtype

Array = NDArray[Any]
_MOST_FINDINGS = 20
_PORT_RATE = 0.2  # probability that a port sends while other steps can still run


def replay(
    program: RuntimeProgram, *, dtype: str = "int32", per_chunk: int = 3, seed: int = 0, calls: int = 2
) -> list[Finding]:
    """Return everything that is wrong after some calls with `per_chunk` elements per chunk, in all modes."""
    kind = find_dtype(dtype)
    if program.blocks is not None:
        raise InputError("numbers: blocks of an alltoallv differ in size, which is not supported; leave --numbers out")
    extra = (program.root,) if program.collective in ROOTED else ()
    demand = collective(program.collective, program.num_gpus, program.chunks * program.num_gpus, 1, *extra)
    inputs = Inputs(make_layout(demand, program.chunks * per_chunk), kind)
    findings: list[Finding] = []
    for inplace in program.modes:
        caller = _Caller(inputs, inplace, per_chunk)
        try:
            execute_program(program, caller.sources, caller.outputs, per_chunk, seed, calls, caller.complete)
        except ScheduleError as error:
            findings.append(Finding("run", str(error)))
        findings += caller.findings
    return findings[:_MOST_FINDINGS]


@dataclass
class _Caller:
    """The buffers of all ranks. Outputs are filled with ones before a call, and every call has other inputs."""

    inputs: Inputs
    inplace: bool
    per_chunk: int
    sources: list[Array] = field(default_factory=list)
    outputs: list[Array] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    call: list[Inputs] = field(default_factory=list)  # of each rank, for its current call

    def __post_init__(self) -> None:
        layout, dtype = self.inputs.layout, numpy_dtype(self.inputs.dtype)
        for rank in range(layout.demand.num_gpus):
            if self.inplace:
                source, output = layout.views_in_place(rank, np.empty(layout.count_in_place(rank), dtype=dtype))
            else:
                source = np.empty(layout.input_count[rank], dtype=dtype)
                output = np.empty(layout.output_count[rank], dtype=dtype)
            self.sources.append(source)
            self.outputs.append(output)
            self.call.append(self.inputs)
            self._fill(rank)

    def _fill(self, rank: int) -> None:
        self.outputs[rank][:] = 1
        self.sources[rank][:] = self.call[rank].of(rank)

    def complete(self, rank: int) -> None:
        """Check the result of a rank at the end of a call, and prepare its next call."""
        now = self.call[rank]
        self.findings += _compare(f"gpu {rank}, output", self.outputs[rank], now.expected(rank), self.per_chunk)
        if not self.inplace:
            self.findings += _compare(f"gpu {rank}, input", self.sources[rank], now.of(rank), self.per_chunk)
        self.call[rank] = replace(now, call=now.call + 1)
        self._fill(rank)


def _compare(name: str, found: Array, wanted: Array, per_chunk: int) -> list[Finding]:
    wrong = np.flatnonzero(found != wanted).tolist()
    if not wrong:
        return []
    first = wrong[0]
    words = f"{name} chunk {first // per_chunk}: element {first} is {found[first]:g}, must be {wanted[first]:g}"
    return [Finding("number", f"{words} ({len(wrong)} of {len(found)} are wrong)")]


def execute_program(
    program: RuntimeProgram,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    per_chunk: int,
    seed: int = 0,
    calls: int = 1,
    on_end: Callable[[int], None] = lambda _: None,
) -> None:
    """Run all threadblocks on flat arrays with `per_chunk` elements per chunk; raise ScheduleError if they deadlock.

    `on_end` is called with the rank at the end of each call of that rank, before its next call starts.
    """
    _Replay(program, inputs, outputs, per_chunk, random.Random(seed)).run(calls, on_end)


class _Replay:
    """The memory of all GPUs, the data in flight, and the progress of each threadblock."""

    def __init__(
        self,
        program: RuntimeProgram,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        per_chunk: int,
        rng: random.Random,
    ) -> None:
        self.program, self.rng = program, rng
        self.memory: list[dict[str, Array]] = []
        for rank, (given, wanted) in enumerate(zip(inputs, outputs, strict=True)):
            buffers = {"i": given.reshape(-1, per_chunk), "o": wanted.reshape(-1, per_chunk)}
            for name in ("s", "p"):
                buffers[name] = np.ones((program.buffer_chunks(rank, name), per_chunk), dtype=given.dtype)
            self.memory.append(buffers)
        self.flight: dict[Hashable, deque[dict[int, Array]]] = {}
        self.published: dict[tuple[int, int], int] = {}  # the last step that a threadblock has published
        self.late: list[Operation] = []  # puts of ports that are not sent yet

    def run(self, calls: int, on_end: Callable[[int], None]) -> None:
        """Run all threadblocks, each a few steps at a time, until all calls are complete."""
        blocks: list[dict[int, list[int]]] = [{} for _ in range(self.program.num_gpus)]
        for n, operation in enumerate(self.program.operations):
            blocks[operation.rank].setdefault(operation.block, []).append(n)
        begun = [0] * self.program.num_gpus
        left: list[tuple[tuple[int, int], deque[int]]] = []
        while min(begun) <= calls:
            busy = {key[0] for key, _ in left}
            for rank in [rank for rank, times in enumerate(begun) if rank not in busy and times <= calls]:
                if begun[rank]:
                    on_end(rank)
                begun[rank] += 1
                if begun[rank] <= calls:
                    self.published = {key: step for key, step in self.published.items() if key[0] != rank}
                    left += [((rank, block), deque(steps)) for block, steps in blocks[rank].items()]
            if left:
                self._turn(left)
                left = [row for row in left if row[1]]
        self._send_late(self.late)

    def _turn(self, left: list[tuple[tuple[int, int], deque[int]]]) -> None:
        """Run a few steps of each threadblock that can proceed."""
        self.rng.shuffle(left)
        moved = False
        for key, steps in left:
            turns = self.rng.randint(1, 4)
            while steps and turns and self._is_ready(self.program.operations[steps[0]], key):
                self._do(steps.popleft(), key)
                moved, turns = True, turns - 1
        if self.late and (not moved or self.rng.random() < _PORT_RATE):
            self._send_late(self.late[:1])
        elif not moved:
            raise ScheduleError(f"deadlock: {self.program.operations[left[0][1][0]]} waits forever")

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
        """Store the reductions in their cells; return those that are sent."""
        results = []
        for target, sources in operation.assigns:
            if any(isinstance(source, int) and source not in came for source in sources):
                raise ScheduleError(f"{operation}: receives fewer chunks than it uses")
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
            raise ScheduleError(f"{operation}: chunk {buffer}[{index}] of gpu {rank}, which has only {len(chunks)}")
        found: Array = chunks[index]
        return found
