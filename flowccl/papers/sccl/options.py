"""Options of method `sccl`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from flowccl.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ScclOptions:
    """Which instances (chunks, steps, rounds) the method decides; None: all of the paper's loop.

    chunks           C, chunks per block
    steps, rounds    S and R
    extra_rounds     k of the paper: without `rounds`, instances of S steps have at most S + k rounds
    solver, threads  MILP solver, and its number of threads
    """

    chunks: int | None = None
    steps: int | None = None
    rounds: int | None = None
    extra_rounds: int = 4
    solver: str = "highs"
    threads: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("chunks", 1), ("steps", 1), ("rounds", 1), ("extra_rounds", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"sccl: {name} must be at least {least}, got {value}")
        if self.steps is not None and self.rounds is not None and self.rounds < self.steps:
            raise InputError(f"sccl: {self.steps} steps take at least {self.steps} rounds, got {self.rounds}")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "ScclOptions":
        """Create the options from a mapping; InputError for an unknown option."""
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                raise InputError(f"unknown option {name!r} of sccl; the options are {', '.join(known)}")
        return cls(**options)
