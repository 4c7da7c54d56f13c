"""What is timed: the call alone, with nobody doing anything else meanwhile."""

import numpy as np

from flowccl.run.measure import RunOptions, run_cases
from flowccl.run.program import make_program
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine


class Diary:
    """Rank 0 of two, which notes what it is asked to do; the other sends ones."""

    process = 0

    def __init__(self):
        self.done = []

    def array(self, values, dtype):
        return np.array(values, dtype=np.uint8)

    def empty(self, count, dtype):
        return np.ones(count, dtype=np.uint8)

    def exchange(self, sends, receives):
        self.done.append("staged-exchange")

    def wrong(self, array, expected):
        self.done.append("check")
        return 0

    def barrier(self):
        self.done.append("barrier")

    def allreduce(self, numbers):
        return list(numbers)


def test_all_wait_for_each_other_before_a_call_and_before_they_check_what_came():
    schedule = synthesize(machine("full:2"), "allgather", 1_000, chunks=1, steps=1, method="greedy").schedule
    backend = Diary()
    run_cases(make_program(schedule), RunOptions((1_000,), ("uint8",), iterations=2), backend)
    assert backend.done == 3 * ["barrier", "staged-exchange", "barrier", "check"]
