"""Sweeps: many cases on an engine. Finished cases are files, so that a sweep that was killed goes on where it was."""

import fcntl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flowccl.catalog.case import Case, FinishedCase, run_case
from flowccl.catalog.engine import TaskEngine, TaskFailure
from flowccl.errors import FileError, InputError
from flowccl.files import make_folder, read_json, write_json
from flowccl.topology.files import topology_to_json
from flowccl.topology.topology import Topology

CASES = ".cases"
_LOCK = ".lock"
_MAX_CASE_BYTES = 2_000_000_000


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The finished cases in the order of the sweep, and the message of every case that failed."""

    finished: tuple[FinishedCase, ...]
    failed: tuple[tuple[Case, str], ...]


def sweep(
    topology: Topology,
    cases: Sequence[Case],
    folder: Path,
    engine: TaskEngine,
    on_progress: Callable[[int, int, int], None] = lambda finished, total, before: None,
) -> SweepResult:
    """Run all cases that are not finished yet. Every finished case is written at once, as a whole file.

    `on_progress` receives the number of finished cases, of all, and of those that were finished before.
    """
    machine = topology_to_json(topology)
    store = make_folder(folder / CASES)
    paths = [store / f"{case.key(machine)}.json" for case in cases]
    found = {
        n: FinishedCase.from_json(read_json(p, _MAX_CASE_BYTES), str(p)) for n, p in enumerate(paths) if p.exists()
    }
    before, failed = len(found), []
    missing = [n for n in range(len(cases)) if n not in found]
    on_progress(before, len(cases), before)
    for at, outcome in engine.map(run_case, [(machine, cases[n]) for n in missing]):
        number = missing[at]
        if isinstance(outcome, TaskFailure):
            failed.append((number, outcome.message))
        else:
            write_json(paths[number], outcome)
            found[number] = FinishedCase.from_json(outcome, str(paths[number]))
        on_progress(len(found) + len(failed), len(cases), before)
    return SweepResult(
        tuple(found[n] for n in sorted(found)), tuple((cases[n], message) for n, message in sorted(failed))
    )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create the folder and keep other builds out of it; the lock ends with the process, even if it is killed."""
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder}: is a file, not a folder")
    try:
        folder.mkdir(exist_ok=True)
        handle = (folder / _LOCK).open("w")
    except OSError as error:
        raise FileError(f"{folder}: cannot be written: {error.strerror or error}") from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{folder}: another build writes to this folder; wait for it, or choose another") from None
        yield
