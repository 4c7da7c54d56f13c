"""Metrics of a schedule: finish, algbw, busbw and the utilization of each link."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.collectives import busbw_factor
from flowccl.schedule.schedule import Schedule
from flowccl.units import ps_to_us


@dataclass(frozen=True, eq=False)
class Metrics:
    """Numbers of a schedule.

    algbw and busbw in GB/s are those of nccl-tests. `link_use` is the fraction of the time that each link is busy.
    `messages_per_gpu` is the largest number of messages that one GPU sends: chunks in one message count once, and so
    does a multicast.
    """

    finish_us: float
    algbw_GBps: float
    busbw_GBps: float
    link_use: NDArray[np.float64]
    messages_per_gpu: int


def measure(schedule: Schedule, finish_ps: int | None = None) -> Metrics:
    """Return the metrics of a schedule, computed from its timing; `finish_ps` is the completion time of its program."""
    timing, finish = schedule.timing, schedule.finish_ps if finish_ps is None else finish_ps
    busy = np.zeros(len(schedule.topology.links))
    shared = timing.shared_links(schedule.topology)[timing.hop_link]
    share = np.where(shared, timing.hop_GBps / schedule.topology.link_GBps[timing.hop_link], 1.0)
    np.add.at(busy, timing.hop_link, (timing.hop_to_ps - timing.hop_from_ps) * share)
    algbw = schedule.demand.size_bytes * 1000 / finish if finish else 0.0
    factor = busbw_factor(schedule.demand.collective, schedule.demand.num_ranks)
    return Metrics(ps_to_us(finish), algbw, algbw * factor, busy / max(finish, 1), _messages_per_gpu(schedule))


def _messages_per_gpu(schedule: Schedule) -> int:
    timing, leader = schedule.timing, schedule.leader
    first = leader[timing.root_transfer] == timing.root_transfer
    sent = np.bincount(timing.root_node[first], minlength=len(schedule.topology.nodes))
    return int(sent[: schedule.topology.num_gpus].max(initial=0))
