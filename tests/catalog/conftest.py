"""A small catalog, built once for all tests of the package."""

from pathlib import Path

import pytest

from flowccl import machine
from flowccl.catalog.build import BuildOptions, build_catalog
from flowccl.catalog.engine import TaskEngine
from flowccl.runtimes.profiles import PROFILES

OPTIONS = BuildOptions(
    collectives=("allreduce", "allgather"),
    low_bytes=64_000,
    high_bytes=512_000,
    runtime=PROFILES["mscclpp"],
    steps=2,
    sms=100,
)


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("catalog") / "plans"
    result = build_catalog(machine("ring:4"), folder, OPTIONS, TaskEngine(jobs=1))
    assert result.failed == ()
    return folder
