"""Stages of a schedule: how many transfers must come before each one."""

import numpy as np
from numpy.typing import NDArray

from flowccl.schedule.schedule import Schedule


def stages_of(schedule: Schedule) -> NDArray[np.int64]:
    """The stage of each transfer; transfers of one message have the same."""
    from flowccl.schedule.generation.precedence import feeding

    root, end = feeding(schedule)
    leader, timing = schedule.leader, schedule.timing
    before, after = leader[timing.end_transfer[end]], leader[timing.root_transfer[root]]
    stage = np.zeros(len(schedule), dtype=np.int64)
    while True:
        later = stage.copy()
        np.maximum.at(later, after, stage[before] + 1)
        if np.array_equal(later, stage):
            return stage[leader]
        stage = later
