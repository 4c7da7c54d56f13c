"""msccl-tools' JSON and TE-CCL's result: proved by following the data; damage is named."""

import json

import pytest

from flowccl.cli import main
from flowccl.export import ExportOptions, check_listing, make
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine

EVERY = ("allgather", "alltoall", "allreduce", "reduce_scatter", "broadcast", "scatter", "gather", "reduce")
NO_REDUCTIONS = ("allgather", "alltoall", "broadcast", "scatter", "gather")
LARGER = "ndv2:2", "dgx2:2", "mi250:2", "torus:4x4"


def written(tmp_path, target, collective, name="dgx1"):
    schedule = synthesize(machine(name), collective, 64_000, method="greedy", chunks=1, steps=1).schedule
    path = tmp_path / "out.json"
    path.write_bytes(make(schedule, target, ExportOptions())[0])
    return path


@pytest.mark.parametrize(
    "name", ["dgx1", "dgx_a100:2", *(pytest.param(name, marks=pytest.mark.slow) for name in LARGER)]
)
@pytest.mark.parametrize(
    ("target", "collective"), [*(("msccl-json", c) for c in EVERY), *(("teccl", c) for c in NO_REDUCTIONS)]
)
def test_every_file_is_proved(target, collective, name, tmp_path, capsys):
    path = written(tmp_path, target, collective, name)
    listing, findings = check_listing(path, target)
    assert findings == []
    assert listing.sends > 0
    assert main(["check-export", str(path), "--to", target]) == 0
    assert capsys.readouterr().out.startswith("PROVED: ")


def broken(path, target, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
    return [str(finding) for finding in check_listing(path, target)[1]]


def without_last_step(value):
    value["steps"].pop()


def too_early(value):
    value["steps"][0]["sends"] += value["steps"].pop()["sends"]


def twice(value):
    value["steps"].insert(1, value["steps"][0])


def other_address(value):
    value["steps"][-1]["sends"][0][0] += 1


@pytest.mark.parametrize(
    ("collective", "change", "words"),
    [
        ("allreduce", without_last_step, "lacks"),
        ("allgather", too_early, "the sender does not have the data yet"),
        ("allreduce", twice, "counts a contribution twice"),
        ("allgather", other_address, "lacks 1 contributions of address"),
    ],
)
def test_damage_to_msccl_json_is_named(collective, change, words, tmp_path):
    findings = broken(written(tmp_path, "msccl-json", collective), "msccl-json", change)
    assert any(words in finding for finding in findings)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda value: value["7-Flows"].pop(), "never gets chunk"),
        (lambda value: value["7-Flows"].reverse(), "the sender does not have the data yet"),
        (lambda value: value["6-Demand_Met"]["GPU 0"]["GPU 1"].update({"Chunk 5": 0.0}), "never gets chunk 5 from 1"),
        (lambda value: value.update({"4-Collective_Finish_Time": 0.0}), "after the finish"),
        (lambda value: value.update({"3-Epochs_Required": 1}), "is after the last epoch"),
    ],
)
def test_damage_to_teccl_is_named(change, words, tmp_path):
    findings = broken(written(tmp_path, "teccl", "allgather"), "teccl", change)
    assert any(words in finding for finding in findings)


@pytest.mark.parametrize("target", ["msccl-json", "teccl"])
def test_other_files_and_unsupported_options_are_refused(target, tmp_path, capsys):
    path = tmp_path / "other.json"
    path.write_text('{"7-Flows": ["up"], "collective": 3, "msccl_type": "algorithm"}')
    assert main(["check-export", str(path), "--to", "msccl-json"]) == 2
    assert "is not a valid msccl-json file" in capsys.readouterr().err
    assert main(["check-export", str(path), "--to", target, "--numbers"]) == 2
    assert "has no buffers: leave --numbers" in capsys.readouterr().err
