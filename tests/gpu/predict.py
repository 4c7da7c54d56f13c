"""Prediction of a plan's time where all ranks share one GPU: an event simulation of its threadblocks.

Every threadblock executes its steps in order. A step first takes a fixed time by its kind; a step that moves data then
reads and writes its bytes. All threadblocks that move data share the bandwidth of the GPU's memory equally, and none is
faster than one threadblock can be. A wait ends a fixed time after the last signal that it needs. A call takes the time
of its last step, and the time to start a kernel.
"""

import heapq
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from flowccl.errors import InputError
from flowccl.export.proof.program import Operand, Operation, RuntimeProgram


@dataclass(frozen=True, slots=True)
class StepCosts:
    """What steps cost on a GPU. Bandwidths count bytes read and bytes written.

    `move_us` is the fixed part of put, copy and reduce, `token_us` that of signals, waits and semaphores, `barrier_us`
    that of a nop, `start_us` that of a call.
    """

    start_us: float
    move_us: float
    token_us: float
    barrier_us: float
    block_GBps: float
    gpu_GBps: float

    def fixed_us(self, step: Operation) -> float:
        """Return the fixed part of a step's time."""
        if step.assigns:
            return self.move_us
        return self.barrier_us if step.name == "nop" else self.token_us


H200_COSTS = StepCosts(27.4, 1.05, 0.65, 0.16, 69.3, 3140.0)
"""Fitted to 15 plans with 5 sizes each, 8 ranks as processes on one H200 under MPS, MSCCL++ 0.9.0 (docs/gpu.md)."""


def predict_call_us(program: RuntimeProgram, size_bytes: int, costs: StepCosts) -> float:
    """Return the time of a call with a buffer of `size_bytes`, as nccl-tests counts them."""
    return costs.start_us + _SharedGpu(program, size_bytes / program.chunks, costs).run()


def _bytes(cell: Operand) -> int:
    """Return the bytes of a cell for each byte of data: packets have as many bytes of flags."""
    return 2 if not isinstance(cell, int) and cell[1] == "p" else 1


class _SharedGpu:
    """The progress of all threadblocks. Steps that move data all run at one rate, so one clock of bytes serves all."""

    def __init__(self, program: RuntimeProgram, chunk_bytes: float, costs: StepCosts) -> None:
        self.costs, self.chunk_bytes = costs, chunk_bytes
        self.blocks: dict[tuple[int, int], list[Operation]] = {}
        for step in program.operations:
            self.blocks.setdefault((step.rank, step.block), []).append(step)
        self.place = dict.fromkeys(self.blocks, 0)
        self.tokens: Counter[Hashable] = Counter()
        self.waiting: dict[Hashable, tuple[int, int]] = {}
        self.fixed: list[tuple[float, tuple[int, int]]] = []  # (time, threadblock): its fixed part ends
        self.moving: list[tuple[float, tuple[int, int]]] = []  # (clock of bytes, threadblock): its bytes have moved
        self.now = self.clock = 0.0

    def run(self) -> float:
        """Return the time of the last step in microseconds."""
        for block in self.blocks:
            self._begin(block)
        while self.fixed or self.moving:
            rate = min(self.costs.block_GBps, self.costs.gpu_GBps / max(len(self.moving), 1)) * 1e3  # bytes per us
            moved = self.now + (self.moving[0][0] - self.clock) / rate if self.moving else float("inf")
            if self.fixed and self.fixed[0][0] <= moved:
                self._advance(self.fixed[0][0], rate)
                self._after_fixed(heapq.heappop(self.fixed)[1])
            else:
                self._advance(moved, rate)
                self._complete(heapq.heappop(self.moving)[1])
        if any(place < len(self.blocks[block]) for block, place in self.place.items()):
            raise InputError("the plan deadlocks, so it has no time; check-export shows where")
        return self.now

    def _advance(self, to: float, rate: float) -> None:
        if self.moving:
            self.clock += (to - self.now) * rate
        self.now = to

    def _begin(self, block: tuple[int, int]) -> None:
        """Begin the next step of a threadblock, or let it wait for a token."""
        if self.place[block] == len(self.blocks[block]):
            return
        step = self.blocks[block][self.place[block]]
        for key in step.pops:
            if self.tokens[key] < 1:
                self.waiting[key] = block
                return
        for key in step.pops:
            self.tokens[key] -= 1
        heapq.heappush(self.fixed, (self.now + self.costs.fixed_us(step), block))

    def _after_fixed(self, block: tuple[int, int]) -> None:
        step = self.blocks[block][self.place[block]]
        cells = sum(_bytes(cell) for target, sources in step.assigns for cell in (target, *sources))
        if cells:
            heapq.heappush(self.moving, (self.clock + cells * self.chunk_bytes, block))
        else:
            self._complete(block)

    def _complete(self, block: tuple[int, int]) -> None:
        step = self.blocks[block][self.place[block]]
        self.place[block] += 1
        for key in step.pushes:
            self.tokens[key] += 1
            waiting = self.waiting.pop(key, None)
            if waiting is not None:
                self._begin(waiting)
        self._begin(block)
