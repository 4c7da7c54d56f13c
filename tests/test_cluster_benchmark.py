"""The benchmark `clusters`: its rows, its files, its table, without running the searches."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import clusters, tables
from flowccl.topology.hierarchy import hierarchy
from flowccl.topology.machines import machine
from flowccl.units import parse_bytes


def result(row: clusters.Row, finish_us: float = 10.0) -> dict[str, Any]:
    """A result of a row: 5 % above the bound, and earlier than its baseline by 10 %."""
    machine, fault, collective, size_bytes = row.key
    return {
        "machine": machine,
        "fault": fault,
        "collective": collective,
        "size_bytes": size_bytes,
        "finish_us": finish_us,
        "lower_bound_us": finish_us / 1.05,
        "gap": 0.05,
        "method": "hierarchical",
        "chunks": 4,
        "messages_per_gpu": 30,
        "transfers": 480,
        "baselines_us": {"ring": 30.0, "direct": 11.0},
        "mscclpp_us": None,
        "seconds": 5.0,
        "peak_memory_MB": 300.0,
    }


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> list[clusters.Row]:
    """The rows that run, each at once."""
    ran: list[clusters.Row] = []

    def run(self: object, row: clusters.Row, options: Namespace) -> dict[str, Any]:
        ran.append(row)
        if row.size == "64KB":
            return result(row) | {"error": "killed"}
        return result(row, 12.0 if row.collective == "alltoall" else 10.0)

    monkeypatch.setattr(clusters._Worker, "run", run)
    return ran


def test_rows_are_distinct_valid_and_at_most_240() -> None:
    rows = list(clusters.all_rows())
    assert len(rows) == len({row.key for row in rows}) <= 240
    whole = [row for row in rows if not row.fault]
    assert len(whole) == 9 * 4 * 4
    for row in {(row.machine, row.fault): row for row in rows}.values():
        assert row.topology.num_gpus in (16, 32, 64, 72)


def test_no_search_finds_the_plans_of_another_one() -> None:
    """Baselines that ran after `auto` found its plans, and so had more time than their limit."""
    topology = machine("dgx_a100:2")
    hierarchy(topology)
    assert hierarchy.cache_info().currsize
    clusters.forget()
    assert not hierarchy.cache_info().currsize


def test_an_interrupted_run_goes_on(fast: list[clusters.Row], tmp_path: Path, capsys: Any) -> None:
    file = str(tmp_path / "rows.json")
    part = ["--machines", "dgx_h100:2", "--collectives", "allreduce", "--json", file]
    assert clusters.main([*part, "--sizes", "1MB"]) == 0
    assert [row.fault for row in fast] == ["", "--without gpu3 <-> rail3", "--slow gpu3 <-> rail3=100Gb/s"]
    assert "3 rows, 0 failed: geometric mean of the gaps 5.00%, at most 10 % on 3 (100%)" in capsys.readouterr().out
    assert clusters.main(part) == 1  # the row that was killed
    assert len(fast) == 3 + 5
    assert clusters.main(part) == 1
    assert len(fast) == 3 + 5 + 1  # only the row with an error runs again
    assert len(json.loads(Path(file).read_text(encoding="utf-8"))["rows"]) == 8
    with pytest.raises(SystemExit, match=r"has rows with --time-limit 5\.0; give the same, or another file"):
        clusters.main([*part, "--time-limit", "1"])


def test_a_row_later_than_a_baseline(fast: list[clusters.Row], capsys: Any) -> None:
    part = ["--machines", "mi300x:2", "--sizes", "64MB", "--faults", "none"]
    assert clusters.main([*part, "--collectives", "allgather"]) == 0
    assert clusters.main([*part, "--collectives", "alltoall"]) == 1
    assert "direct 11  LATER" in capsys.readouterr().out


def test_table_and_picture(fast: list[clusters.Row], tmp_path: Path, capsys: Any) -> None:
    file, picture = str(tmp_path / "rows.json"), str(tmp_path / "gaps.svg")
    clusters.main(["--machines", "torus:4x4x4", "--collectives", "allgather", "--json", file, "--plot", picture])
    assert "<svg" in Path(picture).read_text(encoding="utf-8")
    capsys.readouterr()
    tables.main([file])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| torus")]
    assert lines[1] == (
        "| torus:4x4x4 | whole | allgather | 1 MB | 9.52381 | 10 | 5.00% | hierarchical | 4 | 30 | direct 11 |  |"
    )
    assert "killed" in lines[0]


def test_unknown_machines(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        clusters.main(["--machines", "dgx_h100:3"])
    assert "--machines: 'dgx_h100:3' is not one of dgx_h100:2, dgx_h100:4" in capsys.readouterr().err


@pytest.mark.slow
def test_one_real_row() -> None:
    row = clusters.Row("dgx_h100:2", "--without gpu3 <-> rail3", "allreduce", "64KB")
    options = {"time_limit": 0.5, "baseline_limit": 0.1, "no_runtime": True, "seed": 0}
    found = clusters.measure(row, options)
    assert found["lower_bound_us"] <= found["finish_us"]
    assert {"hierarchical", "multi-ring", "double-binary-tree", "ring", "direct"} <= set(found["baselines_us"])
    assert parse_bytes(row.size) == 64_000
