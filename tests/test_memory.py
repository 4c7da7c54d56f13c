"""Memory of a search: estimated before anything is built, watched while it runs."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flowccl import machine, synthesize
from flowccl.cli import main
from flowccl.demand.collectives import COLLECTIVES_BY_NAME, collective
from flowccl.errors import DemandError, NothingFoundError
from flowccl.memory import MemoryWatch, available_bytes, check_memory, most_deliveries, transfers_of
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.search.budget import Budget
from flowccl.search.context import SearchContext


@pytest.mark.parametrize("wanted", sorted(COLLECTIVES_BY_NAME))
def test_the_estimate_is_near_the_number_of_transfers(wanted: str) -> None:
    for name in ("torus:3x3", "dgx_h100:2"):
        topology = machine(name)
        problem = Problem(topology, collective(wanted, topology.num_gpus, 64_000))
        schedule = next(load_method("direct")(problem, SearchContext(Budget(5.0))))
        assert schedule is not None
        assert 0.3 * len(schedule) <= transfers_of(topology, wanted) <= 3 * len(schedule)


def test_a_machine_that_is_too_large_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWCCL_MEMORY", "8GB")
    topology = machine("dgx_h100:512")
    start = time.process_time()
    with pytest.raises(DemandError) as error:
        synthesize(topology, "allreduce", 10**9)
    assert time.process_time() - start < 20
    assert str(error.value) == (
        "allreduce on 4096 GPUs takes about 50.57 GB of memory, 8 GB are available; "
        "use fewer GPUs, or set FLOWCCL_MEMORY"
    )


def test_more_chunks_than_fit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FLOWCCL_MEMORY", "1GB")
    command = ["synth", "dgx_h100:8", "allgather", "--size", "1GB", "--chunks", "1000"]
    assert main(command) == 2
    assert capsys.readouterr().err == (
        "flowccl: error: allgather on 64 GPUs with 1000 chunks per block takes about 12.35 GB of memory, "
        "1 GB are available; use at most 62 chunks per block, or set FLOWCCL_MEMORY\n"
    )


def test_fewer_chunks_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    topology, demand = machine("dgx_h100:2"), collective("allgather", 16, 1_000_000)
    assert most_deliveries(topology, demand) > 400_000
    monkeypatch.setenv("FLOWCCL_MEMORY", "256MB")
    assert most_deliveries(topology, demand) == 4000  # NVSwitches copy
    result = synthesize(topology, "allgather", 1_000_000, time_limit_s=1)
    assert len(result.schedule.demand.destination_rank) <= 4000
    assert "memory" in result.details
    monkeypatch.setenv("FLOWCCL_MEMORY", "251MB")
    assert most_deliveries(topology, demand) == 666
    monkeypatch.setenv("FLOWCCL_MEMORY", "250MB")
    assert most_deliveries(topology, demand) == 16 * 15  # one chunk is always tried
    check_memory(topology, demand, None)  # a demand that exists is not refused


def test_a_search_that_reaches_the_limit_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWCCL_MEMORY", "1MB")
    watch = MemoryWatch()
    assert watch()
    assert watch.notes(False) == {"memory": "the search stopped at 1 MB, all that is available"}
    demand = collective("allgather", 16, 1_000_000)
    start = time.process_time()
    try:
        result = synthesize(machine("dgx_h100:2"), demand, time_limit_s=30)
    except NothingFoundError:
        pass
    else:
        assert "stopped at 1 MB" in str(result.details["memory"])
    assert time.process_time() - start < 15


def test_the_computer_has_memory() -> None:
    assert 100e6 < available_bytes() < float("inf")
    assert not MemoryWatch()()


def test_what_a_limit_of_the_address_space_leaves_is_available() -> None:
    script = (
        "import resource; from flowccl.memory import available_bytes; "
        "resource.setrlimit(resource.RLIMIT_AS, (10**10, 10**10)); print(available_bytes())"
    )
    given = {name: value for name, value in os.environ.items() if name != "FLOWCCL_MEMORY"}
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=given)
    assert 0 < float(found.stdout) <= 0.9 * 10**10


def test_a_run_that_does_not_fit_into_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "one.json")
    assert main(["synth", "ring:4", "allgather", "--size", "64KB", "--steps", "2", "--quiet", "--out", path]) == 0
    monkeypatch.setenv("FLOWCCL_MEMORY", "1GB")
    capsys.readouterr()
    assert main(["run", path, "--on", "numpy", "--size", "64MB"]) == 0
    capsys.readouterr()
    assert main(["run", path, "--on", "numpy", "--size", "128MB"]) == 2
    assert capsys.readouterr().err.strip() == (
        "flowccl: error: 128 MB on 4 ranks takes about 1.664 GB of memory, and 1 GB are available; "
        "run a smaller --size, or set FLOWCCL_MEMORY"
    )
