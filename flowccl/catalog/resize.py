"""The same transfers in the same order for another size, or on slower links."""

from dataclasses import replace

import numpy as np

from flowccl.demand.collectives import collective
from flowccl.schedule.generation.engine import in_same_order
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift


def resized(schedule: Schedule, size_bytes: int) -> Schedule:
    """Return the schedule with chunks of another size: same routes, same order, earliest starts.

    The demand is that of a named collective without a root.
    """
    old = schedule.demand
    demand = collective(old.collective, old.num_gpus, size_bytes, old.pieces)
    if schedule.execution is not None:
        resized_schedule = in_same_order(replace(schedule, demand=demand), schedule)
        assert resized_schedule is not None  # the groups hold the same messages
        return resized_schedule
    return stretched(schedule, replace(schedule, demand=demand))


def stretched(schedule: Schedule, longer: Schedule) -> Schedule:
    """Return `longer`, which has the same transfers with other durations, in the order of `schedule`, left-shifted.

    All starts are multiplied by the largest ratio of durations, so that transfers follow each other as before.
    """
    before, after = (one.timing.hop_to_ps - one.timing.hop_from_ps for one in (schedule, longer))
    ratio = float(np.max((after + 2) / np.maximum(before, 1), initial=1.0))
    return left_shift(replace(longer, start_ps=np.ceil(schedule.start_ps * ratio).astype(np.int64)))
