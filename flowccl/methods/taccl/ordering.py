"""Stage 2: in which order the chunks go over each link (TACCL section 4.1, appendix A.2).

A running time for every link and every chunk; whenever a link is free, of the sends that wait for it the one goes
first that has come the shortest way so far, or that has the longest way still to go. Both rules forwards from the
sources and backwards from the destinations, where a schedule is laid out from its end.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.methods.taccl.logical import Ints, Logical
from flowccl.schedule.generation.serial import fits, generate_serial
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift


@dataclass(frozen=True, eq=False)
class Sends:
    """Send i carries chunk `chunk[i]` over arc `arc[i]`; of a pair (`before`, `after`) the one waits for the other.

    In a distribution each send waits for the one that brought its chunk; in a reduction, for all that are added there.
    """

    logical: Logical
    demand: Demand
    chunk: Ints
    arc: Ints
    before: Ints
    after: Ints

    def __len__(self) -> int:
        return len(self.chunk)

    @cached_property
    def times(self) -> tuple[Ints, Ints, NDArray[np.int32], Ints, Ints]:
        """Until arrival; and the hops: whose, on which link, from when to when."""
        return self.logical.times(self.demand.chunk_bytes[self.chunk], self.arc)

    @cached_property
    def so_far_ps(self) -> Ints:
        """The time of the longest way up to each send."""
        return _longest(self.times[0], self.before, self.after)

    @cached_property
    def to_go_ps(self) -> Ints:
        """The time of the longest way from the start of each send."""
        return _longest(self.times[0], self.after, self.before) + self.times[0]

    def schedule(self, start_ps: Ints, message: NDArray[np.int32] | None = None) -> Schedule:
        """As a schedule."""
        flags = np.full(len(self), self.demand.reduces)
        alone = np.full(len(self), -1, dtype=np.int32) if message is None else message
        chunk, arc = self.chunk.astype(np.int32), self.arc.astype(np.int32)
        return Schedule(
            self.logical.topology, self.demand, self.logical.routes, chunk, arc, start_ps, flags, "taccl", alone
        )


def _longest(takes: Ints, before: Ints, after: Ints) -> Ints:
    """The longest time of sends before each; a sweep for every step of the deepest way."""
    result = np.zeros(len(takes), dtype=np.int64)
    while True:
        new = result.copy()
        np.maximum.at(new, after, result[before] + takes[before])
        if np.array_equal(new, result):
            return result
        result = new


def orders(sends: Sends) -> Iterator[tuple[str, Schedule]]:
    """Schedules by every heuristic in both directions, each with its name."""
    far, near = -sends.to_go_ps, sends.so_far_ps
    for name, first, second in (("longest to go", far, near), ("shortest so far", near, far)):
        rank = np.empty(len(sends), dtype=np.int64)
        rank[np.lexsort((sends.chunk, second, first))] = np.arange(len(sends))
        yield f"{name} first, forwards", _listed(sends, rank, forwards=True)
        rank[np.lexsort((sends.chunk, -first, -second))] = np.arange(len(sends))
        yield f"{name} first, backwards", _listed(sends, rank, forwards=False)


def _listed(sends: Sends, rank: Ints, *, forwards: bool) -> Schedule:
    """List scheduling from the sources, or from the destinations and then turned round in time."""
    from flowccl.schedule.generation.generation_kernels import in_order_of

    takes, owner, link, begin, end = sends.times
    before, after = (sends.before, sends.after) if forwards else (sends.after, sends.before)
    if not forwards:
        begin, end = takes[owner] - end, takes[owner] - begin
    by_before = np.argsort(before, kind="stable")
    ptr = np.searchsorted(before[by_before], np.arange(len(sends) + 1)).astype(np.int64)
    hop_ptr = np.searchsorted(owner, np.arange(len(sends) + 1)).astype(np.int64)
    zero = np.zeros(len(sends), dtype=np.int64)
    lag = takes[before[by_before]]
    links = len(sends.logical.topology.links)
    done, start = in_order_of(rank, ptr, after[by_before], lag, zero, hop_ptr, link, begin, end, links)
    if not done:  # the list of events was full
        start = sends.so_far_ps
    elif not forwards:
        start = int((start + takes).max(initial=0)) - start - takes
    found = sends.schedule(start)
    if done and fits(found) and not found.topology.changes:
        return left_shift(found)
    return generate_serial(found, np.lexsort((sends.so_far_ps, start)).astype(np.int64))
