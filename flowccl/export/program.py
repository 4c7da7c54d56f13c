"""A schedule as a program of MSCCL++: lowered once, then kept, written, proved and timed."""

from dataclasses import dataclass
from functools import cached_property

from flowccl.errors import InputError
from flowccl.export.formats.mscclpp_program import write_plan
from flowccl.export.formats.read_mscclpp import parse_mscclpp
from flowccl.export.lowering.buffers import layout_of
from flowccl.export.lowering.build import Builder
from flowccl.export.proof.estimate import estimate_ps
from flowccl.export.proof.interpreter import interpret
from flowccl.export.proof.program import Finding, RuntimeProgram
from flowccl.runtimes.limits import MSCCLPP_LIMITS, check_collective
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
        program.root = layout_of(self.schedule.demand, 1, False).root
        return program

    @cached_property
    def program_ps(self) -> int:
        """The time of the program, by an event simulation of its file."""
        schedule = self.schedule
        return estimate_ps(self.parsed, schedule.topology, schedule.demand.size_bytes, schedule.runtime)

    @property
    def program_us(self) -> float:
        """The time of the program in microseconds."""
        return ps_to_us(self.program_ps)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that is wrong with the program; none proves that it is right."""
        return tuple(interpret(self.parsed))


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
    chunks = layout_of(schedule.demand, 1, inplace)
    slots = layout_of(schedule.demand, execution.width, inplace)
    built = Builder(schedule, execution, chunks).build()
    written = write_plan(schedule, execution, slots, built, min_bytes, max_bytes)
    slot_bytes = -(-schedule.demand.size_bytes // written.chunks)
    scratch = written.scratch_chunks * slot_bytes * (2 if execution.packets else 1)
    return Program(schedule, written.data, inplace, written.threadblocks, written.operations, scratch, written.chunks)
