"""MSCCL++ plans of collectives inside a switch: their contents, their proof, and the findings when they are damaged."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from flowccl.errors import InputError
from flowccl.export import ExportOptions, make
from flowccl.export.formats.read_mscclpp import parse_mscclpp
from flowccl.export.lowering.in_network import switch_moves
from flowccl.export.lowering.plan import make_plan
from flowccl.export.lowering.plan_program import program_of
from flowccl.export.proof.estimate import estimate_ps
from flowccl.export.proof.interpreter import interpret
from flowccl.run.replay import replay
from flowccl.runtimes.limits import LIMITS
from flowccl.runtimes.machine import nvls_groups
from flowccl.schedule.schedule import Schedule
from flowccl.synthesis import synthesize
from flowccl.topology.hardware import dgx_h100
from flowccl.topology.machines import machine


@cache
def switched(collective: str, chunks: int = 1, name: str = "dgx_h100:1", runtime: str = "mscclpp") -> Schedule:
    topology = machine(name)
    found = synthesize(topology, collective, 1 << 20, method="in-network", chunks=chunks, steps=3, runtime=runtime)
    return found.schedule


def plan(collective: str, name: str = "dgx_h100:1", **options: Any) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(make(switched(collective, name=name), "mscclpp", ExportOptions(**options))[0])
    return value


def issuing(value: dict[str, Any], rank: int = 0) -> list[dict[str, Any]]:
    """The threadblocks that issue operations of the switch."""
    return [
        block
        for block in value["gpus"][rank]["threadblocks"]
        if any(op["name"] in ("glres", "gstore") for op in block["ops"])
    ]


def names(block: dict[str, Any]) -> list[str]:
    return [op["name"] for op in block["ops"]]


def kinds(value: dict[str, Any]) -> set[str]:
    return {finding.kind for finding in interpret(parse_mscclpp(json.dumps(value).encode(), "plan.json"))}


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(("collective", "operation"), [("allreduce", "glres"), ("allgather", "gstore")])
def test_plans(collective: str, operation: str, inplace: bool) -> None:
    value = plan(collective, inplace=inplace, instances=2)
    assert [names(block) for block in issuing(value)] == [["wait", "nop", operation, "nop", "signal"]] * 2
    assert [len(gpu["threadblocks"]) for gpu in value["gpus"]] == [2 * 8] * 8
    channels = [channel for channel in value["gpus"][3]["channels"] if channel["channel_type"] == "switch"]
    ranks = [{"size": 8, "ranks": list(range(8))}]
    buffers = {("allreduce", False): ["i", "o"], ("allreduce", True): ["i"]}.get((collective, inplace), ["o"])
    assert [(c["buffer_type"], c["rank_groups"]) for c in channels] == [(buffer, ranks) for buffer in buffers]
    program = parse_mscclpp(json.dumps(value).encode(), "plan.json")
    assert interpret(program) == []
    assert replay(program) == []


def test_issuers_rotate() -> None:
    schedule = switched("allreduce", 2)
    moves, _ = switch_moves(schedule, nvls_groups(schedule.topology))
    assert sorted((move.chunk, move.src) for move in moves) == [(chunk, chunk // 2) for chunk in range(16)]


@pytest.mark.parametrize(("collective", "factor", "waits"), [("allreduce", 9 / 8, 3), ("allgather", 1, 2)])
def test_estimate(collective: str, factor: float, waits: int) -> None:
    """All blocks cross every link, with `glres` the own block again; two signals, and a load, take 0.7 us each."""
    size = 64 << 20
    topology = machine("dgx_h100:1")
    program = parse_mscclpp(json.dumps(plan(collective)).encode(), "plan.json")
    expected_us = size * factor / 450e3 + waits * 0.7
    assert estimate_ps(program, topology, size) / 1e6 == pytest.approx(expected_us, rel=0.001)


def test_one_issuer_moves_everything_twice() -> None:
    """A GPU that issues all operations has twice the data on its link."""
    value = plan("allreduce")
    operation = next(op for op in issuing(value)[0]["ops"] if op["name"] == "glres")
    operation["src_buff"][0]["size"] = operation["dst_buff"][0]["size"] = 8
    for rank in range(1, 8):
        ops = issuing(value, rank)[0]["ops"]
        ops[:] = [op for op in ops if op["name"] not in ("glres",)]
    program = parse_mscclpp(json.dumps(value).encode(), "plan.json")
    size = 64 << 20
    assert estimate_ps(program, machine("dgx_h100:1"), size) / 1e6 == pytest.approx(2 * size / 450e3 + 2.1, rel=0.001)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(
    ("name", "collective", "operations"),
    [
        ("dgx_h100:1", "reduce_scatter", {"glres"}),
        ("dgx_h100:2", "reduce_scatter", {"glres"}),
        ("dgx_h100:2", "allgather", {"gstore"}),
        ("dgx_h100:2", "allreduce", {"glres", "gstore"}),
        pytest.param("dgx_h100:4", "allreduce", {"glres", "gstore"}, marks=pytest.mark.slow),
    ],
)
def test_hosts(name: str, collective: str, operations: set[str], inplace: bool) -> None:
    value = plan(collective, name, inplace=inplace)
    for gpu in value["gpus"]:
        host = gpu["id"] // 8 * 8
        groups = [c["rank_groups"] for c in gpu["channels"] if c["channel_type"] == "switch"]
        assert all(group == [{"size": 8, "ranks": list(range(host, host + 8))}] for group in groups)
    program = parse_mscclpp(json.dumps(value).encode(), "plan.json")
    assert {operation.name for operation in program.operations if operation.group} == operations
    assert interpret(program) == []
    assert replay(program) == []
    if not inplace:
        schedule = switched(collective, name=name)
        assert replay(program_of(make_plan(schedule, LIMITS["mscclpp"]), LIMITS["mscclpp"])) == []


def test_a_runtime_uses_the_switch_where_it_is_faster() -> None:
    for collective, method in (("allreduce", "in-network"), ("alltoall", "direct")):
        found = synthesize(machine("dgx_h100:1"), collective, 1 << 16, steps=4, runtime="mscclpp")
        assert found.lowered is not None
        assert (found.schedule.method == method) == (collective == "allreduce")
        assert found.bound.us <= found.schedule.finish_us
    plain = synthesize(dgx_h100(1, nvls=False), "allreduce", 1 << 16, steps=4, runtime="mscclpp")
    fast = synthesize(machine("dgx_h100:1"), "allreduce", 1 << 16, steps=4, runtime="mscclpp")
    assert fast.lowered is not None
    assert plain.lowered is not None
    assert fast.lowered.program_ps < plain.lowered.program_ps / 2


def _drop(name: str, which: int) -> Callable[[dict[str, Any]], None]:
    def damage(value: dict[str, Any]) -> None:
        ops = issuing(value, 2)[0]["ops"] if which >= 0 else value["gpus"][2]["threadblocks"][-1]["ops"]
        ops.remove([op for op in ops if op["name"] == name][which])

    return damage


def _shrink(value: dict[str, Any]) -> None:
    for gpu in value["gpus"]:
        for channel in gpu["channels"]:
            if channel["channel_type"] == "switch":
                channel["rank_groups"][0]["ranks"] = channel["rank_groups"][0]["ranks"][:-1]


def _differ(value: dict[str, Any]) -> None:
    channel = value["gpus"][4]["channels"][-1]
    channel["rank_groups"][0]["ranks"] = list(range(1, 8))


def _shift(value: dict[str, Any]) -> None:
    operation = next(op for op in issuing(value, 1)[0]["ops"] if op["name"] in ("glres", "gstore"))
    operation["dst_buff"][0]["index"] += 1


@pytest.mark.parametrize("name", ["dgx_h100:1", "dgx_h100:2"])
@pytest.mark.parametrize("collective", ["allreduce", "allgather"])
@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (_drop("wait", 0), "entry"),
        (_drop("wait", -1), "pair"),
        (_drop("signal", 0), "pair"),
        (_drop("nop", 0), "sync"),
        (_shrink, "group"),
        (_differ, "group"),
        (_shift, "result"),
    ],
)
def test_damage_is_found(name: str, collective: str, damage: Callable[[dict[str, Any]], None], kind: str) -> None:
    value = plan(collective, name)
    damage(value)
    found = kinds(value)
    assert kind in found or (kind == "result" and "race" in found)


@pytest.mark.parametrize("target", ["msccl", "executor", "rccl"])
def test_other_runtimes_name_the_option(target: str) -> None:
    with pytest.raises(InputError) as caught:
        make(switched("allreduce"), target, ExportOptions())
    assert str(caught.value) == (
        f"transfer 0 (chunk 0) reduces 7 inputs inside a switch, which {target} cannot do; "
        f"synthesize with --for {target}, which uses only what the runtime has"
    )


def test_mscclpp_names_the_option_where_the_machine_has_no_nvls() -> None:
    schedule = switched("allreduce", runtime="ideal")
    nodes = tuple(replace(node, model="A100") if node.kind == "gpu" else node for node in schedule.topology.nodes)
    with pytest.raises(InputError, match=r"inside a switch, which mscclpp cannot do; synthesize with --for mscclpp, "):
        make(replace(schedule, topology=replace(schedule.topology, nodes=nodes)), "mscclpp", ExportOptions())


def test_a_machine_without_nvls_sends_separately() -> None:
    found = synthesize(machine("dgx2:1"), "allgather", 1 << 20, method="direct", chunks=1, steps=1)
    assert nvls_groups(found.schedule.topology) == {}
    assert nvls_groups(machine("gb200_nvl72:1")) == {}  # more GPUs than a threadblock has channels
