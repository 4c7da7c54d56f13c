"""Messages with several chunks: each is one step of the program, wherever its chunks are in the buffers."""

from functools import cache

import numpy as np
import pytest

from flowccl.export.lowering.bundles import are_adjacent
from flowccl.run.replay import replay
from flowccl.schedule.schedule import Schedule
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine
from tests.export.cases import findings, made, read


@cache
def alltoall(size: int) -> Schedule:
    """An alltoall on two hosts of 8 GPUs, with messages of several chunks over the NICs."""
    machines = machine("dgx_h100:2")
    return synthesize(machines, "alltoall", size, runtime="mscclpp", method="taccl-quick", chunks=1, steps=8).schedule


def messages(schedule: Schedule) -> int:
    """The messages of a schedule: transfers that travel alone, and those that travel together."""
    joint = schedule.message >= 0
    return int(np.count_nonzero(~joint)) + len(np.unique(schedule.message[joint]))


@pytest.mark.parametrize("size", [2**16, 2**20])  # at 64 KiB, first messages leave before the receivers are ready
def test_a_message_of_the_schedule_is_one_send_of_the_program(size: int) -> None:
    schedule = alltoall(size)
    assert messages(schedule) < len(schedule)
    data = made(schedule, "mscclpp")
    program = read(data, "mscclpp")
    assert findings(data, "mscclpp") == []
    assert replay(program, seed=0) == []
    sends = sum(operation.sends_to >= 0 and operation.size > 0 for operation in program.operations)
    assert sends == messages(schedule)


def test_slots_are_adjacent_in_ascending_order_of_one_buffer() -> None:
    assert are_adjacent([("i", 2), ("i", 3), ("i", 4)])
    assert not are_adjacent([("i", 3), ("i", 2)])
    assert not are_adjacent([("i", 2), ("o", 3)])
    assert are_adjacent([("s", 0)])
