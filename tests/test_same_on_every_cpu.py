"""Counted steps give the same bytes whatever the processor: other machine code, other paths in numpy."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

CASES = (
    ("dgx1", "allreduce", "64KB", "auto"),
    ("ndv2:2", "allgather", "1MB", "auto"),
    ("torus:4x4", "alltoall", "64KB", "auto"),
)


def synthesized(folder: Path, case: tuple[str, ...], **environment: str) -> str:
    """A digest of the schedule file of a synthesis with counted steps, in a process of its own."""
    machine, collective, size, method = case
    out = folder / "schedule.json"
    command = [sys.executable, "-m", "flowccl", "synth", machine, collective, "--size", size, "--method", method]
    command += ["--steps", "40", "--min-chunk", "1B", "--out", str(out), "--quiet"]
    subprocess.run(command, env={**os.environ, **environment}, check=True, capture_output=True)
    return hashlib.sha256(out.read_bytes()).hexdigest()


def dispatched() -> list[str]:
    """The groups of processor features that numpy chooses faster paths by, as far as this processor has them."""
    core = np._core._multiarray_umath  # type: ignore[attr-defined]
    return [name for name in core.__cpu_dispatch__ if core.__cpu_features__.get(name)]


@pytest.mark.parametrize(
    "case", [*CASES[:2], pytest.param(CASES[2], marks=pytest.mark.slow)], ids=lambda case: "-".join(case)
)
def test_without_the_faster_paths_of_numpy(tmp_path, case):
    disabled = synthesized(tmp_path, case, NPY_DISABLE_CPU_FEATURES=" ".join(dispatched()))
    assert disabled == synthesized(tmp_path, case)


@pytest.mark.parametrize(
    "case",
    [("dgx1", "allgather", "64KB", "greedy"), pytest.param(CASES[0], marks=pytest.mark.slow)],
    ids=lambda case: "-".join(case),
)
def test_with_machine_code_for_a_generic_processor(tmp_path, case):
    assert synthesized(tmp_path, case, NUMBA_CPU_NAME="generic") == synthesized(tmp_path, case)
