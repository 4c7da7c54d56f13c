"""`check-export` names the real mistake if a file is not an exported program, or is one for another target."""

import json
from pathlib import Path

import pytest

from flowccl.cli import main
from flowccl.export import TARGETS
from flowccl.schedule.files import save_schedule
from flowccl.topology.files import save_topology
from flowccl.topology.machines import machine
from tests.export.cases import made
from tests.export.test_interpreter import pair_schedule


def refusal(path: Path, target: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the error message of `check-export`, without the program's name and the folder."""
    assert main(["check-export", str(path), "--to", target]) == 2
    return capsys.readouterr().err.removeprefix("flowccl: error: ").replace(f"{path.parent}/", "").strip()


@pytest.mark.parametrize("target", TARGETS)
def test_files_of_flowccl_are_named(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_topology(machine("ring:4"), tmp_path / "cluster.json")
    said = refusal(tmp_path / "cluster.json", target, capsys)
    fix = "give a file that flowccl export wrote"
    assert said == f"cluster.json is a flowccl topology, not an exported program; {fix}"
    save_schedule(pair_schedule("allgather"), tmp_path / "ag.json.gz")
    said = refusal(tmp_path / "ag.json.gz", target, capsys)
    assert said == "ag.json.gz is a flowccl schedule, not an exported program; export it first: flowccl export"


@pytest.mark.parametrize(
    ("text", "target", "words"),
    [
        ("{}", "mscclpp", "JSON, without the keys of an MSCCL++ execution plan (collective, protocol, gpus ...)"),
        ('{"a": 1}', "teccl", "JSON, without the keys of a TE-CCL result (6-Demand_Met, 7-Flows ...)"),
        ("[1, 2]", "msccl-json", "JSON, without the keys of an msccl-tools JSON file (collective, steps ...)"),
        ('{"format": 3}', "msccl", "JSON, not an MSCCL XML file"),
        ("{}", "chakra", "JSON, not a set of Chakra traces"),
    ],
)
def test_other_json_is_named(
    text: str, target: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_text(text)
    assert refusal(tmp_path / "x.json", target, capsys) == f"x.json is not an exported program: it is {words}"


@pytest.mark.parametrize(
    ("written", "target", "words"),
    [
        ("mscclpp", "msccl", "an MSCCL++ execution plan, not an MSCCL XML file; check it with --to mscclpp"),
        ("mscclpp", "teccl", "an MSCCL++ execution plan, not a TE-CCL result; check it with --to mscclpp"),
        ("teccl", "mscclpp", "a TE-CCL result, not an MSCCL++ execution plan; check it with --to teccl"),
        ("msccl-json", "teccl", "an msccl-tools JSON file, not a TE-CCL result; check it with --to msccl-json"),
        (
            "rccl",
            "mscclpp",
            "an MSCCL XML file, not an MSCCL++ execution plan; check it with --to msccl or",
        ),
    ],
)
def test_files_for_another_target_are_named(
    written: str, target: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").write_bytes(made(pair_schedule("allgather"), written))
    assert refusal(tmp_path / "out", target, capsys).startswith(f"out is {words}")


def test_a_damaged_file_keeps_the_message_of_its_reader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = json.loads(made(pair_schedule("allgather"), "mscclpp"))
    del plan["protocol"]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert refusal(tmp_path / "plan.json", "mscclpp", capsys) == "plan.json: plan: protocol is missing"
    (tmp_path / "x.json").write_text("{")
    assert refusal(tmp_path / "x.json", "mscclpp", capsys).startswith("x.json: not JSON: ")
