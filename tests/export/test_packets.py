"""MSCCL++ plans with packets (protocol LL): their contents, their proof, their findings, and when they are chosen."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flowccl.cli import main
from flowccl.errors import FileError, InputError
from flowccl.run.replay import replay
from flowccl.runtimes.limits import LIMITS
from flowccl.schedule.files import save_schedule
from flowccl.schedule.schedule import Schedule
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine
from tests.export.cases import findings, kinds, made, plan_value, random_schedule, read, schedule_of
from tests.gpu.predict import H200_COSTS, predict_call_us

COLLECTIVES = ("allgather", "allreduce", "alltoall", "reduce_scatter", "broadcast")
SIZE = 65536


def small(name: str, collective: str, chunks: int = 1) -> Schedule:
    return schedule_of(name, collective, chunks, SIZE)


def operations(plan: Any, name: str) -> list[dict[str, Any]]:
    return [op for gpu in plan["gpus"] for block in gpu["threadblocks"] for op in block["ops"] if op["name"] == name]


# -- proofs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("name", ["ring:4", "full:4", pytest.param("dgx1", marks=pytest.mark.slow)])
def test_every_collective_is_proved_and_runs_on_numbers(name: str, collective: str, inplace: bool) -> None:
    if inplace and collective == "broadcast":
        with pytest.raises(InputError, match="a broadcast does not run in place"):
            made(small(name, collective, 2), "mscclpp", protocol="LL", inplace=inplace)
        return
    data = made(small(name, collective, 2), "mscclpp", protocol="LL", inplace=inplace)
    program = read(data, "mscclpp")
    assert findings(data, "mscclpp") == []
    assert [found for seed in range(2) for found in replay(program, seed=seed)] == []
    assert program.packets
    assert predict_call_us(program, SIZE, H200_COSTS) > H200_COSTS.start_us


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10_000), inplace=st.booleans())
def test_random_schedules_are_proved(seed: int, inplace: bool) -> None:
    schedule, root = random_schedule(seed)
    assume(schedule.demand.collective in LIMITS["mscclpp"].collectives)
    try:
        data = made(schedule, "mscclpp", protocol="LL", inplace=inplace)
    except InputError as error:
        known = ("are for GPUs of one host", "serves only the size of its schedule", "does not run in place")
        if not any(words in str(error) for words in known):
            raise
        return
    assert findings(data, "mscclpp", root) == []
    program = read(data, "mscclpp", root)
    assert replay(program, seed=seed) == []


def test_partial_sums_are_after_all_packets_and_fix_the_size() -> None:
    plan = plan_value(small("ring:4", "reduce_scatter"), protocol="LL")
    assert (plan["min_message_size"], plan["max_message_size"]) == (SIZE, SIZE)
    for gpu in plan["gpus"]:
        ops = [op for block in gpu["threadblocks"] for op in block["ops"]]
        packets = {op["src_buff"][-1]["index"] for op in ops if op["name"] in ("repkt", "upkt")}
        plain = {op["dst_buff"][0]["index"] for op in ops if op["name"] == "repkt" and op["dst_buff"][0]["type"] == "s"}
        assert packets == set(range(len(packets)))
        assert not plain or min(plain) == 2 * len(packets)
        assert max(plain, default=0) < 2 * gpu["scratch_chunks"]


def test_scratch_is_twice_the_bytes() -> None:
    program = read(made(small("full:4", "allgather"), "mscclpp", protocol="LL"), "mscclpp")
    assert program.scratch_bytes(SIZE) == 3 * 2 * SIZE // 4


# -- what is refused ------------------------------------------------------------------------------------------------


def test_packets_are_for_one_host() -> None:
    with pytest.raises(InputError, match=r"packets \(--proto LL\) are for GPUs of one host; use --proto Simple"):
        made(small("rail:2x2", "allgather"), "mscclpp", protocol="LL")


def test_sizes_of_plans_with_partial_sums() -> None:
    schedule = small("ring:4", "reduce_scatter")
    with pytest.raises(InputError, match=r"keeps data in scratch, so it serves only the size of its schedule, 65"):
        made(schedule, "mscclpp", protocol="LL", max_bytes=1024)
    odd = schedule_of("ring:4", "reduce_scatter", 1, 1000)
    with pytest.raises(InputError, match="and 1000 bytes is no multiple of 64 bytes"):
        made(odd, "mscclpp", protocol="LL")


def test_malformed_packets() -> None:
    plan = plan_value(small("full:2", "allgather"), protocol="LL")
    operations(plan, "upkt")[0]["src_buff"][0]["type"] = "i"
    with pytest.raises(FileError, match="packets must be in scratch"):
        findings(json.dumps(plan).encode(), "mscclpp")
    plan = plan_value(small("full:2", "allgather"), protocol="LL")
    plan["gpus"][0]["remote_buffers"][0]["type"] = "o"
    with pytest.raises(FileError, match="packets must be put into scratch, over a memory channel"):
        findings(json.dumps(plan).encode(), "mscclpp")
    plan["protocol"] = "LL128"
    with pytest.raises(FileError, match="plan: protocol must be Simple or LL, got 'LL128'"):
        findings(json.dumps(plan).encode(), "mscclpp")


# -- damage ---------------------------------------------------------------------------------------------------------

Damage = Callable[[Any], None]


def drop(*names: str) -> Damage:
    """Remove the first operation with each of the names, from the threadblock that has it."""

    def change(plan: Any) -> None:
        for name in names:
            blocks = [block["ops"] for gpu in plan["gpus"] for block in gpu["threadblocks"]]
            ops = next(ops for ops in blocks if any(op["name"] == name for op in ops))
            ops.remove(next(op for op in ops if op["name"] == name))

    return change


def without_release(plan: Any) -> None:
    """Remove all signals and waits: the next call may write packets that nobody has read."""
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            block["ops"] = [op for op in block["ops"] if op["name"] not in ("signal", "wait")]


def same_target(plan: Any) -> None:
    blocks = [block["ops"] for gpu in plan["gpus"] for block in gpu["threadblocks"]]
    puts = [[op for op in ops if op["name"] == "ppkt"] for ops in blocks]
    first, second = next(found for found in puts if len(found) > 1)[:2]
    first["dst_buff"][0]["index"] = second["dst_buff"][0]["index"]


def swapped(plan: Any) -> None:
    ops = operations({"gpus": plan["gpus"][:1]}, "upkt")
    first, second = ops[0]["src_buff"][0], ops[1]["src_buff"][0]
    first["index"], second["index"] = second["index"], first["index"]


def over_packets(plan: Any) -> None:
    op = next(op for op in operations(plan, "repkt") if op["dst_buff"][0]["type"] == "s")
    op["dst_buff"][0]["index"] = 0


@pytest.mark.parametrize(
    ("name", "collective", "damage", "kind"),
    [
        ("ring:4", "allgather", drop("ppkt"), {"pair", "result", "bounds"}),
        ("ring:4", "allgather", drop("upkt"), {"result", "garbage"}),
        ("ring:4", "allreduce", drop("repkt"), {"result"}),
        ("ring:4", "allgather", drop("signal"), {"pair"}),
        ("ring:4", "allgather", without_release, {"entry"}),
        ("full:4", "allreduce", drop("sem_release"), {"pair"}),
        ("full:4", "allreduce", drop("sem_acquire", "sem_release"), {"race", "pair"}),
        ("ring:4", "allgather", drop("nop"), {"sync"}),
        ("ring:4", "allgather", same_target, {"packet"}),
        ("full:4", "allgather", swapped, {"result", "race"}),
        ("ring:4", "reduce_scatter", over_packets, {"packet"}),
        ("ring:4", "reduce_scatter", lambda plan: plan.update(max_message_size=2 * SIZE), {"packet"}),
        ("ring:4", "allgather", lambda plan: plan.update(protocol="Simple"), {"packet"}),
        ("ring:4", "allgather", lambda plan: plan["gpus"][2].update(scratch_chunks=1), {"bounds"}),
    ],
)
def test_damage_is_found(name: str, collective: str, damage: Damage, kind: set[str]) -> None:
    plan = plan_value(small(name, collective), protocol="LL")
    damage(plan)
    assert kinds(json.dumps(plan).encode(), "mscclpp") & kind


# -- the choice -----------------------------------------------------------------------------------------------------


@cache
def made_for(size: int) -> Schedule:
    found = synthesize(machine("full:4"), "alltoall", size, method="greedy", chunks=1, steps=1)
    return found.schedule


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, out = str(tmp_path / "s.json"), str(tmp_path / "plan.json")
    save_schedule(made_for(4096), saved)
    assert main(["export", saved, "--to", "mscclpp", "--sms", "16", "--proto", "auto", "--out", out]) == 0
    assert "  protocol      LL: packets with flags, twice the bytes on links and in scratch" in capsys.readouterr().out
    assert main(["check-export", out, "--to", "mscclpp", "--numbers"]) == 0
    assert "PROVED: alltoall on 4 GPUs" in capsys.readouterr().out
    assert main(["export", saved, "--to", "mscclpp", "--sms", "16", "--proto", "ll", "--json", "--out", out]) == 0
    assert json.loads(capsys.readouterr().out)["packets"] is True
    assert main(["export", saved, "--to", "mscclpp", "--proto", "LL128", "--out", out]) == 2
    assert "mscclpp: the protocol must be Simple or LL, got 'LL128'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["export", saved, "--to", "mscclpp", "--proto", "fast", "--out", out])
    assert "must be auto, Simple, LL, LL128, got 'fast'" in capsys.readouterr().err
