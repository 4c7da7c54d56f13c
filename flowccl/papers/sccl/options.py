"""Options of method `sccl`."""

from dataclasses import dataclass
from typing import ClassVar

from flowccl.errors import InputError
from flowccl.papers.options import PaperOptions


@dataclass(frozen=True, kw_only=True)
class ScclOptions(PaperOptions):
    """Which instances (chunks, steps, rounds) the method decides; None: all of the paper's loop.

    chunks           C, chunks per block
    steps, rounds    S and R
    extra_rounds     k of the paper: without `rounds`, instances of S steps have at most S + k rounds
    """

    methods: ClassVar[str] = "sccl"
    chunks: int | None = None
    steps: int | None = None
    rounds: int | None = None
    extra_rounds: int = 4

    def __post_init__(self) -> None:
        for name, least in (("chunks", 1), ("steps", 1), ("rounds", 1), ("extra_rounds", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"sccl: {name} must be at least {least}, got {value}")
        if self.steps is not None and self.rounds is not None and self.rounds < self.steps:
            raise InputError(f"sccl: {self.steps} steps take at least {self.steps} rounds, got {self.rounds}")
