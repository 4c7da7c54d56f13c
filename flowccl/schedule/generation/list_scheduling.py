"""The same transfers in another order on the links: who has the longest way to go goes first.

For schedules put together from parts (two halves of an allreduce, late data), whose links would otherwise keep the
order of the parts. What a node has got before it sends something stays the same.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.schedule.generation.precedence import data_order, soonest_starts
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology

_MOST = 30_000  # transfers


def list_schedule(schedule: Schedule) -> Schedule | None:
    """The schedule in the order of the longest ways to go, or None where that is not possible."""
    if not can_list_schedule(schedule):
        return None
    scheduler = ListScheduler(schedule)
    return scheduler.in_order_of(-scheduler.tail_ps)


def can_list_schedule(schedule: Schedule) -> bool:
    """Not on machines with limits, buffer limits or changing links, not large schedules, not messages."""
    topology = schedule.topology
    plain = not (topology.has_extra_constraints)
    return plain and not schedule.has_messages and 0 < len(schedule) <= _MOST


class ListScheduler:
    """The transfers of a schedule, ready to be put in order again and again.

    `machine` is the one to put them in order on, where GPUs may take time to add up that the schedule knows nothing of.
    """

    def __init__(self, schedule: Schedule, machine: Topology | None = None) -> None:
        from flowccl.schedule.generation.generation_kernels import longest_tails

        self.schedule = schedule if machine is None else replace(schedule, topology=machine)
        timing, count = self.schedule.timing, len(schedule)
        takes = np.zeros(count, dtype=np.int64)
        np.maximum.at(takes, timing.end_transfer, timing.end_arrival_ps - schedule.start_ps[timing.end_transfer])
        before, after, lag = data_order(schedule)
        lag = lag + self._reducing_ps(schedule)[before]
        by_before = np.argsort(before, kind="stable")
        self.ptr = np.searchsorted(before[by_before], np.arange(count + 1)).astype(np.int64)
        self.after, self.lag = after[by_before], lag[by_before]
        self.soonest = soonest_starts(schedule)
        last_first = np.argsort(schedule.start_ps, kind="stable")[::-1].copy()
        self.tail_ps = longest_tails(last_first, self.ptr, self.after, self.lag, takes)
        """From the start of each transfer to the end of the last that waits for it."""
        self._occupancy()

    def _reducing_ps(self, schedule: Schedule) -> NDArray[np.int64]:
        """By how much each transfer is there later than in the schedule."""
        later = np.zeros(len(schedule), dtype=np.int64)
        there = self.schedule.timing.end_arrival_ps - schedule.timing.end_arrival_ps
        np.maximum.at(later, schedule.timing.end_transfer, there)
        return later

    def _occupancy(self) -> None:
        """What each transfer holds and when, from its start: links, then nodes that add it up."""
        timing, links = self.schedule.timing, len(self.schedule.topology.links)
        busy = timing.reducing
        transfer = np.concatenate((timing.hop_transfer, timing.end_transfer[busy]))
        order = np.argsort(transfer, kind="stable")
        begin = self.schedule.start_ps[transfer]
        self.hop_ptr = np.searchsorted(transfer[order], np.arange(len(self.schedule) + 1)).astype(np.int64)
        self.held = np.concatenate((timing.hop_link, links + timing.end_node[busy])).astype(np.int32)[order]
        self.hop_from = (np.concatenate((timing.hop_from_ps, timing.end_whole_ps[busy])) - begin)[order]
        self.hop_to = (np.concatenate((timing.hop_to_ps, timing.end_arrival_ps[busy])) - begin)[order]
        self.busiest_ps = float(np.bincount(self.held, self.hop_to - self.hop_from, 1).max())
        """How long the busiest link works."""

    def in_order_of(self, key: NDArray[np.int64] | NDArray[np.float64]) -> Schedule | None:
        """The schedule in which, of those that wait for a link, the one with the least key goes first.

        None where sums wait for each other.
        """
        from flowccl.schedule.generation.generation_kernels import in_order_of

        topology = self.schedule.topology
        rank = np.empty(len(self.schedule), dtype=np.int64)
        rank[np.lexsort((self.schedule.start_ps, key))] = np.arange(len(rank))
        waits = (self.ptr, self.after, self.lag, self.soonest)
        hops = (self.hop_ptr, self.held, self.hop_from, self.hop_to)
        done, start = in_order_of(rank, *waits, *hops, len(topology.links) + len(topology.nodes))
        return replace(self.schedule, start_ps=start) if done else None
