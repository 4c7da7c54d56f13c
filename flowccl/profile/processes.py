"""Start and monitor the processes of a profile, and keep the measurements even if a process fails.

Under mpiexec or torchrun, this process is already one of the ranks; rank 0 then returns the result.
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
from flowccl.run.launch import error_line, find_mpiexec, mpi_environment, require_extra, under_mpiexec, under_torchrun

PLACES = ("gloo", "mpi", "nccl")
_SILENCE_S = 120.0  # the processes are ended if no round completes for this long


@dataclass(frozen=True)
class Job:
    """What to measure: backend, number of ranks and options; each round is appended to the file `part`."""

    on: str
    ranks: int
    options: PlanOptions
    part: Path


def measure_machine(
    on: str, ranks: int | None, options: PlanOptions, out: str | Path, on_round: Callable[[int, int], None]
) -> Measurements | None:
    """Measure and write the measurements beside `out`; None if another process has them.

    `on_round` is called with the number of completed rounds and of all rounds. If a rank dies, the error names the
    rank and what was not measured.
    """
    require_extra(on)
    path = measurements_path(out)
    part = path.with_name(path.name + ".part")
    if under_torchrun() if on != "mpi" else under_mpiexec():
        return _join_launcher(Job(on, ranks or 0, options, part), path, on_round)
    count = _default_ranks(on) if ranks is None else ranks
    check_ranks(count)
    if on == "nccl" and count > (gpus := _default_ranks(on)):
        here = f"{gpus} GPU{'' if gpus == 1 else 's'} here"
        raise InputError(f"--on nccl needs one GPU per rank: {count} ranks, but {here}")
    part.unlink(missing_ok=True)
    job = Job(on, count, options, part)
    with tempfile.TemporaryDirectory(prefix="flowccl-profile-") as folder:
        start = _start_mpi if on == "mpi" else _start_torch
        with start(job, Path(folder)) as processes:
            failure = _follow(processes, part, on_round)
    return _finish_measurements(part, path, failure)


def _default_ranks(on: str) -> int:
    """Default number of ranks: the number of GPUs with nccl, otherwise 4."""
    if on != "nccl":
        return 4
    from flowccl.run.torch_run import devices

    return devices()


def _finish_measurements(part: Path, path: Path, failure: str) -> Measurements:
    """Return the measurements; raise an error that lists what is missing if a process failed."""
    from flowccl.profile.show import describe_missing

    if count_lines(part) == 0:
        part.unlink(missing_ok=True)
        raise InputError(f"{failure or 'the processes ended'}; nothing was measured")
    found = finish_lines(part, path)
    if failure or not found.complete:
        done = f"{failure or 'the processes ended'} after {found.rounds_done} of {found.rounds} rounds"
        again = f"the measurements are kept; fit them with: flowccl profile --from {path} --out MACHINE"
        raise InputError(f"{done}; {describe_missing(found)}; {again}")
    return found


# -- processes --------------------------------------------------------------------------------------------------------


class Processes(Protocol):
    """Started processes."""

    def failure(self) -> str | None:
        """None while they run, "" if all ended successfully, otherwise a description of the failure."""

    def end(self) -> None:
        """End them all."""


def _follow(processes: Processes, part: Path, on_round: Callable[[int, int], None]) -> str:
    """Wait until all processes have ended; return a description of the failure, or "" on success."""
    done, since = 0, time.monotonic()
    try:
        while (failure := processes.failure()) is None:
            time.sleep(0.05)
            now = count_lines(part)
            if now != done:
                done, since = now, time.monotonic()
                on_round(done, planned_rounds(part))
            if time.monotonic() - since > _SILENCE_S:
                return f"no round ended for {_SILENCE_S:g} s, so the processes were ended"
        return failure
    except KeyboardInterrupt:
        return "interrupted"
    finally:
        processes.end()


@dataclass(frozen=True)
class _Mpi:
    process: "subprocess.Popen[str]"
    output: Path

    def failure(self) -> str | None:
        code = self.process.poll()
        if code is None or code == 0:
            return None if code is None else ""
        text = self.output.read_text(errors="replace")
        rank, died = re.search(r"process rank (\d+)", text), re.search(r"exited\s+on\s+signal (\d+)", text)
        if rank and died:
            return f"rank {rank[1]} died ({signal.Signals(int(died[1])).name})"
        return f"{f'rank {rank[1]}' if rank else 'mpiexec'} failed: {error_line(text)}"

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
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(command, env=mpi_environment(job.ranks), stdout=output, stderr=output, text=True)
        started = _Mpi(process, folder / "output")
        try:
            yield started
        finally:
            started.end()


@dataclass(frozen=True)
class _Torch:
    processes: list[Any]
    folder: Path

    def failure(self) -> str | None:
        codes = [process.exitcode for process in self.processes]
        if not any(codes):
            return "" if all(code == 0 for code in codes) else None
        time.sleep(0.5)  # when a rank dies, others fail too: wait so that the killed rank is the one reported
        codes = [process.exitcode for process in self.processes]
        killed = [rank for rank, code in enumerate(codes) if code is not None and code < 0]
        if killed:
            return f"rank {killed[0]} died ({signal.Signals(-codes[killed[0]]).name})"
        rank = next(rank for rank, code in enumerate(codes) if code)
        output = self.folder / f"error-{rank}.txt"
        return f"rank {rank} failed: {error_line(output.read_text() if output.exists() else '')}"

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
        [
            context.Process(target=_run_torch_rank, args=(job, rank, str(folder)), daemon=True)
            for rank in range(job.ranks)
        ],
        folder,
    )
    for process in started.processes:
        process.start()
    try:
        yield started
    finally:
        started.end()


def _run_torch_rank(job: Job, rank: int, folder: str) -> None:
    from flowccl.run.torch_run import group

    try:
        with group(job.on, (f"{folder}/meeting", rank, job.ranks)) as backend:
            take_measurements(backend, job.ranks, job.on, job.options, job.part)
    except BaseException:
        Path(folder, f"error-{rank}.txt").write_text(traceback.format_exc())
        raise


def _join_launcher(job: Job, path: Path, on_round: Callable[[int, int], None]) -> Measurements | None:
    """Take part as one of the processes that mpiexec or torchrun started."""
    done = 0

    def count_round(rounds: int) -> None:
        nonlocal done
        done += 1
        on_round(done, rounds)

    failure, rank = "", 0
    try:
        if job.on == "mpi":
            rank = _run_mpi_rank(job, count_round)
        else:
            from flowccl.run.torch_run import group

            with group(job.on) as backend:
                rank = backend.process
                take_measurements(backend, backend.dist.get_world_size(), job.on, job.options, job.part, count_round)
    except (RuntimeError, KeyboardInterrupt) as error:  # torch raises RuntimeError if a peer is gone
        failure = f"a rank died ({error_line(str(error))})"
    return _finish_measurements(job.part, path, failure) if rank == 0 else None


def _run_mpi_rank(job: Job, on_round: Callable[[int], None] | None = None) -> int:
    """Take part in the measurement and return the rank of this process."""
    from flowccl.run.mpi_run import MpiBackend

    backend = MpiBackend()
    take_measurements(
        backend, backend.comm.Get_size(), job.on, job.options, job.part, on_round if backend.process == 0 else None
    )
    return backend.process


def main(path: str) -> int:
    """Run one process of a job file that `flowccl profile --on mpi` has written."""
    given = read_json(path, 10_000_000)
    options = PlanOptions(**given["options"] | {"sizes": tuple(given["options"]["sizes"])})
    _run_mpi_rank(Job(given["on"], given["ranks"], options, Path(given["part"])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
