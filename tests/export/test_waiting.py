"""When a group of threadblocks waits for a message that a NIC sends on."""

import numpy as np
import pytest

from flowccl.export.lowering.waiting_kernels import Rules, Waits, waiting_groups

BEGIN, END = 10, 20  # of the only thing that the only group of GPU 1 does
LATE = 1 << 40


def moment(arrival: int, use: int) -> int:
    """When the group of GPU 1 waits for a message from GPU 0 that arrives and is used at given times."""
    row = np.zeros(1, dtype=np.int64)
    waits = Waits(
        start_order=row,
        source=row,
        target=row + 1,
        peer=row + 1,
        back=row,
        receiver=row - 1,
        time=row + use,
        arrival=row + arrival,
        user=row - 1,
        reserved=np.zeros(1, dtype=np.bool_),
        usual=np.zeros(2, dtype=np.int64),
        load=np.zeros(2, dtype=np.int64),
        job_ptr=np.array([0, 0, 1]),
        job_start=row + BEGIN,
        job_end=row + END,
    )
    group, time = waiting_groups(waits, Rules(1, 1, 16, 40, 4, LATE, False))
    assert group.tolist() == [1]
    return int(time[0])


@pytest.mark.parametrize(
    ("arrival", "use", "expected"),
    [
        (3, 5, 5),  # before the group does anything
        (8, 15, BEGIN - 1),  # in the middle of what it does: it waits before, and delays nothing
        (10, 15, BEGIN - 1),
        (12, 15, 15),  # what it does begins before the message arrives
        (12, 20, 20),  # afterwards
    ],
)
def test_a_group_waits_before_what_it_does_when_the_message_is_used(arrival: int, use: int, expected: int) -> None:
    assert moment(arrival, use) == expected


@pytest.mark.parametrize(("reserved", "expected"), [(False, 3), (True, 2)])
def test_the_group_that_works_on_a_message_waits_where_no_other_group_keeps_its_only_channel(
    reserved: bool, expected: int
) -> None:
    row, groups = np.zeros(1, dtype=np.int64), np.zeros(4, dtype=np.int64)
    waits = Waits(
        start_order=row,
        source=row,
        target=row + 2,
        peer=row + 1,
        back=row,
        receiver=row + 3,
        time=row + BEGIN,
        arrival=row + BEGIN,
        user=row - 1,
        reserved=np.array([reserved]),
        usual=np.array([reserved, 0, reserved, 0], dtype=np.int64),
        load=groups,
        job_ptr=np.zeros(5, dtype=np.int64),
        job_start=row,
        job_end=row,
    )
    assert waiting_groups(waits, Rules(2, 1, 1, 40, 4, LATE, False))[0].tolist() == [expected]
