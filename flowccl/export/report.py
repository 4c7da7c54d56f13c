"""What an exported program does: how late it is compared with its schedule, what it occupies, the sizes it serves."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from flowccl.export.lowering.moves import multicasts
from flowccl.export.lowering.uneven import buffer_bytes
from flowccl.export.proof.estimate import estimate_ps
from flowccl.export.proof.program import RuntimeProgram
from flowccl.runtimes.limits import LIMITS
from flowccl.runtimes.profiles import ALIGNMENT_BYTES, PROFILES
from flowccl.schedule.schedule import Schedule
from flowccl.units import format_bytes, format_us, ps_to_us
from flowccl.wording import later_than, percent

WARN_ABOVE = 0.05
"""The loss above which `export` warns."""
_ELEMENT_BYTES = 4  # of float32: MSCCL's runtimes divide elements, not bytes


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The program of a schedule. Numbers of threadblocks, operations and scratch bytes are those of the largest GPU.

    The program serves sizes that are multiples of `multiple_bytes`, or only its matrix (`one_matrix`). `sms` is None
    where the GPU model is not known.
    """

    target: str
    size_bytes: int
    finish_us: float
    program_us: float
    threadblocks: int
    sms: int | None
    operations: int
    operations_limit: int
    scratch_bytes: int
    multiple_bytes: int
    warnings: tuple[str, ...]
    packets: bool = False
    one_matrix: bool = False

    @property
    def loss(self) -> float:
        """How much later the program finishes than the schedule."""
        return self.program_us / self.finish_us - 1 if self.finish_us else 0.0

    @property
    def serves_its_size(self) -> bool:
        """Whether the runtime uses the program for the size for which the schedule was made."""
        return self.size_bytes % self.multiple_bytes == 0

    def lines(self) -> list[str]:
        """Return the report as text."""
        blocks = f"{self.threadblocks} per GPU" + ("" if self.sms is None else f", which has {self.sms} SMs")
        return [
            f"schedule      {format_us(self.finish_us)}",
            f"program       {format_us(self.program_us)}, estimated {later_than(self.loss, 'the schedule')}",
            f"threadblocks  {blocks}",
            f"operations    at most {self.operations} of {self.operations_limit} in a threadblock",
            f"scratch       {format_bytes(self.scratch_bytes)} per GPU at {format_bytes(self.size_bytes)}",
            "sizes         this matrix only"
            if self.one_matrix
            else f"sizes         multiples of {self.multiple_bytes} B",
            *(
                ["protocol      LL: packets with flags, twice the bytes on links and in scratch"]
                if self.packets
                else []
            ),
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON value."""
        return {
            "target": self.target,
            "size_bytes": self.size_bytes,
            "finish_us": self.finish_us,
            "program_us": self.program_us,
            "loss": self.loss,
            "threadblocks": self.threadblocks,
            "sms": self.sms,
            "operations": self.operations,
            "operations_limit": self.operations_limit,
            "scratch_bytes": self.scratch_bytes,
            "multiple_bytes": self.multiple_bytes,
            "serves_its_size": self.serves_its_size,
            "packets": self.packets,
            "warnings": list(self.warnings),
        }


def report_of(schedule: Schedule, program: RuntimeProgram, target: str, sms: int | None) -> ExportReport:
    """Return the report of the program that was exported from a schedule."""
    size = buffer_bytes(schedule.demand)
    profile = schedule.runtime or PROFILES[target]
    program_us = ps_to_us(estimate_ps(program, schedule.topology, size, profile))
    report = ExportReport(
        target,
        size,
        schedule.finish_us,
        program_us,
        program.most_threadblocks,
        sms,
        program.most_operations,
        LIMITS[target].steps,
        program.scratch_bytes(size),
        multiple_bytes(target, program.chunks) if program.blocks is None else size,
        (),
        program.packets,
        program.blocks is not None,
    )
    return replace(report, warnings=tuple(_warnings(schedule, report)))


def multiple_bytes(target: str, chunks: int) -> int:
    """Return the number of which a program with some chunks serves the multiples, in bytes.

    MSCCL++ divides vectors of 16 bytes. The MSCCL family divides elements; these are 4 bytes here, as in float32.
    """
    return chunks * (ALIGNMENT_BYTES if LIMITS[target].one_sided else _ELEMENT_BYTES)


def _warnings(schedule: Schedule, report: ExportReport) -> Sequence[str]:
    found = []
    if report.loss > WARN_ABOVE:
        found.append(
            f"the program finishes {percent(report.loss)} later than the schedule: {_reason(schedule, report)}"
        )
    if not report.serves_its_size:
        below = report.size_bytes // report.multiple_bytes * report.multiple_bytes
        above = below + report.multiple_bytes
        near = f"{below} B and {above} B" if below else f"{above} B"
        found.append(
            f"the runtime does not use this file for {report.size_bytes} B, the size of the schedule: it serves "
            f"multiples of {report.multiple_bytes} B; the nearest are {near}"
        )
    if report.sms is None:
        found.append(
            f"the machine does not name its GPU model: give --sms, to check that {report.threadblocks} threadblocks "
            "can be resident at once"
        )
    elif report.threadblocks > report.sms:
        found.append(
            f"{report.threadblocks} threadblocks cannot be resident at once on {report.sms} SMs: the program may hang"
        )
    return found


def _reason(schedule: Schedule, report: ExportReport) -> str:
    """Say why a program is much later than its schedule."""
    if LIMITS[report.target].one_sided and schedule.shape.operation:
        return "a GPU that issues an operation of the switch loads and stores the data itself, and waits for all others"
    if multicasts(schedule):
        return "its switches copy, and the program sends to each GPU separately; synthesize with --for " + report.target
    order = "its threadblocks run side by side, so a link that several of them use carries transfers in another order"
    if LIMITS[report.target].one_sided:
        order = f"GPUs signal that their buffers may be written, which takes the latency of a message, and {order}"
    return order if schedule.runtime is not None else f"{order}; synthesize with --for {report.target}"
