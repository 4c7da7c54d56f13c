"""A schedule as a program of MSCCL++: lowered once, then kept, written, proved and timed."""

from dataclasses import dataclass, replace
from functools import cached_property

from flowccl.errors import InputError
from flowccl.export.formats.mscclpp_program import CrowdedError, write_plan
from flowccl.export.formats.read_mscclpp import parse_mscclpp
from flowccl.export.garbage import few_collections
from flowccl.export.lowering.balance import balanced
from flowccl.export.lowering.build import Builder
from flowccl.export.lowering.moves import check_ranks
from flowccl.export.lowering.repeated import repetition_of
from flowccl.export.lowering.size import check_size
from flowccl.export.lowering.uneven import buffer_bytes, program_layout
from flowccl.export.proof.estimate import estimate_ps
from flowccl.export.proof.interpreter import interpret
from flowccl.export.proof.program import Finding, RuntimeProgram
from flowccl.runtimes.execution import Execution
from flowccl.runtimes.limits import MSCCLPP_LIMITS, check_collective
from flowccl.runtimes.profiles import PROFILES
from flowccl.schedule.generation.carrying import carried_out
from flowccl.schedule.generation.engine import Engine
from flowccl.schedule.generation.loops import first_part
from flowccl.schedule.schedule import Schedule
from flowccl.units import ps_to_us


@dataclass(frozen=True, eq=False)
class Program:
    """The program of a schedule: the contents of its file, and what it needs on the GPU that needs the most."""

    schedule: Schedule
    data: bytes
    inplace: bool
    threadblocks: int
    operations: int
    scratch_bytes: int
    chunks: int

    @cached_property
    def parsed(self) -> RuntimeProgram:
        """The program as it was read back from the contents of its file."""
        program = parse_mscclpp(self.data, "the program for mscclpp")
        program.root = program_layout(self.schedule.demand, 1, False).root
        return program

    @cached_property
    def program_ps(self) -> int:
        """The time of the program, by an event simulation of its file."""
        schedule = self.schedule
        return estimate_ps(self.parsed, schedule.topology, buffer_bytes(schedule.demand), schedule.runtime)

    @property
    def program_us(self) -> float:
        """The time of the program in microseconds."""
        return ps_to_us(self.program_ps)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that is wrong with the program; none proves that it is right."""
        return tuple(interpret(self.parsed))


def program_for(
    schedule: Schedule,
    *,
    sms: int | None = None,
    protocol: str = "auto",
    inplace: bool = False,
    min_bytes: int = 0,
    max_bytes: int = 0,
) -> Program:
    """Return the program of any schedule for MSCCL++, with at most `sms` threadblocks on a GPU (default: all SMs).

    A schedule that was made for MSCCL++ within `sms` is lowered as it is. Another one gets the times at which MSCCL++
    can carry it out first. With the protocol "LL", messages are packets; with "auto", the schedule decides.
    """
    execution, profile = schedule.execution, schedule.runtime
    if profile is None or profile.name != "mscclpp":
        profile = PROFILES["mscclpp"]
    check_collective(MSCCLPP_LIMITS, schedule.demand.collective)
    check_ranks(schedule)
    if execution is None or execution.profile != profile or (sms is not None and execution.sms > sms):
        schedule = carried_out(schedule, profile, sms, ("Simple",) if protocol == "Simple" else ("Simple", "LL"))
        execution = schedule.execution
    if execution is not None and protocol not in ("auto", execution.protocol):
        schedule = _with_protocol(schedule, replace(execution, protocol=protocol))
    key = f"program {inplace} {min_bytes} {max_bytes}"
    if key not in schedule.cache:
        schedule.cache[key] = lower_program(schedule, inplace=inplace, min_bytes=min_bytes, max_bytes=max_bytes)
    found: Program = schedule.cache[key]
    return found


def _with_protocol(schedule: Schedule, execution: Execution) -> Schedule:
    """Return a schedule with packets instead of puts and signals, or the other way round."""
    assert schedule.costs is not None
    if execution.packets and schedule.costs.is_proxied.any():
        raise InputError("mscclpp: packets (--proto LL) are for GPUs of one host; use --proto Simple")
    if len(schedule.timing.end_transfer) > len(schedule) or len(schedule.timing.root_transfer) > len(schedule):
        raise InputError("mscclpp: operations of a switch have no packets; use --proto Simple")
    found = Engine(schedule, execution).run()
    if found is None:
        raise InputError(f"mscclpp cannot run this schedule with --proto {execution.protocol} --sms {execution.sms}")
    return found


def lower_program(schedule: Schedule, *, inplace: bool = False, min_bytes: int = 0, max_bytes: int = 0) -> Program:
    """Return the program of a schedule that was made for MSCCL++: its `execution` says which threadblocks it uses.

    `min_bytes` and `max_bytes` limit the sizes that the file serves (0: no limit). Raise InputError where MSCCL++
    cannot run the schedule.
    """
    execution = schedule.execution
    if execution is None or execution.profile.name != "mscclpp":
        raise InputError("the schedule was not made for mscclpp; synthesize with --for mscclpp")
    if max_bytes and max_bytes < min_bytes:
        raise InputError(f"--max-bytes {max_bytes} is less than --min-bytes {min_bytes}")
    check_collective(MSCCLPP_LIMITS, schedule.demand.collective)
    check_ranks(schedule)
    if inplace and schedule.demand.collective == "broadcast":
        raise InputError("mscclpp: a broadcast does not run in place; export it without --inplace")
    crosses = schedule.costs is not None and bool(schedule.costs.is_proxied.any())
    if inplace and crosses and schedule.demand.collective == "alltoall":  # a NIC reads what arriving data overwrites
        raise InputError("mscclpp: an alltoall between hosts does not run in place; export it without --inplace")
    part = first_part(schedule) if execution.loops > 1 else schedule
    check_size(part, execution)
    chunks = program_layout(part.demand, 1, inplace)
    slots = program_layout(part.demand, execution.width, inplace)
    with few_collections():
        builder = Builder(part, execution, chunks)
        try:
            built = builder.build()
            repetition = repetition_of(schedule, part, built) if execution.loops > 1 else None
            written = write_plan(part, execution, slots, built, min_bytes, max_bytes, repetition)
        except CrowdedError:
            if execution.loops > 1:
                raise
            built = Builder(balanced(schedule, execution, builder.posters), execution, chunks).build()
            written = write_plan(schedule, execution, slots, built, min_bytes, max_bytes)
    slot_bytes = -(-buffer_bytes(schedule.demand) // written.chunks)
    scratch = written.scratch_chunks * slot_bytes * (2 if execution.packets else 1)
    return Program(schedule, written.data, inplace, written.threadblocks, written.operations, scratch, written.chunks)
