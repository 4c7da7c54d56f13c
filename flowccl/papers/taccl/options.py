"""Options of method `taccl`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from flowccl.errors import InputError
from flowccl.papers.taccl.sketch import Sketch

Stage = Literal["milp", "fast"]


@dataclass(frozen=True, kw_only=True)
class TacclOptions:
    """How each stage works.

    sketch             the communication sketch; None derives one from the machine
    routing            milp: the path encoding; fast: paths of least time and load, one chunk after the other
    contiguity         milp: the contiguity encoding; fast: merge consecutive sends one by one while it helps
    routing_limit_s    time limit of the path encoding; None: half of the time
    contiguity_limit_s time limit of the contiguity encoding; None: the time left
    solver, threads    LP/MILP solver, and its number of threads
    """

    sketch: Sketch | None = None
    routing: Stage = "milp"
    contiguity: Stage = "milp"
    routing_limit_s: float | None = None
    contiguity_limit_s: float | None = None
    solver: str = "highs"
    threads: int | None = None

    def __post_init__(self) -> None:
        for name in ("routing", "contiguity"):
            if getattr(self, name) not in get_args(Stage):
                raise InputError(f"{name} must be milp or fast, got {getattr(self, name)!r}")
        for name in ("routing_limit_s", "contiguity_limit_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name} must be above 0, got {value:g}")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "TacclOptions":
        """Create the options from a mapping; InputError for an unknown option."""
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                raise InputError(f"unknown option {name!r} of taccl; the options are {', '.join(known)}")
        return cls(**options)
