"""compute-sanitizer on a small plan of each kind: memory channels, reductions, port channels."""

import shutil
import sys
from pathlib import Path

import pytest

from flowccl.run.mscclpp.cases import PlanCase
from flowccl.run.mscclpp.launcher import run_processes
from flowccl.run.mscclpp.runtime import find_provider
from flowccl.run.mscclpp.worker import PlanJob
from tests.gpu.markers import needs_gpu
from tests.gpu.plans import SANITIZED, GpuCase


@needs_gpu
@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not installed")
@pytest.mark.parametrize("tool", ["memcheck", "synccheck"])
@pytest.mark.parametrize("case", SANITIZED, ids=lambda case: case.name)
def test_a_sanitizer_finds_nothing(tool: str, case: GpuCase) -> None:
    def command(path: Path, rank: int) -> list[str]:
        program = [sys.executable, "-m", "flowccl.run.mscclpp.worker", str(path), str(rank)]
        return ["compute-sanitizer", "--tool", tool, "--report-api-errors", "no", "--error-exitcode", "17", *program]

    provider = find_provider()
    cases = (PlanCase(str(case.plan()), 1 << 16, case.dtype, iterations=1, warmup=0),)
    results = run_processes(PlanJob(cases, (0, 0), provider.version, str(provider.library)), 60.0, command)
    assert [result.wrong for result in results[0]] == [0, 0]
