"""The same transfers in another order on the links: who has the longest way to go goes first.

For schedules put together from parts (two halves of an allreduce, late data), whose links would otherwise keep the
order of the parts. What a node has got before it sends something stays the same.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import data_order, soonest_starts

_MOST = 30_000  # transfers


def relist(schedule: Schedule) -> Schedule | None:
    """The schedule in the order of the longest ways to go, or None where that is not possible."""
    if not can_relist(schedule):
        return None
    relisting = Relisting(schedule)
    return relisting.in_order_of(-relisting.way_ps)


def can_relist(schedule: Schedule) -> bool:
    """Not on machines with limits, buffer limits or changing links, not large schedules, not messages."""
    topology = schedule.topology
    plain = not (topology.limits or topology.changes or any(n.buffer_bytes is not None for n in topology.nodes))
    return plain and not schedule.has_messages and 0 < len(schedule) <= _MOST


class Relisting:
    """The transfers of a schedule, ready to be put in order again and again."""

    def __init__(self, schedule: Schedule) -> None:
        from flowccl.schedule.kernels import longest_ways

        self.schedule = schedule
        timing = schedule.timing
        before, after, lag = data_order(schedule)
        by_before = np.argsort(before, kind="stable")
        self.ptr = np.searchsorted(before[by_before], np.arange(len(schedule) + 1)).astype(np.int64)
        self.after, self.lag = after[by_before], lag[by_before]
        self.soonest = soonest_starts(schedule)
        takes = np.zeros(len(schedule), dtype=np.int64)
        np.maximum.at(takes, timing.end_transfer, timing.end_arrival_ps - schedule.start_ps[timing.end_transfer])
        last_first = np.argsort(schedule.start_ps, kind="stable")[::-1].copy()
        self.way_ps = longest_ways(last_first, self.ptr, self.after, self.lag, takes)
        """From the start of each transfer to the end of the last that waits for it."""
        self.hop_ptr = np.searchsorted(timing.hop_transfer, np.arange(len(schedule) + 1)).astype(np.int64)
        begin = schedule.start_ps[timing.hop_transfer]
        self.hop_from, self.hop_to = timing.hop_from_ps - begin, timing.hop_to_ps - begin
        held = np.bincount(timing.hop_link, self.hop_to - self.hop_from, 1)
        self.busiest_ps = float(held.max())
        """How long the busiest link works."""

    def in_order_of(self, key: NDArray[np.int64] | NDArray[np.float64]) -> Schedule | None:
        """The schedule in which, of those that wait for a link, the one with the least key goes first.

        None where sums wait for each other.
        """
        from flowccl.schedule.kernels import in_order_of

        count, links = len(self.schedule), len(self.schedule.topology.links)
        rank = np.empty(count, dtype=np.int64)
        rank[np.lexsort((self.schedule.start_ps, key))] = np.arange(count)
        waits = (self.ptr, self.after, self.lag, self.soonest)
        hops = (self.hop_ptr, self.schedule.timing.hop_link, self.hop_from, self.hop_to)
        done, start = in_order_of(rank, *waits, *hops, links)
        return replace(self.schedule, start_ps=start) if done else None
