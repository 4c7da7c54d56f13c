"""Options of method `taccl`."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from flowccl.errors import InputError
from flowccl.papers.options import PaperOptions
from flowccl.papers.taccl.sketch import Sketch

Stage = Literal["milp", "fast"]


@dataclass(frozen=True, kw_only=True)
class TacclOptions(PaperOptions):
    """How each stage works.

    sketch             the communication sketch; None derives one from the machine
    routing            milp: the path encoding; fast: paths of least time and load, one chunk after the other
    contiguity         milp: the contiguity encoding; fast: merge consecutive sends one by one while it helps
    routing_limit_s    time limit of the path encoding; None: half of the time
    contiguity_limit_s time limit of the contiguity encoding; None: the time left
    """

    methods: ClassVar[str] = "taccl"
    sketch: Sketch | None = None
    routing: Stage = "milp"
    contiguity: Stage = "milp"
    routing_limit_s: float | None = None
    contiguity_limit_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("routing", "contiguity"):
            if getattr(self, name) not in get_args(Stage):
                raise InputError(f"{name} must be milp or fast, got {getattr(self, name)!r}")
        for name in ("routing_limit_s", "contiguity_limit_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name} must be above 0, got {value:g}")
