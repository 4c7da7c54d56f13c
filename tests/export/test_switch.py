"""MSCCL++ plans of collectives inside a switch: their contents, their proof, and the findings when they are damaged."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from flowccl.errors import InputError
from flowccl.export import ExportOptions, make
from flowccl.export.formats.read_mscclpp import parse_mscclpp
from flowccl.export.lowering.in_network import switch_issuers
from flowccl.export.proof.estimate import estimate_ps
from flowccl.export.proof.interpreter import interpret
from flowccl.run.replay import replay
from flowccl.schedule.schedule import Schedule
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine


@cache
def switched(collective: str, chunks: int = 2) -> Schedule:
    method = "in-network" if collective == "allreduce" else "greedy"
    found = synthesize(machine("dgx_h100:1"), collective, 1 << 20, method=method, chunks=chunks, steps=3)
    return found.schedule


def plan(collective: str, **options: Any) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(make(switched(collective), "mscclpp", ExportOptions(**options))[0])
    return value


def names(value: dict[str, Any], rank: int = 0) -> list[str]:
    return [op["name"] for op in value["gpus"][rank]["threadblocks"][0]["ops"]]


def kinds(value: dict[str, Any]) -> set[str]:
    return {finding.kind for finding in interpret(parse_mscclpp(json.dumps(value).encode(), "plan.json"))}


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(("collective", "operation"), [("allreduce", "glres"), ("allgather", "gstore")])
def test_plans(collective: str, operation: str, inplace: bool) -> None:
    value = plan(collective, inplace=inplace, instances=2)
    assert names(value) == ["signal", "wait", "nop", operation, "nop", "signal", "wait"]
    assert [len(gpu["threadblocks"]) for gpu in value["gpus"]] == [2] * 8
    channels = [channel for channel in value["gpus"][3]["channels"] if channel["channel_type"] == "switch"]
    ranks = [{"size": 8, "ranks": list(range(8))}]
    buffers = {("allreduce", False): ["o", "i"], ("allreduce", True): ["i"]}.get((collective, inplace), ["o"])
    assert [(c["buffer_type"], c["rank_groups"]) for c in channels] == [(buffer, ranks) for buffer in buffers]
    program = parse_mscclpp(json.dumps(value).encode(), "plan.json")
    assert interpret(program) == []
    assert replay(program) == []


def test_issuers_rotate() -> None:
    issuers = switch_issuers(switched("allreduce"))
    assert issuers is not None
    assert sorted(issuers) == [(chunk, chunk // 2) for chunk in range(16)]


def test_estimate() -> None:
    """All blocks cross every link, and the own block again; two signals and a load take 0.7 us each."""
    size = 64 << 20
    topology = machine("dgx_h100:1")
    program = parse_mscclpp(json.dumps(plan("allreduce")).encode(), "plan.json")
    expected_us = size * 9 / 8 / 450e3 + 3 * 0.7
    assert estimate_ps(program, topology, size) / 1e6 == pytest.approx(expected_us, rel=0.001)


def _drop(name: str, which: int) -> Callable[[dict[str, Any]], None]:
    def damage(value: dict[str, Any]) -> None:
        ops = value["gpus"][2]["threadblocks"][0]["ops"]
        ops.remove([op for op in ops if op["name"] == name][which])

    return damage


def _shrink(value: dict[str, Any]) -> None:
    for gpu in value["gpus"]:
        for channel in gpu["channels"]:
            if channel["channel_type"] == "switch":
                channel["rank_groups"][0]["ranks"] = list(range(7))


def _differ(value: dict[str, Any]) -> None:
    channel = value["gpus"][4]["channels"][-1]
    channel["rank_groups"][0]["ranks"] = list(range(1, 8))


def _shift(value: dict[str, Any]) -> None:
    operation = next(op for op in value["gpus"][1]["threadblocks"][0]["ops"] if op["name"] in ("glres", "gstore"))
    operation["dst_buff"][0]["index"] += 1


@pytest.mark.parametrize("collective", ["allreduce", "allgather"])
@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (_drop("wait", 0), "entry"),
        (_drop("wait", 1), "pair"),
        (_drop("signal", 1), "pair"),
        (_drop("nop", 0), "sync"),
        (_shrink, "group"),
        (_differ, "group"),
        (_shift, "result"),
    ],
)
def test_damage_is_found(collective: str, damage: Callable[[dict[str, Any]], None], kind: str) -> None:
    value = plan(collective)
    damage(value)
    found = kinds(value)
    assert kind in found or (kind == "result" and "race" in found)


def test_other_runtimes_name_the_option() -> None:
    with pytest.raises(InputError, match=r"inside a switch; this runtime only sends .* synthesize with --for RUNTIME"):
        make(switched("allreduce"), "msccl", ExportOptions())


def test_a_machine_without_nvls_sends_separately() -> None:
    found = synthesize(machine("dgx2:1"), "allgather", 1 << 20, method="direct", chunks=1, steps=1)
    assert switch_issuers(found.schedule) is None
