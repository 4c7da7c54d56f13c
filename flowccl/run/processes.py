"""Run a schedule in this process (numpy), or in processes that are started for it: gloo (torch) or MPI.

Under mpiexec or torchrun, this process is already one of them. It then runs only its own rank, and rank 0 gets the
rows.
"""

import logging
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flowccl.errors import FlowcclError, InputError
from flowccl.files import read_json, write_json
from flowccl.memory import VARIABLE, available_bytes
from flowccl.run.backends import Backend, in_group
from flowccl.run.launch import is_started, require_extra, run_processes, under_torchrun
from flowccl.run.measure import CallTiming, Row, RunOptions, run_cases, run_numpy
from flowccl.run.program import make_program
from flowccl.run.values import find_dtype, numpy_dtype
from flowccl.schedule.files import load_schedule, save_schedule
from flowccl.schedule.schedule import Schedule
from flowccl.units import format_bytes

BACKENDS = ("numpy", "gloo", "mpi")
"""The backends on which a schedule can run."""

_MAX_BYTES = 10_000_000
_COPIES_OF_OUTPUT = 3  # measured: the outputs, what is expected in them, and chunks on the way; inputs are there once

log = logging.getLogger(__name__)


def run_schedule(schedule: Schedule, on: str, options: RunOptions, ranks: int | None = None) -> list[Row] | None:
    """Run and check every case; return the rows of the table, or None if another process has them.

    `on` is numpy (the reference, in this process), gloo or mpi. `ranks` is the number of processes, by default one for
    each rank of the schedule; additional processes act as memories and relays.
    """
    if on not in BACKENDS:
        raise InputError(f"unknown backend {on!r}; known backends: {', '.join(BACKENDS)}")
    require_extra(on)
    program = make_program(schedule, ranks)  # raises early if the schedule cannot run
    if on != "gloo":
        for name in options.dtypes:
            numpy_dtype(find_dtype(name))
    _check_memory(schedule, options, on)
    for words in program.describe_stand_ins() if on != "numpy" else ():
        log.info("%s", words)
    if on == "numpy":
        return run_numpy(schedule, options)
    if is_started(on):
        with in_group(on) as backend:
            return _rows(backend, schedule, options)
    with tempfile.TemporaryDirectory(prefix="flowccl-run-") as name:
        folder = Path(name)
        save_schedule(schedule, folder / "schedule.json")
        write_json(folder / "options.json", asdict(options))
        failure = run_processes(on, program.processes, "flowccl.run.processes:run_job", folder)
        if failure or not (folder / "rows.json").exists():
            raise FlowcclError(f"{on}: {failure or 'no result'}")
        return [_row_of(row) for row in read_json(folder / "rows.json", _MAX_BYTES)]


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


def run_job(backend: Backend, folder: Path) -> None:
    """Run one process of a job; rank 0 writes the rows."""
    given = read_json(folder / "options.json", _MAX_BYTES)
    options = RunOptions(tuple(given["sizes"]), tuple(given["dtypes"]), given["inplace"], given["iterations"])
    rows = _rows(backend, load_schedule(folder / "schedule.json"), options)
    if rows is not None:
        write_json(folder / "rows.json", [asdict(row) for row in rows])


def _rows(backend: Backend, schedule: Schedule, options: RunOptions) -> list[Row] | None:
    """Run the schedule as one of the processes; return the rows on rank 0, None on other ranks."""
    rows = run_cases(make_program(schedule, backend.processes), options, backend)
    return rows if backend.process == 0 else None


def _row_of(value: dict[str, Any]) -> Row:
    places = {key: value[key] and CallTiming(**value[key]) for key in ("out_of_place", "in_place")}
    return Row(**value | places)
