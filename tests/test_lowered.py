"""Synthesis for a runtime: message costs in the timing, limits as constraints, programs compared."""

import json
from math import inf

import pytest

from flowccl import load_schedule, lowered, save_schedule, synthesize, verify
from flowccl.cli import main
from flowccl.export.formats.mscclpp_program import CrowdedError
from flowccl.lowered import loadable, lower_for
from flowccl.runtimes.profiles import PROFILES
from flowccl.topology.machines import machine
from tests.topology.test_trunks import dumbbell

MSCCLPP = PROFILES["mscclpp"]


def test_two_gpus_by_hand():
    """1 MiB halves over a link of 25 GB/s: overhead 0.6 us, bytes 20.97 us, latency 0.7 us, signal 0.5 us."""
    result = synthesize(machine("ring:2"), "allgather", 2**20, chunks=1, runtime="mscclpp", sms=108, time_limit_s=2)
    assert result.schedule.finish_us == pytest.approx(0.6 + 2**19 / 25_000 + 0.7 + 0.5, abs=1e-3)
    assert result.bound.us == pytest.approx(result.schedule.finish_us - 0.5, abs=1e-3)  # packets need no signal
    assert result.lowered is not None
    assert result.lowered.program_us == pytest.approx(result.schedule.finish_us, rel=0.01)


def test_more_chunks_pay_less_where_messages_cost():
    ideal = synthesize(machine("dgx1"), "allgather", 2**18, gap=0, lean=0, steps=60)
    real = synthesize(machine("dgx1"), "allgather", 2**18, runtime="mscclpp", steps=20)
    assert len(real.schedule) < len(ideal.schedule)
    assert real.lowered is not None
    costly = synthesize(machine("dgx1"), "allgather", 2**18, runtime="msccl", steps=20)
    assert costly.schedule.finish_us > real.schedule.finish_us


def test_chunks_are_multiples_of_16_bytes_and_the_size_is_raised():
    result = synthesize(machine("torus:4x4"), "allgather", 1_000_000, runtime="mscclpp", sms=108, steps=10)
    assert result.schedule.demand.size_bytes == 1_007_616
    assert not (result.schedule.demand.chunk_bytes % 16).any()


def test_the_file_names_the_profile_and_verifies_with_its_costs(tmp_path):
    result = synthesize(machine("dgx1"), "allgather", 2**18, runtime="mscclpp", steps=5)
    path = tmp_path / "one.json"
    save_schedule(result.schedule, path)
    again = load_schedule(path)
    assert again.runtime == MSCCLPP
    assert again == result.schedule
    assert not verify(again)
    assert json.loads(path.read_text())["runtime"]["costs"]["nvlink"]["overhead_us"] == 0.6


def test_switches_forward_only_on_a_runtime():
    result = synthesize(machine("dgx2:1"), "allgather", 2**18, runtime="msccl", steps=5)
    assert not result.schedule.topology.copies[16:].any()
    assert "msccl" in loadable(result.schedule, 80)


def test_messages_that_do_not_fit_into_threadblocks_are_scheduled_again_with_fewer_for_each(monkeypatch):
    """A threadblock has 64 operations, of which the schedule counts fewer than the program may need."""
    schedule = synthesize(machine("dgx1"), "allgather", 2**18, chunks=8, runtime="mscclpp", sms=8, steps=1).schedule
    tried = []

    def crowded(one, *rest):
        tried.append(one)
        if len(tried) < 4:
            raise CrowdedError("operations per threadblock: 65 needed, at most 64")
        return lower_for(one, *rest)

    monkeypatch.setattr(lowered, "lower_for", crowded)
    again, program = lowered.lower_spread_out(schedule, MSCCLPP, 8, lambda: inf)
    assert verify(again) == []
    assert again is tried[-1] is not schedule
    assert program.operations <= MSCCLPP.limits.steps
    tried.clear()
    with pytest.raises(CrowdedError):
        lowered.lower_spread_out(schedule, MSCCLPP, 8, lambda: 0.0)
    assert len(tried) == 1


