"""List scheduling of the transfers of a schedule in another order on the links: the longest tail first.

For schedules made of parts (two halves of an allreduce, data with release times), whose links would otherwise keep the
order of the parts. The data that a node has received before each of its sends stays the same.

Exchanges: two nodes send each other partial reductions, so that both must send before they receive.

Each of the two transfers thus waits for the other one, and no order of them serves both. In list scheduling, both wait
for the data of both nodes instead: one may start before the other's data is there, by at most half the time that it
takes itself. That leaves the other half to the other one, which may have to wait for its link. Whether it was in time
is checked in the end.
"""

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER
from flowccl.schedule.generation.precedence import Triples, data_order, soonest_starts
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology

if TYPE_CHECKING:
    from flowccl.schedule.generation.queue_kernels import QueuedJobs

I64 = NDArray[np.int64]

_MOST = 30_000  # transfers of the largest schedule


def list_schedule(schedule: Schedule) -> Schedule | None:
    """Return the schedule with the longest tails first, or None if that is not possible."""
    if not can_list_schedule(schedule):
        return None
    scheduler = ListScheduler(schedule)
    return scheduler.in_order_of(-scheduler.tail_ps)


def can_list_schedule(schedule: Schedule) -> bool:
    """Whether the schedule has no messages and is not too large, on a machine without limits, buffers and changes."""
    topology = schedule.topology
    plain = not (topology.has_extra_constraints)
    return plain and not schedule.has_messages and 0 < len(schedule) <= _MOST


class ListScheduler:
    """The transfers of a schedule, prepared for list scheduling with several priorities.

    `machine` is the machine to schedule on: its GPUs may take time to reduce, which the schedule does not include.
    """

    def __init__(self, schedule: Schedule, machine: Topology | None = None) -> None:
        from flowccl.schedule.generation.generation_kernels import longest_tails

        self.schedule = schedule if machine is None else replace(schedule, topology=machine)
        timing, count = self.schedule.timing, len(schedule)
        takes = np.zeros(count, dtype=np.int64)
        np.maximum.at(takes, timing.end_transfer, timing.end_arrival_ps - schedule.start_ps[timing.end_transfer])
        before, after, lag = data_order(schedule)
        lag = lag + self._reducing_ps(schedule)[before]
        (before, after, lag), self.mutual = without_mutual((before, after, lag), takes)
        """Constraints (before, after, lag) between transfers that wait for each other."""
        by_before = np.argsort(before, kind="stable")
        self.ptr = np.searchsorted(before[by_before], np.arange(count + 1)).astype(np.int64)
        self.after, self.lag = after[by_before], lag[by_before]
        self.soonest = soonest_starts(schedule)
        last_first = np.argsort(schedule.start_ps, kind="stable")[::-1].copy()
        self.tail_ps = longest_tails(last_first, self.ptr, self.after, self.lag, takes)
        """The time from the start of each transfer to the end of its last successor."""
        self._occupancy()

    def _reducing_ps(self, schedule: Schedule) -> NDArray[np.int64]:
        """How much later each transfer arrives than in the schedule."""
        later = np.zeros(len(schedule), dtype=np.int64)
        there = self.schedule.timing.end_arrival_ps - schedule.timing.end_arrival_ps
        np.maximum.at(later, schedule.timing.end_transfer, there)
        return later

    def _occupancy(self) -> None:
        """When each transfer occupies its links and the nodes that reduce it, relative to its start."""
        timing, links = self.schedule.timing, len(self.schedule.topology.links)
        busy = timing.reducing
        transfer = np.concatenate((timing.hop_transfer, timing.end_transfer[busy]))
        order = np.argsort(transfer, kind="stable")
        begin = self.schedule.start_ps[transfer]
        self.hop_ptr = np.searchsorted(transfer[order], np.arange(len(self.schedule) + 1)).astype(np.int64)
        self.resource = np.concatenate((timing.hop_link, links + timing.end_node[busy])).astype(np.int32)[order]
        self.hop_from = (np.concatenate((timing.hop_from_ps, timing.end_whole_ps[busy])) - begin)[order]
        self.hop_to = (np.concatenate((timing.hop_to_ps, timing.end_arrival_ps[busy])) - begin)[order]

    def in_order_of(self, key: NDArray[np.int64] | NDArray[np.float64]) -> Schedule | None:
        """Return the schedule in which, of the transfers that wait for a link, the one with the least key goes first.

        None if reductions wait for each other, or if a node would receive before it sends in an exchange.
        """
        start = in_order(np.lexsort((self.schedule.start_ps, key)), self.jobs)
        return None if start is None or not keeps(self.mutual, start) else replace(self.schedule, start_ps=start)

    @cached_property
    def jobs(self) -> "QueuedJobs":
        """The transfers as jobs of the compiled list scheduling."""
        topology = self.schedule.topology
        lanes = np.arange(len(topology.links) + len(topology.nodes) + 1)
        waits = (self.ptr, self.after, self.lag)
        return jobs_of(waits, (self.hop_ptr, self.resource, self.hop_from, self.hop_to), lanes, self.soonest)


