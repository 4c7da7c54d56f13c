"""The options of a synthesis."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flowccl.errors import InputError
from flowccl.runtimes.profiles import RuntimeProfile

MIN_CHUNK_BYTES = 4_000
"""Chunks below this size are mostly overhead on every runtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How `synthesize` searches, for how long, and for which runtime.

    method           the name of a method; "auto" is a portfolio of several
    chunks           chunks per block; None tries several numbers
    root             the rank of the root, for broadcast, reduce, scatter and gather
    time_limit_s     seconds after which the search stops
    gap              relative distance to the lower bound at which the search stops
    lean             of all schedules within this fraction of the best one, that with the fewest transfers is returned,
                     but none outside `gap` where the best one is within it
    min_chunk_bytes  the least chunk, unless the block itself is smaller; None: 4,000 bytes, and 512 for a runtime,
                     whose messages have their costs in the timing
    runtime          the runtime that is to run the schedule: a name such as "mscclpp", or a profile. Its message costs
                     are part of the timing, its limits are constraints, chunks are multiples of 16 bytes (the size is
                     raised where no plan could serve it), and schedules are compared by the time of their programs
    sms              SMs of a GPU, where the machine does not name a GPU model
    seed             of the random numbers
    steps            counted steps after which the search stops; the result then does not depend on the computer's speed
    workers          threads that run arms side by side; with `steps` the result does not depend on their number
    options          those of the method: `TecclOptions` for milp, lp and astar, which use one chunk unless `chunks` is
                     given; `TacclOptions` for taccl, which tries multiples of the chunk count of its sketch;
                     `ScclOptions` for sccl, which chooses the number of chunks unless `chunks` is given

    `lean=0, gap=0, min_chunk_bytes=1` gives the best schedule that can be found, however small its chunks.
    """

    method: str = "auto"
    chunks: int | None = None
    root: int = 0
    time_limit_s: float = 10.0
    gap: float = 0.005
    lean: float = 0.005
    min_chunk_bytes: int | None = None
    runtime: str | RuntimeProfile = "ideal"
    sms: int | None = None
    seed: int = 0
    steps: int | None = None
    workers: int = 2
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.time_limit_s > 0:
            raise InputError(f"the time limit must be above 0 seconds, got {self.time_limit_s:g}")
