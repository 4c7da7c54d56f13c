"""`flowccl profile --on mscclpp` on one GPU."""

import json
from pathlib import Path

import pytest

from flowccl.cli import main
from flowccl.runtimes.profiles import load_profile
from tests.gpu.markers import needs_gpu


@needs_gpu
def test_the_costs_of_operations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runtime.json"
    assert main(["profile", "--on", "mscclpp", "--one-gpu", "--iterations", "20", "--out", str(path)]) == 0
    printed = capsys.readouterr().out
    print(printed)
    assert "measured on one GPU" in printed
    assert load_profile(path).name == "mscclpp"
    costs = {(c["operation"], c["threadblocks"], c["threads"]): c for c in json.loads(path.read_text())["local"]}
    assert 0.2 < costs["signal", 1, 1024]["overhead_us"] < 20
    assert 5 < costs["put", 1, 1024]["GBps"] < 500
    assert 5 < costs["put packets", 1, 1024]["GBps"] < 500
    assert 0 < costs["read packets", 1, 1024]["overhead_us"] < 20
    assert costs["put", 1, 256]["GBps"] < costs["put", 1, 1024]["GBps"]