def jobs_of(
    waits: tuple[I64, I64, I64],
    hops: tuple[I64, NDArray[np.int32], I64, I64],
    lane_ptr: I64,
    soonest: I64 | None = None,
) -> "QueuedJobs":
    """Transfers for `in_order`: (ptr, after, lag) of what waits and (ptr, link, from, to) of hops, see `QueuedJobs`."""
    from flowccl.schedule.generation.queue_kernels import QueuedJobs

    count = len(waits[0]) - 1
    none, never = np.zeros(count, dtype=np.int64), np.full(count, NEVER)
    soonest, (hop_ptr, link, begin, end) = none if soonest is None else soonest, hops
    kind = _kinds(hop_ptr, link, begin)
    return QueuedJobs(none, kind, *waits, soonest, never, hop_ptr, link, begin, end, lane_ptr)


def in_order(order: NDArray[np.int64], jobs: "QueuedJobs") -> I64 | None:
    """The starts of transfers: of those that wait, the first in `order` goes first.

    None if they wait in a circle, or if one would start too late.
    """
    from flowccl.schedule.generation.queue_kernels import in_queues

    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    done, start = in_queues(jobs._replace(rank=rank))
    return start if done else None


def _kinds(hop_ptr: I64, hop_link: NDArray[np.int32], hop_from: I64) -> I64:
    """A number for each job; jobs that use the same links at the same times after their start have the same one."""
    mixed = hop_link.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + hop_from.astype(np.uint64)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    total = np.add.reduceat(mixed, hop_ptr[:-1]) if len(hop_ptr) > 1 else mixed
    return np.unique(total, return_inverse=True)[1].astype(np.int64)


def without_mutual(waits: Triples, takes_ps: I64) -> tuple[Triples, Triples]:
    """Take the pairs of transfers that wait for each other out of constraints (before, after, lag).

    Returns the others, in which the two wait for the data of both, and those that were taken out. `takes_ps` is the
    time of each transfer.
    """
    before, after, lag = waits
    count = len(takes_ps)
    mutual = np.isin(before * count + after, after * count + before)
    partner = np.arange(count)
    partner[before[mutual]] = after[mutual]
    others = before[~mutual], after[~mutual], lag[~mutual]
    return waiting_for_both(others, partner, takes_ps), (before[mutual], after[mutual], lag[mutual])


def waiting_for_both(waits: Triples, partner: I64, takes_ps: I64) -> Triples:
    """Let each transfer also wait for the data of its partner, the transfer that it is exchanged for; or of itself."""
    before, after, lag = waits
    other = partner[after]
    rows = np.flatnonzero(other != after)
    early_ps = takes_ps[other[rows]] // 2
    return np.append(before, before[rows]), np.append(after, other[rows]), np.append(lag, lag[rows] - early_ps)


def keeps(waits: Triples, start_ps: I64) -> bool:
    """Whether starts satisfy constraints (before, after, lag)."""
    before, after, lag = waits
    return bool(np.all(start_ps[after] >= start_ps[before] + lag))
