"""A schedule as a program of MSCCL++: lowered once, then kept, written, proved and timed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from flowccl.errors import InputError
from flowccl.export.formats.mscclpp_program import CrowdedError, WrittenPlan, repetition_of, write_plan
from flowccl.export.formats.read_mscclpp import parse_mscclpp
from flowccl.export.garbage import few_collections
from flowccl.export.lowering.balance import balanced
from flowccl.export.lowering.buffers import BufferLayout
from flowccl.export.lowering.build import Builder, Built
from flowccl.export.lowering.dependencies import Ordered, in_order
from flowccl.export.lowering.moves import check_ranks
from flowccl.export.lowering.orbits import Orbits, orbits_of
from flowccl.export.lowering.size import check_size
from flowccl.export.lowering.uneven import buffer_bytes, program_layout
from flowccl.export.proof.estimate import estimate_ps
from flowccl.export.proof.interpreter import interpret
from flowccl.export.proof.program import Finding, RuntimeProgram
from flowccl.export.proof.steps import OneGpu
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
    """The program of a schedule: the contents of its file, and what it needs on the GPU that needs the most.

    `write` makes the contents. Where GPU 0 stands for all others, `first` is a file in which only it does something.
    """

    schedule: Schedule
    write: Callable[[], bytes]
    inplace: bool
    threadblocks: int
    operations: int
    scratch_bytes: int
    chunks: int
    first: "tuple[bytes, OneGpu] | None" = None

    @cached_property
    def data(self) -> bytes:
        """The contents of its file."""
        return self.write()

    @cached_property
    def parsed(self) -> RuntimeProgram:
        """The program as it was read back from the contents of its file."""
        return self._parsed(self.data)

    @cached_property
    def program_ps(self) -> int:
        """The time of the program, by an event simulation of its file."""
        schedule, size = self.schedule, buffer_bytes(self.schedule.demand)
        if self.first is not None:
            data, one_gpu = self.first
            return estimate_ps(self._parsed(data), schedule.topology, size, schedule.runtime, one_gpu)
        return estimate_ps(self.parsed, schedule.topology, size, schedule.runtime)

    @property
    def program_us(self) -> float:
        """The time of the program in microseconds."""
        return ps_to_us(self.program_ps)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that is wrong with the program; none proves that it is right."""
        return tuple(interpret(self.parsed))

    def _parsed(self, data: bytes) -> RuntimeProgram:
        program = parse_mscclpp(data, "the program for mscclpp")
        program.root = program_layout(self.schedule.demand, 1, False).root
        return program


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
        receivers = 1 if protocol == "LL" else execution.receivers  # packets are read by one group
        schedule = _with_protocol(schedule, replace(execution, protocol=protocol, receivers=receivers))
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
    if inplace and execution.loops > 1 and schedule.demand.collective == "alltoall":  # arrivals stay in scratch
        raise InputError(
            "mscclpp: an alltoall whose threadblocks repeat their operations does not run in place; export it without "
            "--inplace, or synthesize it with fewer --chunks"
        )
    part = first_part(schedule) if execution.loops > 1 else schedule
    chunks = program_layout(part.demand, 1, inplace)
    slots = program_layout(part.demand, execution.slots, inplace)
    with few_collections():
        found = _of_orbits(schedule, chunks, slots, min_bytes, max_bytes)
        if found is not None:
            return found
        check_size(part, execution)
        builder = Builder(part, execution, chunks)
        nodes = len(part.topology.nodes)
        try:
            built = builder.build()
            repetition = repetition_of(schedule, part, built) if execution.loops > 1 else None
            ordered = in_order(built, nodes, overwrites=inplace)
            written = write_plan(part, execution, slots, built, ordered, min_bytes, max_bytes, repetition)
        except CrowdedError:
            if execution.loops > 1:
                raise
            spread = balanced(schedule, builder.messages, execution, builder.posters)
            built = Builder(spread, execution, chunks).build()
            ordered = in_order(built, nodes, overwrites=inplace)
            written = write_plan(schedule, execution, slots, built, ordered, min_bytes, max_bytes)
    return _program(schedule, written, lambda: written.data, inplace=inplace)


def _of_orbits(
    schedule: Schedule, chunks: BufferLayout, slots: BufferLayout, min_bytes: int, max_bytes: int
) -> Program | None:
    """Return the program of a symmetric schedule, lowered for one GPU; None where all GPUs must be lowered."""
    execution = schedule.execution
    assert execution is not None
    orbits = orbits_of(schedule, execution, slots)
    if orbits is None:
        return None
    try:
        made = _of_one(orbits, execution, chunks, slots, min_bytes, max_bytes)
    except InputError:  # threadblocks that are chosen for each GPU may do
        return None
    if made is None:
        return None
    orbits, built, ordered, first, written = made

    def write() -> bytes:
        check_size(schedule, execution)
        ranks = np.arange(slots.demand.num_gpus, dtype=np.int64)
        with few_collections():
            copies = orbits.copied(built, ordered, slots, schedule, ranks)
            return write_plan(schedule, execution, slots, *copies, min_bytes, max_bytes).data

    one_gpu = orbits.one_gpu(first)
    one = None if one_gpu is None else (written.data, one_gpu)
    return _program(schedule, written, write, inplace=slots.inplace, first=one)


def _of_one(
    orbits: Orbits, execution: Execution, chunks: BufferLayout, slots: BufferLayout, min_bytes: int, max_bytes: int
) -> tuple[Orbits, Built, Ordered, Built, WrittenPlan] | None:
    """Return what the one GPU does, and what GPU 0 does, with a plan of it alone; None where it cannot be copied."""
    try:
        return _written_of_one(orbits, execution, chunks, slots, min_bytes, max_bytes)
    except CrowdedError:
        compact, posters = orbits.compact, Builder(orbits.compact.one, execution, chunks, orbits).posters
        spread = balanced(compact.one, orbits.messages, execution, posters)
        orbits = Orbits(replace(compact, one=spread))
        return _written_of_one(orbits, execution, chunks, slots, min_bytes, max_bytes)


def _written_of_one(
    orbits: Orbits, execution: Execution, chunks: BufferLayout, slots: BufferLayout, min_bytes: int, max_bytes: int
) -> tuple[Orbits, Built, Ordered, Built, WrittenPlan] | None:
    built = Builder(orbits.compact.one, execution, chunks, orbits).build()
    if not orbits.can_copy(built, slots):
        return None
    ordered = in_order(built, 1, overwrites=slots.inplace)
    first, steps = orbits.copied(built, ordered, slots, orbits.schedule, np.zeros(1, dtype=np.int64))
    written = write_plan(orbits.schedule, execution, slots, first, steps, min_bytes, max_bytes)
    return orbits, built, ordered, first, written


def _program(
    schedule: Schedule,
    written: WrittenPlan,
    write: Callable[[], bytes],
    *,
    inplace: bool,
    first: tuple[bytes, OneGpu] | None = None,
) -> Program:
    slot_bytes = -(-buffer_bytes(schedule.demand) // written.chunks)
    is_packets = schedule.execution is not None and schedule.execution.packets
    scratch = written.scratch_chunks * slot_bytes * (2 if is_packets else 1)
    size = written.threadblocks, written.operations, scratch, written.chunks
    return Program(schedule, write, inplace, *size, first)
