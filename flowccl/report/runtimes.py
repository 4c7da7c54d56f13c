"""Which runtimes load a schedule, and what its program costs there."""

from collections.abc import Sequence
from dataclasses import dataclass

from flowccl.errors import FlowcclError
from flowccl.lowered import Lowered, lower_for
from flowccl.runtimes.limits import check_collective
from flowccl.runtimes.machine import known_sms
from flowccl.runtimes.profiles import PROFILES, RuntimeProfile
from flowccl.schedule.schedule import Schedule
from flowccl.units import format_bytes, format_us
from flowccl.wording import counted

MOST_TRANSFERS = 2_000
"""Larger reports do not lower their schedules unless they are asked to: it takes about a millisecond per transfer."""


@dataclass(frozen=True, slots=True)
class RuntimeRow:
    """A runtime: whether it loads the schedule, the time of the program, that time compared, and a note."""

    name: str
    verdict: str
    time: str
    compared: str
    note: str


def quickly_lowered(schedules: Sequence[Schedule]) -> list[bool]:
    """Return which schedules a report lowers without being asked to: the smallest, up to `MOST_TRANSFERS` together."""
    order = sorted(range(len(schedules)), key=lambda number: (len(schedules[number]), number))
    total, chosen = 0, [False] * len(schedules)
    for number in order:
        total += len(schedules[number])
        chosen[number] = total <= MOST_TRANSFERS
    return chosen


def runtime_rows(schedule: Schedule, lower: bool = True) -> list[RuntimeRow]:
    """Return one row per runtime; without `lower`, only what is known without a program. Nothing is written."""
    own = schedule.runtime
    profiles = [own if own is not None and own.name == name else PROFILES[name] for name in PROFILES]
    return [_row(schedule, profile, lower) for profile in profiles if not profile.is_ideal]


def _row(schedule: Schedule, profile: RuntimeProfile, lower: bool) -> RuntimeRow:
    try:
        if not lower and profile.limits is not None:
            check_collective(profile.limits, schedule.demand.collective)
            return RuntimeRow(profile.name, "not tried", "", "", "")
        found = lower_for(schedule, profile, known_sms(schedule.topology))
    except FlowcclError as error:
        return RuntimeRow(profile.name, "no", "", "", str(error))
    return RuntimeRow(profile.name, "yes", format_us(found.program_us), _compared(schedule, found), _size(found))


def _compared(schedule: Schedule, found: Lowered) -> str:
    """The time of the program compared with that of the schedule."""
    ratio = found.program_ps / max(schedule.finish_ps, 1)
    if ratio <= 1:
        return "as early as the schedule"
    return f"{100 * (ratio - 1):.1f} % later" if ratio < 2 else f"{ratio:.1f} times as long"


def _size(found: Lowered) -> str:
    blocks = counted(found.threadblocks, "threadblock")
    scratch = f", {format_bytes(found.scratch_bytes)} of scratch" if found.scratch_bytes else ""
    return f"{blocks} per GPU, at most {counted(found.operations, 'operation')} in one{scratch}"
