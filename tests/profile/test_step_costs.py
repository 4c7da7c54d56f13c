"""The costs of MSCCL++'s operations: plans, fits and files; tests/gpu measures them."""

import dataclasses
import json
from itertools import product
from pathlib import Path

import pytest

from flowccl.cli import main
from flowccl.profile.step_costs import (
    BLOCKS,
    SIZES,
    THREADS,
    OperationCost,
    StepSample,
    fit_costs,
    runtime_profile_of,
    samples_of,
    to_json,
)
from flowccl.profile.step_plans import FEW, MANY, OPERATIONS, StepProbe
from flowccl.run.mscclpp.launcher import explain_hang
from flowccl.run.mscclpp.plan_facts import read_plan
from flowccl.runtimes.costs import LocalCost
from flowccl.runtimes.profiles import PROFILES, profile_from_json, profile_to_json
from flowccl.schedule.files import load_schedule


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_plans_complete_and_keep_the_limits(operation: str, tmp_path: Path) -> None:
    for blocks, repeats in product(BLOCKS, (FEW, MANY)):
        path = tmp_path / f"{blocks}-{repeats}.json"
        path.write_text(json.dumps(StepProbe(operation, blocks, 1024, repeats).plan()))
        assert read_plan(path).blocks == (blocks, blocks)
        assert "completes this plan" in explain_hang(path)
        value = json.loads(path.read_text())
        assert max(len(block["ops"]) for gpu in value["gpus"] for block in gpu["threadblocks"]) <= 64


def test_costs_are_found_again_with_an_outlier() -> None:
    samples = [
        StepSample("put", 1, 1024, size, 0.8 + size / 25_000 + (40.0 if size == 32768 else 0.0)) for size in SIZES
    ]
    samples.append(StepSample("signal", 1, 1024, SIZES[0], 1.5))
    put, signal = fit_costs(samples)
    assert put.GBps == pytest.approx(25.0, rel=0.05)
    assert signal == OperationCost("signal", 1, 1024, 1.5, 0.0)
    put, _ = fit_costs([s for s in samples if s.size != 32768 or s.operation == "signal"])
    assert put.overhead_us == pytest.approx(0.8, abs=0.01)


def test_one_operation_is_the_difference_of_many_and_few() -> None:
    many, few = StepProbe("copy", 4, 256, MANY), StepProbe("copy", 4, 256, FEW)
    samples = samples_of({(many, 4096): 110.0, (few, 4096): 10.0})
    assert samples == [StepSample("copy", 4, 256, 4096, 10.0)]


def test_one_gpu_keeps_the_costs_of_links_and_two_measure_them(tmp_path: Path) -> None:
    costs = [OperationCost("put", 1, max(THREADS), 0.7, 30.0), OperationCost("signal", 1, max(THREADS), 1.1, 0.0)]
    one = runtime_profile_of(costs, one_gpu=True)
    usual = PROFILES["mscclpp"].costs
    assert dataclasses.replace(one.costs, local=usual.local) == usual
    assert one.costs.local == (LocalCost("put", 0.7, 30.0), LocalCost("signal", 1.1))
    assert "no NVLink and no NIC" in one.source
    two = runtime_profile_of(costs, one_gpu=False)
    assert (two.costs.nvlink.overhead_us, two.costs.nvlink.signal_us) == (0.7, 1.1)
    assert two.costs.nic == PROFILES["mscclpp"].costs.nic
    others = [dataclasses.replace(costs[0], threadblocks=4), dataclasses.replace(costs[0], threads=256)]
    assert profile_from_json(to_json(profile_to_json(two), [*others, *costs])).costs == two.costs
    value = to_json(profile_to_json(two), costs)
    assert value["local"][0] == dataclasses.asdict(costs[0])
    assert profile_from_json(json.loads(json.dumps(value))) == two


def test_synth_takes_only_the_local_costs_of_one_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Schedule and program are later by the time of their reductions; puts have the overhead of the profile's links."""
    costs = [OperationCost("reduce", 1, max(THREADS), 30.0, 0.0), OperationCost("put", 1, max(THREADS), 50.0, 34.1)]
    path = tmp_path / "runtime.json"
    path.write_text(json.dumps(to_json(profile_to_json(runtime_profile_of(costs, one_gpu=True)), costs)))
    words = [
        "synth",
        "full:2",
        "reduce_scatter",
        "--size",
        "64KiB",
        "--method",
        "greedy",
        "--steps",
        "2",
        "--sms",
        "16",
    ]
    found = []
    for runtime in ("mscclpp", str(path)):
        saved = str(tmp_path / "rs.json")
        assert main([*words, "--chunks", "1", "--for", runtime, "--json", "--quiet", "--out", saved]) == 0
        found.append(json.loads(capsys.readouterr().out))
    usual, local = found
    assert usual["finish_us"] <= local["finish_us"] <= usual["finish_us"] + 32.0  # packets avoid the reduction
    assert local["program_us"] == pytest.approx(local["finish_us"], rel=0.01)
    assert load_schedule(tmp_path / "rs.json").runtime == runtime_profile_of(costs, one_gpu=True)


def test_options_of_other_transports_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "runtime.json")
    assert main(["profile", "--on", "mscclpp", "--ranks", "4", "--out", out]) == 2
    assert "--ranks is not for --on mscclpp" in capsys.readouterr().err
    assert main(["profile", "--on", "gloo", "--one-gpu", "--out", out]) == 2
    assert "--one-gpu is for --on mscclpp" in capsys.readouterr().err
