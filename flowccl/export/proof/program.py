"""What a file says, whatever its format: steps of threadblocks that read, write, send, receive and wait.

The readers make it, the interpreter proves it. It knows nothing of schedules or plans.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

Cell = tuple[int, str, int]
"""A chunk of memory: (rank, "i" | "o" | "s", index)."""

Source = Cell | int
"""Where a value comes from: a cell, or the n-th chunk of what the step receives."""


@dataclass(slots=True, eq=False)
class Operation:
    """One step. It waits for `after` and for one token of each of `pops`, does `assigns`, then puts `pushes`.

    An assignment (target, sources) stores the sum of the sources in a cell, or in the n-th chunk of what it sends.
    `size` is how many chunks it moves, to gpu `sends_to` if it sends. Others may wait only for what `is_published`.
    Cells in `lingers` are read on after the step, until what it sent is received or step `flushed_by` of the same
    threadblock is over. `label` is what the file calls the place of the step, where that is no threadblock.
    """

    rank: int
    block: int
    index: int
    name: str
    assigns: list[tuple[Source, tuple[Source, ...]]] = field(default_factory=list)
    pushes: list[Hashable] = field(default_factory=list)
    pops: list[Hashable] = field(default_factory=list)
    after: list[tuple[int, int]] = field(default_factory=list)
    size: int = 0
    lingers: set[Cell] = field(default_factory=set)
    flushed_by: int = -1
    is_published: bool = False
    sends_to: int = -1
    label: str = ""

    def __str__(self) -> str:
        place = self.label or f"threadblock {self.block} step {self.index}"
        return f"gpu {self.rank} {place} ({self.name})"

    def reads(self) -> set[Cell]:
        """Cells that the step reads."""
        return {source for _, sources in self.assigns for source in sources if not isinstance(source, int)}

    def writes(self) -> set[Cell]:
        """Cells that the step writes."""
        return {target for target, _ in self.assigns if not isinstance(target, int)}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with a file: the kind, and words with the place."""

    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(slots=True)
class Program:
    """A file as read.

    `modes` are the calls it is for: in place (True), out of place (False) or both; none where the file does not say
    what it computes, and then only pairs and waiting can be proved. `chunks` are those of the whole
    buffer, `counts` (input, output, scratch) of each rank. `depth` bounds the tokens of each connection; None is no
    bound. `findings` are what the reader saw.
    """

    collective: str
    num_gpus: int
    modes: tuple[bool, ...]
    chunks: int
    counts: list[tuple[int, int, int]]
    operations: list[Operation]
    depth: int | None
    root: int = 0
    findings: list[Finding] = field(default_factory=list)
    min_bytes: int = 0
    max_bytes: int = 0

    def found(self, kind: str, message: str) -> None:
        """Note something wrong."""
        self.findings.append(Finding(kind, message))
