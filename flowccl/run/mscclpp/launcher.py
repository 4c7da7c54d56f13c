"""Starts one process per rank for a job on this host, watches them, and ends all of them whatever happens."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowccl.errors import FlowcclError
from flowccl.export.formats.read_mscclpp import read_mscclpp
from flowccl.export.proof.interpreter import interpret
from flowccl.run.launch import error_line
from flowccl.run.mscclpp.cases import RankResult
from flowccl.run.mscclpp.mps import shared_gpu
from flowccl.run.mscclpp.worker import PlanJob
from flowccl.wording import counted

_POLL_S = 0.02
_MOST_WAITS = 4  # that a message names
_GRACE_S = 1.0  # for the other ranks to report their own errors after one has failed
_SCRIPT_MODULE = "flowccl.run.mscclpp.worker"

_SOCKETS = Path("/tmp")  # where MSCCL++ has a socket for each process, which a process that is killed leaves there

Command = Callable[[Path, int], Sequence[str]]


class HangError(FlowcclError):
    """Ranks did not finish within the time limit."""


def run_processes(job: PlanJob, timeout_s: float, command: Command | None = None) -> list[list[RankResult]]:
    """Run a job in one process per rank; return the results of all ranks for every case.

    A step of a case that takes longer than `timeout_s` ends the job. `command` returns the program of a rank for tests.
    """
    shared = len(set(job.devices)) < len(job.devices)
    with tempfile.TemporaryDirectory(prefix="flowccl-run-") as folder:
        path = Path(folder) / "job.json"
        job.save(path)
        daemon: AbstractContextManager[dict[str, str]] = nullcontext({})
        with shared_gpu() if shared and command is None else daemon as added:
            environment = os.environ | {"MSCCLPP_SOCKET_IFNAME": "lo"} | added
            with _processes(path, len(job.devices), environment, command or _worker_command) as started:
                return _Watch(job, path, started, timeout_s).until_complete()


def _worker_command(path: Path, rank: int) -> Sequence[str]:
    return [sys.executable, "-m", _SCRIPT_MODULE, str(path), str(rank)]


@contextmanager
def _processes(
    path: Path, ranks: int, environment: dict[str, str], command: Command
) -> "Iterator[list[subprocess.Popen[bytes]]]":
    """Start all ranks; at the end, kill and reap those that are still there."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):
            with path.with_name(f"output-{rank}.txt").open("wb") as output:
                started.append(
                    subprocess.Popen(
                        command(path, rank),
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )
        yield started
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
        for process in started:
            process.wait()
            _SOCKETS.joinpath(f"mscclpp_bootstrap_{process.pid}.sock").unlink(missing_ok=True)


@dataclass
class _Watch:
    """The progress of all ranks, from the events that they write."""

    job: PlanJob
    path: Path
    started: "list[subprocess.Popen[bytes]]"
    timeout_s: float
    offsets: dict[int, int] = field(default_factory=dict)
    last: dict[int, tuple[int, str]] = field(default_factory=dict)
    results: dict[tuple[int, int], RankResult] = field(default_factory=dict)

    def until_complete(self) -> list[list[RankResult]]:
        """Return the results of all ranks for every case, or raise what went wrong."""
        deadline = time.monotonic() + self.timeout_s
        while any(process.poll() is None for process in self.started):
            if self._read():
                deadline = time.monotonic() + self.timeout_s
            if any(process.poll() for process in self.started):
                break
            if time.monotonic() > deadline:
                raise HangError(self._hang())
            time.sleep(_POLL_S)
        self._raise_failure()
        self._read()
        ranks = range(len(self.started))
        return [[self.results[rank, number] for rank in ranks] for number in range(len(self.job.cases))]

    def _read(self) -> bool:
        """Read the new events of all ranks; return whether there were any."""
        found = False
        for rank in range(len(self.started)):
            path = self.path.with_name(f"events-{rank}.jsonl")
            data = path.read_bytes() if path.exists() else b""
            start = self.offsets.get(rank, 0)
            end = data.rfind(b"\n") + 1
            for line in data[start:end].splitlines():
                found = True
                self._event(rank, json.loads(line))
            self.offsets[rank] = max(start, end)
        return found

    def _event(self, rank: int, event: dict[str, Any]) -> None:
        number, what = event["case"], event["what"]
        if isinstance(what, dict):
            self.results[rank, number] = RankResult(what["wrong"], tuple(what["times_us"]))
            self.last[rank] = number, "complete"
        else:
            self.last[rank] = number, what

    def _where(self, rank: int) -> str:
        number, step = self.last.get(rank, (-1, "start"))
        return f"{step} of {self.job.cases[number]}" if number >= 0 else step

    def _hang(self) -> str:
        """Return the message for a hang: the ranks that did not finish, and where the interpreter gets stuck."""
        self._read()
        alive = [rank for rank, process in enumerate(self.started) if process.poll() is None]
        number = min((self.last.get(rank, (-1, ""))[0] for rank in alive), default=-1)
        late = [
            rank for rank in alive if self.last.get(rank, (-1, "")) == min(self.last.get(r, (-1, "")) for r in alive)
        ]
        names = ", ".join(map(str, late))
        message = f"no progress for {self.timeout_s:g} s; {counted(len(late), 'rank')} did not finish: {names}"
        message += f" ({self._where(late[0])})"
        return message if number < 0 else f"{message}; {explain_hang(self.job.cases[number].plan)}"

    def _raise_failure(self) -> None:
        if not any(process.poll() for process in self.started):
            return
        time.sleep(_GRACE_S)
        self._read()
        failed = [rank for rank, process in enumerate(self.started) if process.poll()]
        explained = [rank for rank in failed if self.path.with_name(f"error-{rank}.txt").exists()]
        rank = (explained or failed)[0]
        for other in failed:  # a rank that was killed is the cause; the others only lost their connection to it
            if (self.started[other].returncode or 0) < 0:
                rank = other
        raise FlowcclError(f"rank {rank} failed ({self._where(rank)}): {self._reason(rank)}")

    def _reason(self, rank: int) -> str:
        code = self.started[rank].returncode or 0
        if code < 0:
            return f"ended by signal {signal.Signals(-code).name}"
        for name in (f"error-{rank}.txt", f"output-{rank}.txt"):
            path = self.path.with_name(name)
            if path.exists() and path.read_text(errors="replace").strip():
                return error_line(path.read_text(errors="replace"))
        return f"ended with code {code}"


def explain_hang(path: str | Path) -> str:
    """Return a sentence about the waits in which the plan gets stuck, or that the interpreter finds none."""
    try:
        found = [str(one) for one in interpret(read_mscclpp(path)) if one.kind in ("deadlock", "pair")]
    except FlowcclError as error:
        return f"the plan could not be interpreted: {error}"
    if not found:
        return "the interpreter completes this plan, so the cause is outside the plan"
    return f"in the interpreter, the plan gets stuck: {'; '.join(found[:_MOST_WAITS])}"
