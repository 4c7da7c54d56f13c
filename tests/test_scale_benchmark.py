"""The benchmark `scale`: rows of whole processes, a table and a picture."""

import json
from pathlib import Path

import pytest

from benchmarks.scale import main


def test_a_row_has_the_seconds_the_memory_and_the_gap_of_a_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored, picture = tmp_path / "scale.json", tmp_path / "scale.png"
    arguments = ["--hosts", "2", "--kinds", "whole,slow NIC", "--size", "1MB", "--time-limit", "1"]
    assert main([*arguments, "--json", str(stored), "--plot", str(picture)]) == 0
    rows = json.loads(stored.read_text())["rows"]
    assert [(row["kind"], row["gpus"], row["code"]) for row in rows] == [("whole", 16, 0), ("slow NIC", 16, 0)]
    assert all(row["seconds"] > 0 and 0.05 < row["memory_GB"] < 5 and row["gap"] >= 0 for row in rows)
    assert picture.stat().st_size > 1000
    assert "as published" in capsys.readouterr().out


def test_a_refusal_is_a_row_with_its_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FLOWCCL_MEMORY", "200MB")
    assert main(["--hosts", "2", "--kinds", "whole", "--time-limit", "1"]) == 0
    assert "of memory" in capsys.readouterr().out
