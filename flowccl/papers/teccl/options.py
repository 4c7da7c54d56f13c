"""Options of the methods on a grid of epochs."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from flowccl.errors import InputError
from flowccl.papers.options import PaperOptions
from flowccl.units import parse_us

Objective = Literal["epochs", "paper"]


@dataclass(frozen=True, kw_only=True)
class TecclOptions(PaperOptions):
    """Options of milp, lp and astar.

    epoch              fast | slow (one chunk on the fastest or slowest link), "2x" (times fast), or a time: "0.5us"
    epochs             a number of epochs, "search" (binary search on feasibility) or "auto"
    copy               whether nodes may send several copies of a chunk
    buffers            whether GPUs may store chunks that they forward; without, they forward chunks at once
    hyper_edges        replace plain switches by direct routes between their neighbours (appendix C)
    objective          epochs: the fewest; paper: the sum of 1 / (k + 1) over all deliveries by epoch k
    latency_threshold  latencies below this fraction of an epoch count as zero
    early_stop         stop at this relative gap on the grid (TE-CCL uses 0.3)
    warm_start         whether greedy and reroute provide a plan to start from
    round_epochs       of astar: epochs per round; None: the longest delay of a link, at least two
    """

    methods: ClassVar[str] = "milp, lp and astar"
    epoch: str = "fast"
    epochs: int | Literal["auto", "search"] = "auto"
    copy: bool = True
    buffers: bool = True
    hyper_edges: bool = False
    objective: Objective = "epochs"
    latency_threshold: float = 0.0
    early_stop: float = 0.0
    warm_start: bool = True
    round_epochs: int | None = None

    def __post_init__(self) -> None:
        epoch_choice(self.epoch)
        if self.epochs not in ("auto", "search") and not (isinstance(self.epochs, int) and self.epochs >= 1):
            raise InputError(f"epochs must be auto, search or a number of at least 1, got {self.epochs}")
        if self.objective not in get_args(Objective):
            raise InputError(f"objective must be epochs or paper, got {self.objective!r}")
        for name in ("latency_threshold", "early_stop"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise InputError(f"{name} must be >= 0, got {getattr(self, name):g}")
        if self.round_epochs is not None and self.round_epochs < 1:
            raise InputError(f"round_epochs must be at least 1, got {self.round_epochs}")


_WRITE = "write fast, slow, a multiplier such as 2x, or a time such as 0.5us"


def epoch_choice(text: str) -> tuple[Literal["fast", "slow", "times", "us"], float]:
    """Parse an epoch length: ("fast", 1), ("slow", 1), ("times", multiplier) or ("us", microseconds)."""
    if text == "fast":
        return "fast", 1.0
    if text == "slow":
        return "slow", 1.0
    if text.endswith("x"):
        try:
            times = float(text[:-1])
        except ValueError:
            raise InputError(f"epoch {text!r}: {_WRITE}") from None
        if not (math.isfinite(times) and times > 0):
            raise InputError(f"epoch {text!r}: the multiplier must be above 0, got {text[:-1]}")
        return "times", times
    try:
        us = parse_us(text, "epoch")
    except InputError:
        raise InputError(f"epoch {text!r}: {_WRITE}") from None
    if us <= 0:
        raise InputError(f"epoch {text!r}: must be longer than 0")
    return "us", us
