"""Symmetric schedules: lowered once for the GPU that stands for all, programs are those of all GPUs."""

from dataclasses import replace

import numpy as np
import pytest

import flowccl.export.program
from flowccl.demand.collectives import collective
from flowccl.export.lowering.uneven import buffer_bytes
from flowccl.export.program import Program, lower_program
from flowccl.export.proof.estimate import estimate_ps
from flowccl.methods.symmetric.on_runtimes import symmetric_on_runtime
from flowccl.problem import Problem
from flowccl.runtimes.machine import used_by
from flowccl.runtimes.profiles import PROFILES
from flowccl.schedule.compact import compact_form
from flowccl.schedule.files import load_schedule, save_schedule
from flowccl.schedule.generation.carrying import Carrier
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.machines import machine

MSCCLPP = PROFILES["mscclpp"]


def symmetric(name: str, kind: str, size: int = 9 << 18, chunks: int = 1, sms: int = 132) -> Schedule:
    """The first symmetric schedule of a collective for MSCCL++."""
    topology = used_by(machine(name), MSCCLPP, in_network=True)
    problem = Problem(topology, collective(kind, topology.num_gpus, size, chunks))
    steps = symmetric_on_runtime(problem, SearchContext.with_limit(5.0), Carrier(MSCCLPP, topology, sms))
    found = next(one for one in steps if one is not None)
    assert found is not None
    return found


def time_of_all(program: Program) -> int:
    """The time of the whole file, of which every GPU is simulated."""
    schedule = program.schedule
    return estimate_ps(program.parsed, schedule.topology, buffer_bytes(schedule.demand), schedule.runtime)


@pytest.mark.parametrize(
    ("name", "kind", "chunks", "inplace"),
    [
        ("dgx_h100:2", "allreduce", 2, False),
        ("dgx_h100:2", "allreduce", 1, True),
        ("dgx_h100:2", "alltoall", 1, False),
        ("dgx_h100:3", "allgather", 2, True),
        ("dgx_a100:2", "reduce_scatter", 1, False),
        ("torus:3x3", "allgather", 1, False),
        ("hypercube:3", "alltoall", 1, False),
    ],
)
def test_what_one_gpu_does_is_the_program_of_all(name, kind, chunks, inplace):
    program = lower_program(symmetric(name, kind, chunks=chunks), inplace=inplace)
    assert program.first is not None
    assert not program.findings
    assert program.program_ps == time_of_all(program)
    assert program.threadblocks == program.parsed.most_threadblocks
    assert program.operations == program.parsed.most_operations


def test_the_program_is_no_later_than_one_that_is_lowered_for_every_gpu(monkeypatch):
    schedule = symmetric("dgx_h100:2", "allreduce", chunks=4)
    program = lower_program(schedule)
    monkeypatch.setattr(flowccl.export.program, "orbits_of", lambda *arguments: None)
    assert program.program_ps <= lower_program(schedule).program_ps


def test_schedules_with_another_order_of_transfers_are_lowered_for_every_gpu():
    schedule = symmetric("dgx_h100:2", "allgather")
    order = np.arange(len(schedule))[::-1]
    columns = ("chunk", "route", "start_ps", "reduce", "message", "issuer", "receiver", "work_from_ps", "rate_GBps")
    turned = replace(schedule, **{name: getattr(schedule, name)[order] for name in columns})
    assert compact_form(turned) is None
    assert lower_program(turned).first is None


def test_a_damaged_image_is_no_compact_form(tmp_path):
    schedule = symmetric("dgx_h100:2", "allgather")
    start = schedule.start_ps.copy()
    start[-1] += 1
    assert compact_form(replace(schedule, start_ps=start)) is None
    save_schedule(schedule, tmp_path / "schedule.json")
    assert compact_form(load_schedule(tmp_path / "schedule.json")) is not None


def test_crowded_threadblocks_are_balanced_for_the_one_gpu(monkeypatch):
    schedule = symmetric("dgx_h100:2", "allreduce", chunks=8)
    written, tried = flowccl.export.program.write_plan, []

    def crowded(*arguments):
        tried.append(arguments)
        if len(tried) == 1:
            raise flowccl.export.program.CrowdedError("crowded")
        return written(*arguments)

    monkeypatch.setattr(flowccl.export.program, "write_plan", crowded)
    program = lower_program(schedule)
    assert program.first is not None
    assert not program.findings
