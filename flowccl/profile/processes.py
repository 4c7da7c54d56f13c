"""Starts the processes of a profile, follows them, and keeps what was measured whatever happens to them.

Started under mpiexec or torchrun, this process is already one of them; then rank 0 has the result.
"""

import multiprocessing
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from flowccl.errors import InputError
from flowccl.files import read_json, write_json
from flowccl.profile.measurements import Measurements, count_lines, finish_lines, measurements_path, planned_rounds
from flowccl.profile.probes import PlanOptions, check_ranks
from flowccl.profile.worker import take_measurements
from flowccl.run.launch import find_mpiexec, last_words, mpi_environment, need_extra, under_mpiexec, under_torchrun

PLACES = ("gloo", "mpi", "nccl")
_SILENCE_S = 120.0  # without a round, after which the processes are given up


@dataclass(frozen=True)
class Job:
    """What to measure: on what, how many ranks, how; `part` is the file that grows by a line per round."""

    on: str
    ranks: int
    options: PlanOptions
    part: Path


def measure_machine(
    on: str, ranks: int | None, options: PlanOptions, out: str | Path, on_round: Callable[[int, int], None]
) -> Measurements | None:
    """Measure, and write the measurements beside `out`; None where another process has them.

    `on_round` hears how many rounds are done, and of how many. Where a rank dies, the error says which, and what is
    not measured.
    """
    need_extra(on)
    path = measurements_path(out)
    part = path.with_name(path.name + ".part")
    if under_torchrun() if on != "mpi" else under_mpiexec():
        return _take_part(Job(on, ranks or 0, options, part), path, on_round)
    count = _default_ranks(on) if ranks is None else ranks
    check_ranks(count)
    if on == "nccl" and count > (gpus := _default_ranks(on)):
        here = f"{gpus} GPU{'' if gpus == 1 else 's'} here"
        raise InputError(f"--on nccl needs one GPU for each rank: {count} ranks, but {here}")
    part.unlink(missing_ok=True)
    job = Job(on, count, options, part)
    with tempfile.TemporaryDirectory(prefix="flowccl-profile-") as folder:
        start = _start_mpi if on == "mpi" else _start_torch
        with start(job, Path(folder)) as processes:
            trouble = _follow(processes, part, on_round)
    return _kept(part, path, trouble)


def _default_ranks(on: str) -> int:
    """As many ranks as there are GPUs; processes on the CPU: 4."""
    if on != "nccl":
        return 4
    from flowccl.run.torch_run import devices

    return devices()


def _kept(part: Path, path: Path, trouble: str) -> Measurements:
    """What was measured; an error that names the rest where something went wrong."""
    from flowccl.profile.show import what_is_missing

    if count_lines(part) == 0:
        part.unlink(missing_ok=True)
        raise InputError(f"{trouble or 'the processes ended'}; nothing was measured")
    found = finish_lines(part, path)
    if trouble or not found.complete:
        done = f"{trouble or 'the processes ended'} after {found.rounds_done} of {found.rounds} rounds"
        again = f"what was measured is kept: flowccl profile --from {path} --out MACHINE fits it"
        raise InputError(f"{done}; {what_is_missing(found)}; {again}")
    return found


# -- processes --------------------------------------------------------------------------------------------------------


class Processes(Protocol):
    """Processes that were started."""

    def trouble(self) -> str | None:
        """None while they run; "" when all ended well; else who died, in words."""

    def end(self) -> None:
        """End them all."""


def _follow(processes: Processes, part: Path, on_round: Callable[[int, int], None]) -> str:
    """Wait until all have ended; says in words what went wrong, or nothing."""
    done, since = 0, time.monotonic()
    try:
        while (trouble := processes.trouble()) is None:
            time.sleep(0.05)
            now = count_lines(part)
            if now != done:
                done, since = now, time.monotonic()
                on_round(done, planned_rounds(part))
            if time.monotonic() - since > _SILENCE_S:
                return f"no round ended for {_SILENCE_S:g} s, so the processes were ended"
        return trouble
    except KeyboardInterrupt:
        return "interrupted"
    finally:
        processes.end()


