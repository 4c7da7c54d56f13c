"""`flowccl compare` with a schedule file: its time beside those of NCCL's ring and tree."""

import json
from pathlib import Path

import pytest

from flowccl import load_schedule, machine, save_schedule, synthesize
from flowccl.analysis.compare import PlanBesideBaselines
from flowccl.cli import main


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    made = synthesize(machine("ring:4"), "allgather", 1_000_000, method="direct", chunks=2, steps=1)
    save_schedule(made.schedule, tmp_path / "ag.json")
    return tmp_path / "ag.json"


def test_a_plan_beside_nccls_ring_and_tree(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = plan.with_suffix(".png")
    assert main(["compare", str(plan), "--time-limit", "1", "--out", str(picture)]) == 0
    title, *rows, last = capsys.readouterr().out.splitlines()
    assert title == "allgather of 1 MB on ring:4"
    assert [row.split("  ")[0] for row in rows[:1]] == ["lower bound"]
    assert any(row.startswith("this plan (direct)") for row in rows)
    assert last == f"picture written to {picture}"
    assert picture.stat().st_size > 1000


def test_as_json(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(plan), "--time-limit", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plan_us"] == load_schedule(plan).finish_us
    assert found["ring_us"] == pytest.approx(found["lower_bound_us"])  # rings are optimal on a ring
    assert found["tree_us"] > found["ring_us"]


def test_rows_are_in_order_of_time_and_missing_baselines_are_left_out() -> None:
    beside = PlanBesideBaselines("reroute", 12.0, 30.0, None, 10.0)
    assert [name for name, _ in beside.rows()] == [
        "lower bound",
        "this plan (reroute)",
        "NCCL's ring (multi-ring)",
    ]
    assert beside.lines()[1].split() == ["this", "plan", "(reroute)", "12", "us", "20.00", "%", "above"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ag.json", "allgather"], "compare with a schedule file takes no COLLECTIVE; the schedule has one"),
        (["ag.json", "--without", "gpu0 <-> gpu1"], "--without: not with a schedule, which has its machine"),
        (["nothing.json"], "nothing.json: no such file"),
        (["ring:4"], "compare needs MACHINE and COLLECTIVE, or a schedule file"),
    ],
)
def test_bad_input(plan: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *(str(plan) if word == "ag.json" else word for word in words)]) == 2
    assert message in capsys.readouterr().err
