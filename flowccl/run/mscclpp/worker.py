"""One rank of a job, started as `python -m flowccl.run.mscclpp.worker JOB RANK`; it ends with its parent process.

Each step that begins and each result is a line of JSON in `events-RANK.jsonl` beside the job. An error ends the
process, with its message in `error-RANK.txt`.
"""

import ctypes
import dataclasses
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flowccl.errors import FlowcclError
from flowccl.files import read_json, write_json
from flowccl.run.mscclpp import cuda
from flowccl.run.mscclpp.cases import PlanCase, run_case
from flowccl.run.mscclpp.runtime import CONNECT_S, Provider, Share

_MAX_BYTES = 100_000_000
_PARENT_DIES = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True, slots=True)
class PlanJob:
    """Cases for all ranks, the GPU of each rank, and where MSCCL++ comes from."""

    cases: tuple[PlanCase, ...]
    devices: tuple[int, ...]
    version: str
    library: str | None

    def save(self, path: Path) -> None:
        """Write the job to a file."""
        write_json(path, dataclasses.asdict(self))

    @property
    def provider(self) -> Provider:
        """Where MSCCL++ comes from."""
        return Provider(self.version, None if self.library is None else Path(self.library))


def load_job(path: Path) -> PlanJob:
    """Return the job in a file."""
    value = read_json(path, _MAX_BYTES)
    cases = tuple(PlanCase(**case) for case in value["cases"])
    return PlanJob(cases, tuple(value["devices"]), value["version"], value["library"])


def share_by_file(path: Path, limit_s: float = CONNECT_S) -> Share:
    """Return a `Share` through a file: rank 0 writes it, the others wait for it."""

    def share(given: bytes | None) -> bytes:
        if given is not None:
            draft = path.with_suffix(".new")
            draft.write_bytes(given)
            draft.replace(path)
            return given
        deadline = time.monotonic() + limit_s
        while not path.exists():
            if time.monotonic() > deadline:
                raise FlowcclError("rank 0 did not start in time")
            time.sleep(0.01)
        return path.read_bytes()

    return share


def run_job(job: PlanJob, rank: int, share: Share, report: Callable[[int, Any], None]) -> None:
    """Run all cases of a job as one rank; `report` gets the number of the case, and a step's name or a result."""
    cuda.use_device(job.devices[rank])
    report(-1, "connect")
    runtime = job.provider.open(rank, len(job.devices), share)
    for number, case in enumerate(job.cases):
        report(number, run_case(runtime, rank, case, partial(report, number)))
    runtime.barrier()
    runtime.close()


def end_with_parent() -> None:
    """Let the kernel end this process when its parent ends, so that no process is left over."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PARENT_DIES, signal.SIGKILL)
    if os.getppid() != parent or parent == 1:
        sys.exit(1)


def main(path: str, number: str) -> None:
    """Run one rank of a job."""
    end_with_parent()
    job, rank = Path(path), int(number)
    with job.with_name(f"events-{rank}.jsonl").open("w") as events:

        def report(case: int, what: Any) -> None:
            value = what if isinstance(what, str) else dataclasses.asdict(what)
            events.write(json.dumps({"case": case, "what": value}) + "\n")
            events.flush()

        try:
            run_job(load_job(job), rank, share_by_file(job.with_name("unique-id")), report)
        except FlowcclError as error:
            job.with_name(f"error-{rank}.txt").write_text(str(error))
            os._exit(1)
        except BaseException:
            job.with_name(f"error-{rank}.txt").write_text(traceback.format_exc())
            os._exit(1)
    os._exit(0)  # the runtime's threads and the driver need no orderly end


if __name__ == "__main__":
    main(*sys.argv[1:])
