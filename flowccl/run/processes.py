"""Run a schedule in this process (numpy), or in processes that are started for it: gloo (torch) or MPI.

Under mpiexec or torchrun, this process is already one of them. It then runs only its own rank, and rank 0 gets the
rows.
"""

import logging
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from flowccl.errors import FlowcclError, InputError
from flowccl.memory import VARIABLE, available_bytes
from flowccl.run.jobs import read_rows, write_job
from flowccl.run.launch import error_line, find_mpiexec, mpi_environment, require_extra, under_mpiexec, under_torchrun
from flowccl.run.measure import Row, RunOptions, run_numpy
from flowccl.run.program import make_program
from flowccl.run.values import find_dtype, numpy_dtype
from flowccl.schedule.schedule import Schedule
from flowccl.units import format_bytes

_COPIES_OF_OUTPUT = 3  # measured: the outputs, what is expected in them, and chunks on the way; inputs are there once

log = logging.getLogger(__name__)


def run_schedule(schedule: Schedule, on: str, options: RunOptions, ranks: int | None = None) -> list[Row] | None:
    """Run and check every case; return the rows of the table, or None if another process has them.

    `on` is numpy (the reference, in this process), gloo or mpi. `ranks` is the number of processes, by default one for
    each rank of the schedule; additional processes act as memories and relays.
    """
    if on not in STARTERS:
        raise InputError(f"unknown backend {on!r}; known backends: {', '.join(STARTERS)}")
    require_extra(on)
    program = make_program(schedule, ranks)  # raises early if the schedule cannot run
    if on != "gloo":
        for name in options.dtypes:
            numpy_dtype(find_dtype(name))
    _check_memory(schedule, options, on)
    for words in program.describe_stand_ins() if on != "numpy" else ():
        log.info("%s", words)
    return STARTERS[on](schedule, options, program.processes)


def _check_memory(schedule: Schedule, options: RunOptions, on: str) -> None:
    """Refuse a size with which the buffers of all ranks would not fit into the memory of this computer."""
    here = on == "numpy" or (on == "gloo" and not under_torchrun())
    for layout, dtype in options.cases(schedule):
        counts = float(sum(layout.input_count)), float(sum(layout.output_count))
        needed = (counts[0] + _COPIES_OF_OUTPUT * counts[1]) * dtype.itemsize
        if here and needed > (available := available_bytes()):
            size = format_bytes(layout.count * dtype.itemsize)
            raise InputError(
                f"{size} on {len(layout.input_count)} ranks takes about {format_bytes(int(needed))} of memory, and "
                f"{format_bytes(int(available))} are available; run a smaller --size, or set {VARIABLE}"
            )


def _run_numpy(schedule: Schedule, options: RunOptions, _processes: int) -> list[Row]:
    return run_numpy(schedule, options)


def _run_mpi(schedule: Schedule, options: RunOptions, processes: int) -> list[Row] | None:
    """Return the rows of an `mpiexec` run, which starts `python -m flowccl.run.mpi_run` in every process."""
    if under_mpiexec():
        from flowccl.run.mpi_run import run_here

        return run_here(schedule, options)
    mpiexec = find_mpiexec()
    with tempfile.TemporaryDirectory(prefix="flowccl-run-") as folder:
        job, rows = write_job(schedule, options, Path(folder))
        # under `-m mpi4py`, an error in one process aborts all of them
        worker = [sys.executable, "-m", "mpi4py", "-m", "flowccl.run.mpi_run", str(job)]
        command = [mpiexec, "-n", str(processes), *worker]
        done = subprocess.run(command, env=mpi_environment(processes), capture_output=True, text=True, check=False)
        if done.returncode or not rows.exists():
            raise FlowcclError(f"mpiexec ended with code {done.returncode}: {error_line(done.stderr or done.stdout)}")
        return read_rows(rows)


def _run_gloo(schedule: Schedule, options: RunOptions, processes: int) -> list[Row] | None:
    """Return the rows of gloo processes, forked from a server that has already imported torch, which saves time."""
    from flowccl.run import torch_run

    if under_torchrun():
        return torch_run.run_here(schedule, options)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "flowccl.run.torch_run"])
    with tempfile.TemporaryDirectory(prefix="flowccl-run-") as folder:
        job, rows = write_job(schedule, options, Path(folder))
        started = [
            context.Process(target=torch_run.run_one, args=(rank, processes, str(job)), daemon=True)
            for rank in range(processes)
        ]
        for process in started:
            process.start()
        wait_for(started)
        failed = [rank for rank, process in enumerate(started) if process.exitcode]
        if failed or not rows.exists():
            errors = sorted(Path(folder).glob("error-*.txt"))
            code = f"code {started[failed[0]].exitcode}" if failed else "no result"
            text = errors[0].read_text() if errors else code
            raise FlowcclError(f"a gloo process failed: {error_line(text)}")
        return read_rows(rows)


def wait_for(started: "list[multiprocessing.context.ForkServerProcess]") -> None:
    """Wait until all processes have ended; if one fails, terminate the others, which would wait for it."""
    while any(process.is_alive() for process in started):
        if any(process.exitcode for process in started):
            time.sleep(0.5)
            for process in started:
                process.terminate()
        for process in started:
            process.join(timeout=0.05)


STARTERS: dict[str, Callable[[Schedule, RunOptions, int], list[Row] | None]] = {
    "numpy": _run_numpy,
    "gloo": _run_gloo,
    "mpi": _run_mpi,
}
"""The backends on which a schedule can run."""
