"""The torch.distributed backend "flowccl" on CUDA tensors: 4 ranks on one GPU, by plans of MSCCL++."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flowccl.run.mscclpp.mps import shared_gpu
from flowccl.run.mscclpp.runtime import find_provider
from tests.gpu.markers import needs_gpu
from tests.gpu.plans import GpuCase

RANKS = 4
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the extra torch is not installed")


def run(tmp_path: Path, given: Path) -> Any:
    """Run the program on all ranks with a schedule or a plan, and return what it found."""
    find_provider()  # the first use builds MSCCL++, which must not count as waiting of the ranks
    program = [sys.executable, "-m", "tests.gpu.torch_program"]
    with shared_gpu() as added:
        environment = os.environ | {"MSCCLPP_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"} | added
        started = [
            subprocess.Popen([*program, str(rank), str(RANKS), str(tmp_path), str(given)], env=environment)
            for rank in range(RANKS)
        ]
        try:
            codes = [process.wait(timeout=120) for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()  # one that is left would fail the next test
    assert codes == [0] * RANKS
    found = json.loads((tmp_path / "result.json").read_text())
    print(found)
    return found


@needs_gpu
@needs_torch
def test_packets_are_right_and_are_not_captured(tmp_path: Path) -> None:
    found = run(tmp_path, GpuCase("full:4", "allreduce", "64KiB", "in", "float32", "LL").plan())
    assert found["wrong"] == 0
    assert found["counts"]["plans"]["allreduce"] >= 4  # the calls of its size: it keeps data in scratch
    assert "a plan with protocol LL cannot be captured in a CUDA graph" in found["captured"]


@needs_gpu
@needs_torch
def test_ddp_and_a_captured_graph(tmp_path: Path) -> None:
    found = run(tmp_path, GpuCase("full:4", "allreduce", "1MiB", "in", "float32").schedule())
    assert (found["wrong"], found["wrong_replays"]) == (0, 0)
    assert max(abs(a - b) for a, b in zip(found["ddp"], found["alone"], strict=True)) < 1e-3
    assert found["counts"]["plans"]["allreduce"] - found["counts_before"]["plans"]["allreduce"] >= 20
    assert found["counts"]["inner"].get("allreduce", 0) <= 1  # the losses, on the CPU
