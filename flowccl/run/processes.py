"""Runs a schedule in this process, or in real processes started for it: numpy, gloo (torch) or MPI.

Started under mpiexec or torchrun, this process is already one of them: then it only plays its rank, and rank 0 gets
the rows.
"""

import dataclasses
import json
import logging
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from flowccl.errors import FlowcclError, InputError
from flowccl.files import read_json, write_json
from flowccl.run.launch import find_mpiexec, last_words, mpi_environment, need_extra, under_mpiexec, under_torchrun
from flowccl.run.measure import Options, Row, TimeExpanded, run_numpy
from flowccl.run.program import make_program
from flowccl.run.values import find_dtype, numpy_dtype
from flowccl.schedule.files import load_schedule, save_schedule
from flowccl.schedule.schedule import Schedule

log = logging.getLogger(__name__)


def run_schedule(schedule: Schedule, on: str, options: Options, ranks: int | None = None) -> list[Row] | None:
    """Run every case and check it; the rows of the table, or None where another process has them.

    `on` is numpy (the reference, in this process), gloo or mpi; `ranks` the number of processes, by default one for
    each rank of the schedule; spare ones play memories and relays.
    """
    if on not in STARTERS:
        raise InputError(f"unknown place to run {on!r}; known are {', '.join(STARTERS)}")
    need_extra(on)
    program = make_program(schedule, ranks)  # says now what cannot be run
    if on != "gloo":
        for name in options.dtypes:
            numpy_dtype(find_dtype(name))
    options.cases(schedule)
    for words in program.played() if on != "numpy" else ():
        log.info("%s", words)
    return STARTERS[on](schedule, options, program.processes)


def _run_numpy(schedule: Schedule, options: Options, _processes: int) -> list[Row]:
    return run_numpy(schedule, options)


def _run_mpi(schedule: Schedule, options: Options, processes: int) -> list[Row] | None:
    """Rows from `mpiexec`, which starts `python -m flowccl.run.mpi_run` in every process."""
    if under_mpiexec():
        from flowccl.run.mpi_run import run_here

        return run_here(schedule, options)
    mpiexec = find_mpiexec()
    with tempfile.TemporaryDirectory(prefix="flowccl-run-") as folder:
        job, rows = _write_job(schedule, options, Path(folder))
        worker = [sys.executable, "-m", "mpi4py", "-m", "flowccl.run.mpi_run", str(job)]  # mpi4py ends all on an error
        command = [mpiexec, "-n", str(processes), *worker]
        done = subprocess.run(command, env=mpi_environment(processes), capture_output=True, text=True, check=False)
        if done.returncode or not rows.exists():
            raise FlowcclError(f"mpiexec ended with code {done.returncode}: {last_words(done.stderr or done.stdout)}")
        return _read_rows(rows)


def _run_gloo(schedule: Schedule, options: Options, processes: int) -> list[Row] | None:
    """Rows from processes forked off a server that has torch loaded already, which saves its load time."""
    from flowccl.run import torch_run

    if under_torchrun():
        return torch_run.run_here(schedule, options)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "flowccl.run.torch_run"])
    with tempfile.TemporaryDirectory(prefix="flowccl-run-") as folder:
        job, rows = _write_job(schedule, options, Path(folder))
        started = [
            context.Process(target=torch_run.run_one, args=(rank, processes, str(job)), daemon=True)
            for rank in range(processes)
        ]
        for process in started:
            process.start()
        _wait_for(started)
        failed = [rank for rank, process in enumerate(started) if process.exitcode]
        if failed or not rows.exists():
            said = sorted(Path(folder).glob("error-*.txt"))
            words = said[0].read_text() if said else f"code {started[failed[0]].exitcode}" if failed else "no result"
            raise FlowcclError(f"a process of gloo failed: {last_words(words)}")
        return _read_rows(rows)


def _wait_for(started: "list[multiprocessing.context.ForkServerProcess]") -> None:
    """Wait until all have ended; end the others soon after one has failed, for they would wait for it."""
    while any(process.is_alive() for process in started):
        if any(process.exitcode for process in started):
            time.sleep(0.5)
            for process in started:
                process.terminate()
        for process in started:
            process.join(timeout=0.05)


STARTERS: dict[str, Callable[[Schedule, Options, int], list[Row] | None]] = {
    "numpy": _run_numpy,
    "gloo": _run_gloo,
    "mpi": _run_mpi,
}
"""Where a schedule can run."""


# -- a job as files in a folder of its own --------------------------------------------------------------------------


def _write_job(schedule: Schedule, options: Options, folder: Path) -> tuple[Path, Path]:
    """The job's file, and where rank 0 will leave the rows."""
    save_schedule(schedule, folder / "schedule.json")
    write_json(folder / "job.json", dataclasses.asdict(options))
    return folder / "job.json", folder / "rows.json"


def read_job(job: str) -> tuple[Schedule, Options]:
    """The schedule and the options that a started process works on."""
    given = read_json(job, 10_000_000)
    options = Options(tuple(given["sizes"]), tuple(given["dtypes"]), given["inplace"], given["iterations"])
    return load_schedule(Path(job).with_name("schedule.json")), options


def leave_rows(job: str, rows: list[Row]) -> None:
    """What rank 0 leaves for the process that started it."""
    write_json(Path(job).with_name("rows.json"), [dataclasses.asdict(row) for row in rows])


def _read_rows(path: Path) -> list[Row]:
    rows = json.loads(path.read_text())
    for row in rows:
        for key in ("out_of_place", "in_place"):
            row[key] = None if row[key] is None else TimeExpanded(**row[key])
    return [Row(**row) for row in rows]
