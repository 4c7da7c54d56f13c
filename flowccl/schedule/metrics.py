"""Metrics of a schedule: finish, algbw, busbw and the utilization of each link."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.collectives import busbw_factor
from flowccl.schedule.schedule import Schedule


@dataclass(frozen=True, eq=False)
class Metrics:
    """Finish in us; algbw and busbw in GB/s as defined by nccl-tests; fraction of the time that each link is busy."""

    finish_us: float
    algbw_GBps: float
    busbw_GBps: float
    link_use: NDArray[np.float64]


def measure(schedule: Schedule) -> Metrics:
    """Return the metrics of a schedule, computed from its timing."""
    timing, finish = schedule.timing, schedule.finish_ps
    busy = np.zeros(len(schedule.topology.links))
    np.add.at(busy, timing.hop_link, timing.hop_to_ps - timing.hop_from_ps)
    algbw = schedule.demand.size_bytes * 1000 / finish if finish else 0.0
    factor = busbw_factor(schedule.demand.collective, schedule.demand.num_ranks)
    return Metrics(schedule.finish_us, algbw, algbw * factor, busy / max(finish, 1))
