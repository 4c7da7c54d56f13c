"""FLOWCCL_CATALOG on CUDA tensors: a job of 4 ranks on one GPU runs by plans of MSCCL++, unchanged.

`make test-gpu` runs it; it prints the report and the time that a call takes until it has been enqueued.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from flowccl import machine
from flowccl.catalog.build import BuildOptions, build_catalog
from flowccl.catalog.engine import TaskEngine
from flowccl.run.mscclpp.mps import shared_gpu
from flowccl.runtimes.profiles import PROFILES
from tests.gpu.markers import needs_gpu
from tests.torch.processes import launch

RANKS = 4
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the extra torch is not installed")


def run(out: Path, catalog: str) -> Any:
    with shared_gpu() as added:
        variables = added | {"MSCCLPP_SOCKET_IFNAME": "lo", "FLOWCCL_LOG": "info", "FLOWCCL_CATALOG": catalog}
        ended = launch(["-m", "flowccl.torch", "-m", "tests.gpu.torch_job", str(out)], RANKS, timeout=280, **variables)
    print(ended.text[-4000:])
    assert ended.codes == [0] * RANKS
    return json.loads(out.read_text())


@needs_gpu
@needs_torch
def test_an_unchanged_job_has_the_losses_of_the_library(tmp_path: Path) -> None:
    options = BuildOptions(
        collectives=("allreduce", "allgather", "reduce_scatter"),
        low_bytes=1_024,
        high_bytes=4 << 20,
        runtime=PROFILES["mscclpp"],
        inplace=True,
        steps=2,
        sms=32,
        most=2,
    )
    build_catalog(machine("full:4"), tmp_path / "plans", options, TaskEngine(jobs=4))
    ours, theirs = run(tmp_path / "ours.json", str(tmp_path / "plans")), run(tmp_path / "theirs.json", "")
    assert isinstance(theirs["ddp"], list)
    for name in ("ddp", "fsdp2", "tp"):
        if isinstance(theirs[name], str):
            print(f"{name}: gloo itself fails on GPUs: {theirs[name]}")
            continue
        assert len(ours[name]) == 20
        assert max(abs(a - b) for a, b in zip(ours[name], theirs[name], strict=True)) < 1e-4
    assert ours["planned"] > 20
    assert "(cuda)" in ours["report"] or " cuda " in ours["report"]
    print("enqueueing by plans", ours["enqueue_us"], "by gloo", theirs["enqueue_us"])
