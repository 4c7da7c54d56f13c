"""`flowccl run` in real processes; needs the extras torch and mpi, and an mpiexec (`make test-run` installs them)."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flowccl.cli import main
from flowccl.run.measure import RunOptions
from flowccl.run.processes import run_schedule
from flowccl.schedule.files import save_schedule
from flowccl.schedule.schedule import Schedule
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine

MPIEXEC = Path(sys.executable).parent / "mpiexec"
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the extra torch is not installed")
needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or not (MPIEXEC.exists() or shutil.which("mpiexec")),
    reason="the extra mpi, or an mpiexec, is not installed",
)

SIZES = (4, 20, 28, 4004, 1_000_004, 16_000_000)  # from one float32 to 16 MB; 5, 7 and 1001 do not divide by 8


def dgx1_schedule(name: str) -> Schedule:
    return synthesize(machine("dgx1"), name, 1_000_000, chunks=1, steps=5, method="greedy").schedule


@pytest.mark.slow
@pytest.mark.parametrize("name", ["allgather", "allreduce", "reduce_scatter", "alltoall", "broadcast"])
@pytest.mark.parametrize("on", [pytest.param("gloo", marks=needs_torch), pytest.param("mpi", marks=needs_mpi)])
def test_eight_processes_are_exact(on: str, name: str) -> None:
    dtypes = ("float32", "float16", "int32") + (("bfloat16",) if on == "gloo" else ())
    rows = run_schedule(dgx1_schedule(name), on, RunOptions(SIZES, dtypes, inplace=True, iterations=1))
    assert rows is not None
    assert len(rows) == len(SIZES) * len(dtypes)
    assert [row.out_of_place.wrong for row in rows] == [0] * len(rows)
    assert [row.in_place.wrong for row in rows if row.in_place] == [0] * len(rows)


@pytest.mark.slow
@pytest.mark.parametrize("on", [pytest.param("gloo", marks=needs_torch), pytest.param("mpi", marks=needs_mpi)])
def test_the_command_prints_the_table(on: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = synthesize(
        machine("dgx_a100:1:no-nvlink"), "allgather", 1_000_000, chunks=1, steps=1, method="greedy"
    ).schedule
    save_schedule(schedule, tmp_path / "ag.json")  # its memory is simulated by a rank, or by a ninth process
    for ranks in ([], ["--ranks", "9"]):
        assert main(["run", str(tmp_path / "ag.json"), "--on", on, "--size", "1KB", "--iterations", "2", *ranks]) == 0
        printed = capsys.readouterr().out
        assert "# Out of bounds values : 0 OK" in printed


@pytest.mark.slow
@needs_mpi
def test_under_mpiexec_every_process_is_a_rank(tmp_path: Path) -> None:
    save_schedule(
        synthesize(machine("full:3"), "allreduce", 1000, chunks=1, steps=1, method="greedy").schedule,
        tmp_path / "ar.json",
    )
    mpiexec = str(MPIEXEC) if MPIEXEC.exists() else "mpiexec"
    from flowccl.run.launch import mpi_environment

    command = [mpiexec, "-n", "3", sys.executable, "-m", "flowccl", "run", str(tmp_path / "ar.json"), "--on", "mpi"]
    done = subprocess.run(
        command, env=mpi_environment() | os.environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("# Out of bounds values : 0 OK") == 1


def test_the_command_runs_on_numpy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_schedule(dgx1_schedule("allreduce"), tmp_path / "ar.json")
    size = ["--size", "1MB", "28", "--dtype", "float32", "half", "--inplace", "--iterations", "1"]
    assert main(["run", str(tmp_path / "ar.json"), *size]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(not line.startswith("#") for line in lines) == 4
    assert lines[-1] == "# Collective test concluded: flowccl run --on numpy"


def test_bad_input_is_exit_2_with_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "ar.json")
    save_schedule(dgx1_schedule("allreduce"), path)
    for words, options in (
        ("the schedule is for 8 ranks, but there are 4 processes", ["--on", "numpy", "--ranks", "4"]),
        ("2 bytes are less than one float32", ["--size", "2"]),
        ("numpy has no bfloat16", ["--dtype", "bfloat16"]),
        ("unknown dtype 'text'", ["--dtype", "text"]),
        ("cannot read 'much'", ["--size", "much"]),
    ):
        assert main(["run", path, *options]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(("on", "module", "extra"), [("gloo", "torch", "torch"), ("mpi", "mpi4py", "mpi")])
def test_a_missing_extra_is_named(
    on: str,
    module: str,
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else find(name))
    save_schedule(
        synthesize(machine("full:2"), "allreduce", 1000, steps=1, method="greedy").schedule, tmp_path / "ar.json"
    )
    assert main(["run", str(tmp_path / "ar.json"), "--on", on]) == 2
    assert f"needs {module}, which is not installed: pip install flowccl[{extra}]" in capsys.readouterr().err


def test_an_invalid_schedule_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = dgx1_schedule("allgather")
    columns = [getattr(schedule, name)[:-1] for name in ("chunk", "route", "start_ps", "reduce")]
    save_schedule(Schedule(schedule.topology, schedule.demand, schedule.routes, *columns), tmp_path / "bad.json")
    assert main(["run", str(tmp_path / "bad.json")]) == 1
    assert "is invalid" in capsys.readouterr().err
