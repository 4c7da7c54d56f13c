"""Slow tests as measured, a time limit for all tests, one hypothesis profile, and a small catalog.

What took more than two seconds is slow: `slow.txt` has a line "seconds file::test" for each such test. `--minutes` is
a limit for all tests together: the shortest run first, and those that no longer fit are skipped by name.
"""

import time
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("same every time", derandomize=True, deadline=None, database=None, max_examples=50)
settings.load_profile("same every time")

_UNKNOWN_S = 60.0  # the duration of a test that is marked slow, but not listed


def measured_s() -> dict[str, float]:
    """The measured durations of slow tests, by file name and test."""
    lines = Path(__file__).with_name("slow.txt").read_text(encoding="utf-8").splitlines()
    return {name: float(seconds) for seconds, name in (line.split(" ", 1) for line in lines)}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", type=float, help="skip tests that would end after this many minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the listed tests as slow; with a time limit, put the shortest first."""
    seconds = measured_s()
    for item in items:
        known = seconds.get(item.nodeid.rpartition("/")[2])
        if known is not None:
            item.add_marker(pytest.mark.slow)
        item.stash[_DURATION] = known if known is not None else _UNKNOWN_S
    if config.getoption("--minutes") is not None:
        items.sort(key=lambda item: item.stash[_DURATION])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that does not fit into what is left of the time limit."""
    minutes = item.config.getoption("--minutes")
    if minutes is not None and time.monotonic() + item.stash[_DURATION] > _BEGAN + 60 * minutes:
        pytest.skip(f"does not fit into {minutes:g} minutes; `make test-all` runs it")


_DURATION = pytest.StashKey[float]()
_BEGAN = time.monotonic()


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Path:
    """A small catalog, built once for all tests."""
    from flowccl import machine
    from flowccl.catalog.build import build_catalog
    from flowccl.catalog.engine import TaskEngine
    from tests.catalog.cases import OPTIONS

    folder = tmp_path_factory.mktemp("catalog") / "plans"
    result = build_catalog(machine("ring:4"), folder, OPTIONS, TaskEngine(jobs=1))
    assert result.failed == ()
    return folder
