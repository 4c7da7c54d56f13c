"""A schedule as a program of a runtime: how long it takes there, and what it needs."""

from dataclasses import dataclass

from flowccl.errors import FlowcclError
from flowccl.export.exporting import TARGETS, ExportOptions, parse
from flowccl.export.lowering.fastest import fastest_plan
from flowccl.export.lowering.plan_program import program_of
from flowccl.export.proof.estimate import estimate_ps
from flowccl.export.proof.program import RuntimeProgram
from flowccl.runtimes.machine import on_runtime
from flowccl.runtimes.profiles import PROFILES, RuntimeProfile
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology
from flowccl.units import ps_to_us


@dataclass(frozen=True, slots=True)
class Lowered:
    """The program of a schedule on a runtime: its time by the estimator, and the most that any GPU needs."""

    runtime: str
    program_ps: int
    threadblocks: int
    operations: int
    scratch_bytes: int

    @property
    def program_us(self) -> float:
        """The time of the program in microseconds."""
        return ps_to_us(self.program_ps)


def lower_for(schedule: Schedule, profile: RuntimeProfile, sms: int | None = None) -> Lowered:
    """Return the program of a schedule on a runtime; raise an error where the runtime cannot run it.

    `sms` is the number of SMs of a GPU: threadblocks beyond it would never be resident together.
    """
    made = TARGETS[profile.name](schedule, ExportOptions(sms=sms))
    program = parse(made, profile.name, f"the program for {profile.name}")
    return _measured(program, schedule, profile)


def program_estimate_us(schedule: Schedule, profile: RuntimeProfile) -> float:
    """Return the estimated time of a schedule's program on a runtime, without writing and reading its file.

    It is that of `lower_for`, except that steps which wait for a link at the same time may take turns differently.
    """
    if profile.limits is None:
        return lower_for(schedule, profile).program_us
    program = program_of(fastest_plan(schedule, profile.limits), profile.limits)
    return ps_to_us(estimate_ps(program, _machine(schedule, profile), schedule.demand.size_bytes, profile.costs))


def loadable(schedule: Schedule, sms: int | None) -> dict[str, Lowered]:
    """Return, for every runtime that can load the schedule as it is, its program."""
    found = {}
    for name, profile in PROFILES.items():
        if not profile.is_ideal:
            try:
                found[name] = lower_for(schedule, profile, sms)
            except FlowcclError:
                continue
    return found


def _measured(program: RuntimeProgram, schedule: Schedule, profile: RuntimeProfile) -> Lowered:
    size = schedule.demand.size_bytes
    return Lowered(
        profile.name,
        estimate_ps(program, _machine(schedule, profile), size, profile.costs),
        program.most_threadblocks,
        program.most_operations,
        program.scratch_bytes(size),
    )


def _machine(schedule: Schedule, profile: RuntimeProfile) -> Topology:
    """The machine of a schedule with the message costs of a runtime."""
    if schedule.runtime == profile:
        return schedule.topology
    return on_runtime(schedule.topology, profile, schedule.runtime)
