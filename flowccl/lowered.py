"""A schedule as a program of a runtime: how long it takes there, and what it needs."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from flowccl.errors import FlowcclError
from flowccl.export.exporting import TARGETS, ExportOptions, parse
from flowccl.export.formats.mscclpp_program import CrowdedError
from flowccl.export.program import Program, program_for
from flowccl.export.proof.estimate import estimate_ps
from flowccl.runtimes.limits import USABLE_OPERATIONS
from flowccl.runtimes.profiles import PROFILES, RuntimeProfile
from flowccl.schedule.compact import compact_form
from flowccl.schedule.generation.engine import Engine
from flowccl.schedule.schedule import Schedule
from flowccl.units import ps_to_us

_TIMING_S = 2e-5  # for a message in every repetition: 1.5 to 2e-5 s
_OPERATION_S = 6e-6  # for an operation, to write, read and prove it: 2e-6 to 6e-6 s
LEAST_S = 0.3  # for any program: loading compiled code, and what does not grow with the messages
_PARTS = (1.0, 0.85, 0.7)  # parts of the operations of a threadblock that messages may use, where they do not fit
_LOWERING_S = 6e-5  # for a message and each threadblock of its group: 5 to 6e-5 s on one core, large programs


@dataclass(frozen=True, slots=True)
class Lowered:
    """The program of a schedule on a runtime: its time by the estimator, and the most that any GPU needs.

    `program` is the one that was made for MSCCL++; None for other runtimes.
    """

    runtime: str
    program_ps: int
    threadblocks: int
    operations: int
    scratch_bytes: int
    program: Program | None = field(default=None, compare=False, repr=False)

    @property
    def program_us(self) -> float:
        """The time of the program in microseconds."""
        return ps_to_us(self.program_ps)


def lower_for(schedule: Schedule, profile: RuntimeProfile, sms: int | None = None) -> Lowered:
    """Return the program of a schedule on a runtime; raise an error where the runtime cannot run it.

    `sms` is the number of SMs of a GPU: threadblocks beyond it would never be resident together.
    """
    if profile.name == "mscclpp":
        made = program_for(schedule, sms=sms)
        return Lowered(
            profile.name, made.program_ps, made.threadblocks, made.operations, made.scratch_bytes, program=made
        )
    data = TARGETS[profile.name](schedule, ExportOptions(sms=sms))
    program = parse(data, profile.name, f"the program for {profile.name}")
    size = schedule.demand.size_bytes
    return Lowered(
        profile.name,
        estimate_ps(program, schedule.topology, size, profile),
        program.most_threadblocks,
        program.most_operations,
        program.scratch_bytes(size),
    )


def lower_spread_out(
    schedule: Schedule, profile: RuntimeProfile, sms: int | None, left_s: Callable[[], float]
) -> tuple[Schedule, Lowered]:
    """Return the program of a schedule, and the schedule: with other groups where a threadblock would have too much.

    How many operations a message takes is known when the program is written. Where they do not fit, the messages are
    scheduled again in the same order, with fewer of them for a threadblock, as long as time is left.
    """
    try:
        return schedule, lower_for(schedule, profile, sms)
    except CrowdedError:
        if schedule.execution is None or schedule.execution.loops > 1:
            raise
        for part in _PARTS:
            if lowering_s(schedule) > left_s():
                break
            again = Engine(schedule, schedule.execution, usable_operations=int(part * USABLE_OPERATIONS)).run()
            if again is not None:
                with suppress(CrowdedError):
                    return again, lower_for(again, profile, sms)
        raise


@dataclass
class LoweringTime:
    """Estimates the seconds that the program of a schedule takes: lowering it, and timing it."""

    seconds: float = LEAST_S

    def __call__(self) -> float:
        """Return the seconds for the last schedule that was seen."""
        return self.seconds

    def see(self, schedule: Schedule) -> None:
        """Estimate the seconds for a schedule."""
        self.seconds = lowering_s(schedule)


def lowering_s(schedule: Schedule) -> float:
    """About how many seconds the program of a schedule takes that was made for a runtime; 0 where it was not."""
    execution = schedule.execution
    if execution is None:
        return 0.0
    compact = compact_form(schedule) if execution.loops == 1 else None
    one = schedule if compact is None else compact.one  # one GPU stands for all
    messages = int(np.count_nonzero(one.leader == np.arange(len(one))))
    return LEAST_S + program_s(messages / execution.loops, execution.loops, execution.width)


def proving_s(lowered: Lowered) -> float:
    """About how many seconds it takes to write, read and prove the program of MSCCL++."""
    if lowered.program is None:
        return 0.0
    gpus = lowered.program.schedule.topology.num_gpus
    return _OPERATION_S * gpus * lowered.threadblocks * lowered.operations


def program_s(messages: float, loops: int, width: int = 1) -> float:
    """About how many seconds a program with a number of messages takes, each of which is repeated in all loops."""
    return messages * (_LOWERING_S * width + (_TIMING_S * loops if loops > 1 else 0.0))


def loadable(
    schedule: Schedule, sms: int | None, skip: Callable[[str], bool] = lambda name: False
) -> dict[str, Lowered]:
    """Return, for every runtime that can load the schedule as it is and that `skip` does not leave out, its program."""
    found = {}
    for name, profile in PROFILES.items():
        if not profile.is_ideal and not skip(name):
            try:
                found[name] = lower_for(schedule, profile, sms)
            except FlowcclError:
                continue
    return found
