"""The numbers that people read: finish, algbw, busbw and the use of each link."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.collectives import busbw_factor
from flowccl.schedule.schedule import Schedule


@dataclass(frozen=True, eq=False)
class Metrics:
    """finish in us; algbw and busbw in GB/s as nccl-tests defines them; share of the time each link is busy."""

    finish_us: float
    algbw_GBps: float
    busbw_GBps: float
    link_use: NDArray[np.float64]


def measure(schedule: Schedule) -> Metrics:
    """The metrics of a schedule, taken from its replay."""
    timing, finish = schedule.timing, schedule.finish_ps
    busy = np.zeros(len(schedule.topology.links))
    np.add.at(busy, timing.hop_link, timing.hop_to_ps - timing.hop_from_ps)
    algbw = schedule.demand.size_bytes * 1000 / finish if finish else 0.0
    factor = busbw_factor(schedule.demand.collective, schedule.demand.num_ranks)
    return Metrics(schedule.finish_us, algbw, algbw * factor, busy / max(finish, 1))