@dataclass(frozen=True)
class _Mpi:
    process: "subprocess.Popen[str]"
    said: Path

    def trouble(self) -> str | None:
        code = self.process.poll()
        if code is None or code == 0:
            return None if code is None else ""
        text = self.said.read_text(errors="replace")
        rank, died = re.search(r"process rank (\d+)", text), re.search(r"exited\s+on\s+signal (\d+)", text)
        if rank and died:
            return f"rank {rank[1]} died ({signal.Signals(int(died[1])).name})"
        return f"{f'rank {rank[1]}' if rank else 'mpiexec'} failed: {last_words(text)}"

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@contextmanager
def _start_mpi(job: Job, folder: Path) -> Iterator[Processes]:
    write_json(folder / "job.json", asdict(job) | {"part": str(job.part.resolve())})
    worker = [sys.executable, "-m", "mpi4py", "-m", "flowccl.profile.processes", str(folder / "job.json")]
    command = [find_mpiexec(), "-n", str(job.ranks), *worker]
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(command, env=mpi_environment(job.ranks), stdout=said, stderr=said, text=True)
        started = _Mpi(process, folder / "said")
        try:
            yield started
        finally:
            started.end()


@dataclass(frozen=True)
class _Torch:
    processes: list[Any]
    folder: Path

    def trouble(self) -> str | None:
        codes = [process.exitcode for process in self.processes]
        if not any(codes):
            return "" if all(code == 0 for code in codes) else None
        time.sleep(0.5)  # a rank that dies takes others with it: the killed one is the first to name
        codes = [process.exitcode for process in self.processes]
        killed = [rank for rank, code in enumerate(codes) if code is not None and code < 0]
        if killed:
            return f"rank {killed[0]} died ({signal.Signals(-codes[killed[0]]).name})"
        rank = next(rank for rank, code in enumerate(codes) if code)
        said = self.folder / f"error-{rank}.txt"
        return f"rank {rank} failed: {last_words(said.read_text() if said.exists() else '')}"

    def end(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.terminate()
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()


@contextmanager
def _start_torch(job: Job, folder: Path) -> Iterator[Processes]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "flowccl.profile.processes"])
    started = _Torch(
        [context.Process(target=_play_torch, args=(job, rank, str(folder)), daemon=True) for rank in range(job.ranks)],
        folder,
    )
    for process in started.processes:
        process.start()
    try:
        yield started
    finally:
        started.end()


def _play_torch(job: Job, rank: int, folder: str) -> None:
    from flowccl.run.torch_run import group

    try:
        with group(job.on, (f"{folder}/meeting", rank, job.ranks)) as backend:
            take_measurements(backend, job.ranks, job.on, job.options, job.part)
    except BaseException:
        Path(folder, f"error-{rank}.txt").write_text(traceback.format_exc())
        raise


def _take_part(job: Job, path: Path, on_round: Callable[[int, int], None]) -> Measurements | None:
    """Be one of the processes that mpiexec or torchrun started."""
    done = 0

    def heard(rounds: int) -> None:
        nonlocal done
        done += 1
        on_round(done, rounds)

    trouble, rank = "", 0
    try:
        if job.on == "mpi":
            rank = _play_mpi(job, heard)
        else:
            from flowccl.run.torch_run import group

            with group(job.on) as backend:
                rank = backend.process
                take_measurements(backend, backend.dist.get_world_size(), job.on, job.options, job.part, heard)
    except (RuntimeError, KeyboardInterrupt) as error:  # torch: a peer is gone
        trouble = f"a rank died ({last_words(str(error))})"
    return _kept(job.part, path, trouble) if rank == 0 else None


def _play_mpi(job: Job, on_round: Callable[[int], None] | None = None) -> int:
    """Take part; the rank."""
    from flowccl.run.mpi_run import MpiBackend

    backend = MpiBackend()
    take_measurements(
        backend, backend.comm.Get_size(), job.on, job.options, job.part, on_round if backend.process == 0 else None
    )
    return backend.process


def main(path: str) -> int:
    """One process of a job that `flowccl profile --on mpi` has written."""
    given = read_json(path, 10_000_000)
    options = PlanOptions(**given["options"] | {"sizes": tuple(given["options"]["sizes"])})
    _play_mpi(Job(given["on"], given["ranks"], options, Path(given["part"])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
