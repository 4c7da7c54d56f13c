"""MSCCL++ plans with operations of a switch (NVLS): their contents, their proof, and the findings when damaged."""

import json
from functools import cache
from typing import Any

import pytest

from flowccl.export import ExportOptions, make
from flowccl.export.formats.read_mscclpp import parse_mscclpp
from flowccl.export.proof.interpreter import interpret
from flowccl.lowered import lower_for
from flowccl.run.replay import replay
from flowccl.runtimes.profiles import PROFILES
from flowccl.schedule.schedule import Schedule
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine

CASES = [
    ("dgx_h100:1", "allreduce", {"glres"}),
    ("dgx_h100:1", "allgather", {"gstore"}),
    ("dgx_h100:2", "allreduce", {"glres", "gstore"}),
    ("dgx_h100:2", "allgather", {"gstore"}),
]


@cache
def switched(name: str, collective: str, chunks: int = 1) -> Schedule:
    return synthesize(
        machine(name), collective, 1 << 20, method="nvls", chunks=chunks, steps=3, runtime="mscclpp"
    ).schedule


def plan(name: str, collective: str, **options: Any) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(make(switched(name, collective), "mscclpp", ExportOptions(**options))[0])
    return value


def kinds(value: dict[str, Any]) -> set[str]:
    return {finding.kind for finding in interpret(parse_mscclpp(json.dumps(value).encode(), "plan.json"))}


@pytest.mark.parametrize(("name", "collective", "operations"), CASES)
def test_plans_are_proved_and_as_early_as_their_schedules(name: str, collective: str, operations: set[str]) -> None:
    value = plan(name, collective)
    for gpu in value["gpus"]:
        host = gpu["id"] // 8 * 8
        groups = [c["rank_groups"] for c in gpu["channels"] if c["channel_type"] == "switch"]
        assert all(group == [{"size": 8, "ranks": list(range(host, host + 8))}] for group in groups)
    program = parse_mscclpp(json.dumps(value).encode(), "plan.json")
    assert {operation.name for operation in program.operations if operation.group} == operations
    assert interpret(program) == []
    assert replay(program) == []
    schedule = switched(name, collective)
    assert lower_for(schedule, PROFILES["mscclpp"]).program_us == pytest.approx(schedule.finish_us, rel=0.01)


def test_every_gpu_moves_its_own_block_once_more() -> None:
    """Each of 8 GPUs issues an eighth: every port carries 9/8 of the bytes; signals take 1.2 us before and after."""
    found = synthesize(machine("dgx_h100:1"), "allreduce", 1 << 28, method="nvls", chunks=1, steps=1, runtime="mscclpp")
    assert found.schedule.finish_us == pytest.approx((1 << 28) * 9 / 8 / 450e3 + 1.2 + 0.6 + 1.2, rel=0.001)


@pytest.mark.parametrize("name", ["dgx_h100:1", "dgx_h100:2"])
def test_damage_is_found(name: str) -> None:
    value = plan(name, "allreduce")
    for gpu in value["gpus"]:
        for block in gpu["threadblocks"]:
            for operation in block["ops"]:
                if operation["name"] == "glres":
                    operation["src_buff"][0]["index"] += 1
                    assert kinds(value) & {"result", "race", "bounds", "group"}
                    return
    raise AssertionError("no glres in the plan")
