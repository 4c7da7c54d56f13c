"""The program in a file of any format: steps of threadblocks that read, write, send, receive and wait.

Readers make programs, and the interpreter proves them. Programs are independent of schedules and plans.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Cell = tuple[int, str, int]
"""A chunk of memory: (rank, "i" | "o" | "s" | "p" for input, output, scratch, packets in scratch, index)."""

Operand = Cell | int
"""A cell, or n for the n-th chunk that the step receives or sends."""


@dataclass(slots=True, eq=False)
class Operation:
    """One step: it waits for `after` and for a token of each of `pops`, does `assigns`, then puts tokens to `pushes`.

    An assignment (target, sources) stores the reduction of the sources in a cell, or in the n-th chunk that the step
    sends. `size` is the number of chunks moved, to gpu `sends_to` if the step sends. Other steps may wait only for a
    step that `is_published`. Cells in `lingers` are read asynchronously after the step, until its data is received or
    step `flushed_by` of the same threadblock is complete. `group` are the ranks whose memory an operation of a switch
    accesses together. A step that sends `packets` sends twice the bytes, and its data needs no signal. `label` is the
    file's name for the place of the step, if that is not a threadblock.
    """

    rank: int
    block: int
    index: int
    name: str
    assigns: list[tuple[Operand, tuple[Operand, ...]]] = field(default_factory=list)
    pushes: list[Hashable] = field(default_factory=list)
    pops: list[Hashable] = field(default_factory=list)
    after: list[tuple[int, int]] = field(default_factory=list)
    size: int = 0
    lingers: set[Cell] = field(default_factory=set)
    flushed_by: int = -1
    is_published: bool = False
    sends_to: int = -1
    label: str = ""
    group: tuple[int, ...] = ()
    packets: bool = False

    def __str__(self) -> str:
        place = self.label or f"threadblock {self.block} step {self.index}"
        return f"gpu {self.rank} {place} ({self.name})"


@dataclass(frozen=True, slots=True)
class Finding:
    """An error in a file: its kind, and a message with the place."""

    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


_NO_PARTS = np.zeros((0, 0), dtype=np.int64), np.zeros((0, 0))


@dataclass(slots=True)
class RuntimeProgram:
    """The program in a file.

    `modes` lists the supported calls: in place (True), out of place (False) or both. It is empty if the file does not
    name its collective; then only matching and deadlocks are checked. `chunks` is the number of chunks of the whole
    buffer, `counts` the numbers of (input, output, scratch) chunks of each rank. `depth` limits the tokens of each
    connection; None means no limit. With `packets`, scratch has twice the bytes: a chunk of it has room for the packets
    of a chunk, or for two plain chunks. `findings` are those of the reader. `made_for_bytes` is the size for which
    the starts of sends hold that the file names; 0: it names none. In an alltoallv, rank s sends `blocks[s, d]` chunks
    to rank d. Loops move `unit_bytes` of every chunk at a time; `parts` are the starts and rates of each message for
    each part that the file names.
    """

    collective: str
    num_gpus: int
    modes: tuple[bool, ...]
    chunks: int
    counts: list[tuple[int, int, int]]
    operations: Sequence[Operation]
    depth: int | None
    root: int = 0
    findings: list[Finding] = field(default_factory=list)
    min_bytes: int = 0
    max_bytes: int = 0
    packets: bool = False
    made_for_bytes: int = 0
    blocks: NDArray[np.int64] | None = None
    unit_bytes: int = 0
    parts: tuple[NDArray[np.int64], NDArray[np.float64]] = _NO_PARTS

    @property
    def has_dependencies(self) -> bool:
        """Whether steps wait for others by name; only files with FIFOs or nodes have such steps."""
        return not hasattr(self.operations, "table") and any(operation.after for operation in self.operations)

    @property
    def most_threadblocks(self) -> int:
        """Number of threadblocks of the GPU that has the most."""
        return max(Counter(rank for rank, _ in self._block_sizes()).values(), default=0)

    @property
    def most_operations(self) -> int:
        """Number of operations of the longest threadblock."""
        return max(self._block_sizes().values(), default=0)

    def _block_sizes(self) -> Counter[tuple[int, int]]:
        """The number of operations of each threadblock, by rank and a number of its own."""
        table = getattr(self.operations, "table", None)
        if table is None:
            return Counter((operation.rank, operation.block) for operation in self.operations)
        thread, first, count = np.unique(table.thread, return_index=True, return_counts=True)
        return Counter(
            dict(zip(zip(table.rank[first].tolist(), thread.tolist(), strict=True), count.tolist(), strict=True))
        )

    def scratch_bytes(self, size_bytes: int) -> int:
        """Return the bytes of the largest scratch buffer of a GPU, for a buffer of `size_bytes`."""
        return max(self.buffer_chunks(rank, "s") for rank in range(self.num_gpus)) * -(-size_bytes // self.chunks)

    def buffer_chunks(self, rank: int, buffer: str) -> int:
        """Return the number of chunks of a rank's buffer; "p" is its scratch as packets."""
        if buffer in ("s", "p"):
            return self.counts[rank][2] * (2 if self.packets and buffer == "s" else 1)
        return self.counts[rank]["io".index(buffer)]

    def found(self, kind: str, message: str) -> None:
        """Record an error."""
        self.findings.append(Finding(kind, message))
