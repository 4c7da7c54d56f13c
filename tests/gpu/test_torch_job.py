"""FLOWCCL_CATALOG on CUDA tensors: a job of 4 ranks on one GPU runs by plans of MSCCL++, unchanged.

`python -m pytest -s tests/gpu/test_torch_job.py` prints the report, and the time between a call and the start of its
plan (alone: `-k soon`). The catalog is made where it is missing; `python -m tests.gpu.plans torch` makes it elsewhere.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from flowccl.run.mscclpp.mps import shared_gpu
from flowccl.run.mscclpp.runtime import find_provider
from tests.gpu.markers import needs_gpu
from tests.gpu.plans import torch_catalog
from tests.torch.processes import launch

RANKS = 4
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the extra torch is not installed")


def run(out: Path, catalog: str, kind: str) -> Any:
    """Run the program on all ranks, and return what rank 0 found."""
    find_provider()  # the first use builds MSCCL++, which must not count as waiting of the ranks
    program = ["-m", "flowccl.torch", "-m", "tests.gpu.torch_job", kind, str(out)]
    with shared_gpu() as added:
        variables = added | {"MSCCLPP_SOCKET_IFNAME": "lo", "FLOWCCL_LOG": "info", "FLOWCCL_CATALOG": catalog}
        ended = launch(program, RANKS, timeout=280, **variables)
    print(ended.text[-4000:])
    assert ended.codes == [0] * RANKS
    return json.loads(out.read_text())


@needs_gpu
@needs_torch
def test_an_unchanged_job_has_the_losses_of_the_library(tmp_path: Path) -> None:
    catalog = str(torch_catalog().resolve())
    ours, theirs = run(tmp_path / "ours.json", catalog, "train"), run(tmp_path / "theirs.json", "", "train")
    assert isinstance(theirs["ddp"], list)
    for name in ("ddp", "fsdp2", "tp"):
        if isinstance(theirs[name], str):
            print(f"{name}: gloo itself fails on GPUs: {theirs[name]}")
            continue
        assert len(ours[name]) == 20
        largest = max(abs(a - b) for a, b in zip(ours[name], theirs[name], strict=True))
        print(f"{name}: the losses of 20 steps differ by at most {largest:.1e}")
        assert largest < 1e-4
    assert ours["planned"] > 20
    assert " cuda " in ours["report"]


@needs_gpu
@needs_torch
def test_calls_start_their_plans_soon(tmp_path: Path) -> None:
    found = run(tmp_path / "ours.json", str(torch_catalog().resolve()), "overhead")
    assert found["overhead"], "no call ran by a plan"
    for name, us in found["overhead"].items():
        print(f"{name}: median {us['start']:.1f} us from the call to the start of the plan, {us['call']:.1f} us in all")
        assert 0 < us["start"] < us["call"] < 5_000
