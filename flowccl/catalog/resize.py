"""The same transfers in the same order for another size."""

from dataclasses import replace

import numpy as np

from flowccl.demand.collectives import collective
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift


def resized(schedule: Schedule, size_bytes: int) -> Schedule:
    """Return the schedule with chunks of another size: same routes, same order, earliest starts.

    The demand is that of a named collective without a root.
    """
    old = schedule.demand
    demand = collective(old.collective, old.num_gpus, size_bytes, old.pieces)
    whole = replace(schedule, demand=demand)
    before, after = (one.timing.hop_to_ps - one.timing.hop_from_ps for one in (schedule, whole))
    longer = float(np.max((after + 2) / np.maximum(before, 1), initial=1.0))
    start = np.ceil(schedule.start_ps * max(longer, 1.0)).astype(np.int64)
    return left_shift(replace(whole, start_ps=start))
