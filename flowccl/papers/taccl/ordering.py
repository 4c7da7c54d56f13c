"""Stage 2: the order of the chunks on each link (TACCL section 4.1, appendix A.2).

List scheduling. Whenever a link is free, the waiting send with the shortest path so far starts, or the one with the
longest remaining path. Both rules are applied forwards from the sources and backwards in time from the destinations.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.papers.taccl.logical import Ints, LogicalTopology
from flowccl.schedule.generation.list_scheduling import in_order, jobs_of
from flowccl.schedule.generation.serial import fits, within_limits
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift


@dataclass(frozen=True, eq=False)
class SendGraph:
    """Send i carries chunk `chunk[i]` over arc `arc[i]`; send `after[j]` waits for send `before[j]`.

    In a distribution each send waits for the one that brought its chunk; in a reduction, for all contributions.
    """

    logical: LogicalTopology
    demand: Demand
    chunk: Ints
    arc: Ints
    before: Ints
    after: Ints

    def __len__(self) -> int:
        return len(self.chunk)

    @cached_property
    def times(self) -> tuple[Ints, Ints, NDArray[np.int32], Ints, Ints]:
        """Time to arrival; and for each hop its send, link, start and end."""
        return self.logical.times(self.demand.chunk_bytes[self.chunk], self.arc)

    @cached_property
    def before_ps(self) -> Ints:
        """The length of the longest path up to each send."""
        return _longest_path_ps(self.times[0], self.before, self.after)

    @cached_property
    def remaining_ps(self) -> Ints:
        """The length of the longest path from the start of each send."""
        return _longest_path_ps(self.times[0], self.after, self.before) + self.times[0]

    def schedule(self, start_ps: Ints, message: NDArray[np.int32] | None = None) -> Schedule:
        """Return the schedule with these starts."""
        flags = np.full(len(self), self.demand.reduces)
        alone = np.full(len(self), -1, dtype=np.int32) if message is None else message
        chunk, arc = self.chunk.astype(np.int32), self.arc.astype(np.int32)
        return Schedule(
            self.logical.topology, self.demand, self.logical.routes, chunk, arc, start_ps, flags, "taccl", alone
        )


def _longest_path_ps(takes: Ints, before: Ints, after: Ints) -> Ints:
    """The longest path before each send; one sweep per level."""
    result = np.zeros(len(takes), dtype=np.int64)
    while True:
        new = result.copy()
        np.maximum.at(new, after, result[before] + takes[before])
        if np.array_equal(new, result):
            return result
        result = new


def scheduled_orders(sends: SendGraph) -> Iterator[tuple[str, Schedule]]:
    """Yield the schedules of both rules in both directions, each with its name."""
    far, near = -sends.remaining_ps, sends.before_ps
    for name, first, second in (("longest remaining path", far, near), ("shortest path so far", near, far)):
        forwards = np.lexsort((sends.chunk, second, first))
        yield f"{name} first, forwards", _list_scheduled(sends, forwards, forwards=True)
        backwards = np.lexsort((sends.chunk, -first, -second))
        yield f"{name} first, backwards", _list_scheduled(sends, backwards, forwards=False)


def _list_scheduled(sends: SendGraph, order: Ints, *, forwards: bool) -> Schedule:
    """List scheduling from the sources, or from the destinations with time reversed."""
    takes, owner, link, begin, end = sends.times
    before, after = (sends.before, sends.after) if forwards else (sends.after, sends.before)
    if not forwards:
        begin, end = takes[owner] - end, takes[owner] - begin
    by_before = np.argsort(before, kind="stable")
    ptr = np.searchsorted(before[by_before], np.arange(len(sends) + 1)).astype(np.int64)
    hop_ptr = np.searchsorted(owner, np.arange(len(sends) + 1)).astype(np.int64)
    waits = (ptr, after[by_before], takes[before[by_before]])
    lanes = np.arange(len(sends.logical.topology.links) + 1)
    start = in_order(order, jobs_of(waits, (hop_ptr, link, begin, end), lanes))
    assert start is not None  # sends wait for no circle of others
    if not forwards:
        start = int((start + takes).max(initial=0)) - start - takes
    found = sends.schedule(start)
    if fits(found) and not found.topology.changes:
        return left_shift(found)
    return within_limits(found)