@pytest.mark.parametrize("sms", [2, 8])
def test_a_program_never_has_more_threadblocks_than_sms(sms):
    """A threadblock serves several peers; it used to serve one, and 7 peers did not fit in fewer than 7."""
    found = synthesize(machine("dgx1"), "alltoall", 2**18, runtime="mscclpp", sms=sms, steps=5)
    assert found.lowered is not None
    assert found.lowered.threadblocks <= sms
    assert found.lowered.program_us == pytest.approx(found.schedule.finish_us, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "dgx1 allgather --size 1MB --for nccl",
            "flowccl: error: unknown runtime 'nccl'; nearest is \"rccl\"; "
            "known runtimes: ideal, mscclpp, msccl, executor, rccl",
        ),
        (
            "dgx1 gather --size 1MB --for mscclpp",
            "flowccl: error: mscclpp does not support gather; "
            "it supports allgather, alltoall, alltoallv, allreduce, broadcast, reduce_scatter",
        ),
        (
            "ring:4 allgather --size 1MB --for mscclpp",
            "flowccl: error: the machine does not name its GPU model, so the number of SMs is not known; give it with "
            "--sms, or write a model in the topology file (V100, A100, H100, H200, B200, GB200, MI250, MI300X)",
        ),
    ],
)
def test_bad_input(arguments, message, capsys):
    assert main(["synth", *arguments.split()]) == 2
    assert capsys.readouterr().err.strip() == message


def test_json_names_the_runtimes(capsys):
    assert (
        main(
            ["synth", "dgx1", "allgather", "--size", "256KiB", "--for", "mscclpp", "--steps", "5", "--json", "--quiet"]
        )
        == 0
    )
    value = json.loads(capsys.readouterr().out)
    assert value["runtime"] == "mscclpp"
    assert value["program_us"] >= value["finish_us"] * 0.999
    assert value["loss"] == pytest.approx(value["program_us"] / value["finish_us"] - 1)
    assert set(value["runtimes"]) >= {"mscclpp", "msccl"}


def test_schedules_are_not_lowered_for_json_after_the_time_limit(capsys, monkeypatch):
    monkeypatch.setattr("flowccl.commands.synth._LOWERED_S", 1e6)
    command = ["synth", "dgx1", "allgather", "--size", "256KiB", "--method", "direct", "--chunks", "1", "--json"]
    assert main([*command, "--quiet"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["transfers"] == 56
    assert set(value["runtimes"]) >= {"mscclpp", "msccl"}
    assert value["runtimes"]["msccl"] == {"left_out": "lowering takes about 56000000.0 s"}


def test_an_in_network_plan_that_does_not_fit_the_sms_is_left_out() -> None:
    """NVLS takes a threadblock for every GPU of the host; separate sends get by with fewer."""
    found = synthesize(machine("dgx_h100:1"), "allreduce", 1 << 20, runtime="mscclpp", sms=4, steps=40)
    assert found.lowered is not None
    assert found.lowered.threadblocks <= 4


def test_a_program_uses_the_whole_trunk():
    """It took 2.4 times as long as its schedule when a send could take few of the lanes."""
    tree = machine("dgx_h100:4:network=fat-tree:leaf_hosts=2:oversubscription=2")
    found = synthesize(tree, "allgather", 2**26, method="hierarchical", chunks=1, steps=1, runtime="mscclpp")
    assert found.lowered is not None
    assert found.lowered.program_us < 1.1 * found.schedule.finish_us


def test_a_program_is_as_fast_on_one_link_as_on_many_side_by_side():
    one, many = (
        synthesize(dumbbell(16, 400.0, lanes), "alltoall", 2**24, method="direct", runtime="mscclpp", sms=132, steps=1)
        for lanes in (1, 8)
    )
    assert one.lowered == many.lowered
