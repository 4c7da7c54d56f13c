"""One process of an MPI run: `mpiexec -n 8 python -m flowccl.run.mpi_run JOB`. Arrays are numpy's, sent as bytes."""

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowccl.errors import InputError
from flowccl.run.jobs import read_job, write_rows
from flowccl.run.measure import Row, RunOptions, run_cases
from flowccl.run.program import make_program
from flowccl.run.values import Dtype, numpy_dtype
from flowccl.schedule.schedule import Schedule


class MpiBackend:
    """The processes of MPI.COMM_WORLD."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.mpi = MPI
        self.comm = MPI.COMM_WORLD
        self.process: int = self.comm.Get_rank()

    def array(self, values: Any, dtype: Dtype) -> Any:
        """Return a flat array of whole numbers."""
        return np.asarray(values).astype(numpy_dtype(dtype))

    def empty(self, count: int, dtype: Dtype) -> Any:
        """Return a flat array of ones, so that missing writes are found."""
        return np.ones(count, dtype=numpy_dtype(dtype))

    def exchange(self, sends: Sequence[tuple[int, int, Any]], receives: Sequence[tuple[int, int, Any]]) -> None:
        """Post all receives, then all sends, then wait for all. Arrays are sent as bytes: MPI has no float16."""
        byte = self.mpi.BYTE
        posted = [self.comm.Irecv([array.view(np.uint8), byte], peer, tag) for peer, tag, array in receives]
        posted += [self.comm.Isend([array.view(np.uint8), byte], peer, tag) for peer, tag, array in sends]
        self.mpi.Request.Waitall(posted)

    def wrong(self, array: Any, expected: Any) -> int:
        """Return the number of elements that differ."""
        return int(np.count_nonzero(array != expected))

    def barrier(self) -> None:
        """Wait for all processes."""
        self.comm.Barrier()

    def allreduce(self, numbers: Sequence[float]) -> list[float]:
        """Return each number summed over all processes; a waiting process sleeps and leaves its core to the others."""
        given, total = np.array(numbers, dtype=np.float64), np.zeros(len(numbers))
        request = self.comm.Iallreduce(given, total)
        while not request.Test():
            time.sleep(50e-6)
        return [float(number) for number in total]


def run_here(schedule: Schedule, options: RunOptions) -> list[Row] | None:
    """Run the schedule as this process; return the rows on rank 0, None on other ranks."""
    backend = MpiBackend()
    program = make_program(schedule, backend.comm.Get_size())
    rows = run_cases(program, options, backend)
    return rows if backend.process == 0 else None


def main(job: str) -> int:
    """Run one process of a job that `flowccl run` has written."""
    schedule, options = read_job(job)
    rows = run_here(schedule, options)
    if rows is not None:
        write_rows(job, rows)
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise InputError("usage: python -m flowccl.run.mpi_run JOB; `flowccl run --on mpi` starts it")
    sys.exit(main(sys.argv[1]))
