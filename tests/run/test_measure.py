"""Only the call is timed, and no process does other work meanwhile."""

import numpy as np

from flowccl.run.measure import RunOptions, run_cases
from flowccl.run.program import make_program
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine


class RecordingBackend:
    """Rank 0 of two, which records its operations; the other rank sends ones."""

    process, processes = 0, 2

    def __init__(self):
        self.done = []

    def array(self, values, dtype):
        return np.array(values, dtype=np.uint8)

    def empty(self, count, dtype):
        return np.ones(count, dtype=np.uint8)

    def exchange(self, sends, receives):
        self.done.append("exchange")

    def wrong(self, array, expected):
        self.done.append("check")
        return 0

    def barrier(self):
        self.done.append("barrier")

    def allreduce(self, numbers):
        return list(numbers)


def test_barriers_surround_each_call():
    schedule = synthesize(machine("full:2"), "allgather", 1_000, chunks=1, steps=1, method="greedy").schedule
    backend = RecordingBackend()
    run_cases(make_program(schedule), RunOptions((1_000,), ("uint8",), iterations=2), backend)
    assert backend.done == 3 * ["barrier", "exchange", "barrier", "check"]
