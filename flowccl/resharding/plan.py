"""The plan of a resharding: both layouts, the schedule, and the bytes that each chunk of the schedule carries."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import ScheduleError
from flowccl.resharding.layout import Layout
from flowccl.resharding.traffic import Traffic, traffic
from flowccl.schedule.schedule import Schedule

I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ReshardPlan:
    """Chunk c of the schedule carries bytes `begin[c]` to `end[c]` of class `cls[c]`, in round `stage[c]`.

    Classes and their streams follow from the layouts (`Traffic`). In a run, every chunk is divided into `slices`, so
    that less memory is needed: slice k of all chunks of a stage goes together.
    """

    source: Layout
    target: Layout
    schedule: Schedule
    cls: I64
    begin: I64
    end: I64
    stage: I64
    slices: int = 1
    partial: bool = False

    def __post_init__(self) -> None:
        for name in ("cls", "begin", "end", "stage"):
            column = np.ascontiguousarray(getattr(self, name), dtype=np.int64)
            column.setflags(write=False)
            object.__setattr__(self, name, column)
        if self.slices < 1:
            raise ScheduleError(f"slices must be at least 1, got {self.slices}")
        for name in ("cls", "begin", "end", "stage"):
            column = getattr(self, name)
            if len(column) != len(self.schedule.demand):
                raise ScheduleError(
                    f"column {name} has {len(column)} entries, the schedule has {len(self.schedule.demand)} chunks"
                )

    @cached_property
    def traffic(self) -> Traffic:
        """The classes of the two layouts."""
        return traffic(self.source, self.target, partial=self.partial)

    @property
    def stages(self) -> int:
        """Number of stages of a run, each a slice of the chunks of a round."""
        return (int(self.stage.max(initial=0)) + 1) * self.slices

    def span(self, chunk: int, number: int) -> tuple[int, int]:
        """The bytes of a slice of a chunk, in the stream of its class."""
        begin, size = int(self.begin[chunk]), int(self.end[chunk] - self.begin[chunk])
        return begin + size * number // self.slices, begin + size * (number + 1) // self.slices

    @property
    def ranks(self) -> int:
        """Number of ranks of the machine."""
        return self.schedule.topology.num_gpus

    @property
    def fingerprint(self) -> str:
        """The fingerprints of both layouts: plans with the same one move the same bytes."""
        return f"{self.source.fingerprint}-{self.target.fingerprint}"


def check_plan(plan: ReshardPlan) -> None:
    """Raise ScheduleError unless the chunks bring every missing byte to its targets, each from a rank that has it.

    The verifier proves that every chunk reaches its destinations; this proves that the chunks are the right ones.
    """
    classes, demand = plan.traffic.classes, plan.schedule.demand
    if len(plan.cls) and not (plan.cls.min() >= 0 and plan.cls.max() < len(classes)):
        raise ScheduleError(
            f"chunk {int(np.argmax((plan.cls < 0) | (plan.cls >= len(classes))))}: there is no such class"
        )
    if np.any(plan.end - plan.begin != demand.chunk_bytes):
        chunk = int(np.argmax(plan.end - plan.begin != demand.chunk_bytes))
        raise ScheduleError(f"chunk {chunk}: its bytes in the class are not those of the schedule")
    got: dict[tuple[int, int], list[tuple[int, int]]] = {}
    source = demand.source.tolist()
    for chunk, number in enumerate(plan.cls.tolist()):
        if source[chunk] not in classes[number].sources:
            raise ScheduleError(f"chunk {chunk}: its source {source[chunk]} does not have class {number}")
        span = (int(plan.begin[chunk]), int(plan.end[chunk]))
        for rank in demand.destinations(chunk).tolist():
            got.setdefault((number, rank), []).append(span)
    for number, one in enumerate(classes):
        for rank in one.missing:
            reached = 0
            for begin, end in sorted(got.pop((number, rank), [])):
                if begin != reached:
                    break
                reached = end
            if reached != one.bytes:
                raise ScheduleError(f"rank {rank} does not get all bytes of class {number} exactly once")
    if got:
        number, rank = next(iter(got))
        raise ScheduleError(f"rank {rank} gets bytes of class {number}, which it does not want")
