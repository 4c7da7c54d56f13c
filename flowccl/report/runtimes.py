"""Which runtimes load a schedule, and the time of its program there."""

from dataclasses import dataclass

from flowccl.errors import FlowcclError
from flowccl.export import ExportOptions, make, parse
from flowccl.export.proof.estimate import estimate_ps
from flowccl.schedule.schedule import Schedule
from flowccl.units import format_us, ps_to_us
from flowccl.wording import counted, percent

RUNTIMES = ("msccl", "executor", "rccl", "mscclpp")
MOST_TRANSFERS = 1_000
"""Larger schedules are not lowered for a report, because that takes seconds."""


@dataclass(frozen=True, slots=True)
class RuntimeRow:
    """A runtime: whether it loads the schedule, the estimated time of the program, and a note."""

    name: str
    verdict: str
    time: str
    note: str


def runtime_rows(schedule: Schedule) -> list[RuntimeRow]:
    """Return one row per runtime. Nothing is written."""
    if len(schedule) > MOST_TRANSFERS:
        note = f"not tried for more than {MOST_TRANSFERS:,} transfers; `flowccl export` says whether it loads"
        return [RuntimeRow(", ".join(RUNTIMES), "not tried", "", note)]
    return [_row(schedule, name) for name in RUNTIMES]


def _row(schedule: Schedule, name: str) -> RuntimeRow:
    try:
        program = parse(make(schedule, name, ExportOptions()), name, name)
        ps = estimate_ps(program, schedule.topology, schedule.demand.size_bytes)
    except FlowcclError as error:
        return RuntimeRow(name, "no", "", str(error))
    slower = ps / max(schedule.finish_ps, 1) - 1
    blocks = len({(step.rank, step.block) for step in program.operations})
    size = f"{counted(len(program.operations), 'step')} in {counted(blocks, 'threadblock')}"
    cost = f"lowering costs {percent(slower)}" if slower > 0 else "lowering costs nothing"
    return RuntimeRow(name, "yes", format_us(ps_to_us(ps)), f"{size}; {cost}")
