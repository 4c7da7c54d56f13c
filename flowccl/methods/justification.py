"""Double justification: the schedule of another method, shifted right and left again, with noise.

Backward, every transfer starts as late as possible: those that end last go first. Forward, every transfer starts as
early as possible, in the order of these late starts. Each pass is list scheduling, so transfers may change their order
on a link; trees and data stay the same. Transfers move into times at which links are idle: in an allreduce of two
halves, copies of early chunks begin beside the reductions of late ones. Known from project scheduling (Valls, Ballestín
and Quintanilla 2005).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flowccl.portable import power_of_ten
from flowccl.problem import Problem
from flowccl.schedule.generation.exchanges import keeps
from flowccl.schedule.generation.list_scheduling import ListScheduler, can_list_schedule, in_order, jobs_of
from flowccl.schedule.generation.precedence import Triples
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext

if TYPE_CHECKING:
    from flowccl.schedule.generation.queue_kernels import QueuedJobs

I64 = NDArray[np.int64]

_PASSES, _WALK = 4, 6  # back and forth in a step; steps without improvement before the search returns to the best
_LEAST_NOISE, _MOST_NOISE = -2.5, -1.3  # of the order, as powers of ten of the completion time


def justify(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Improve the best schedule that other methods report for the same problem."""
    random, walk = np.random.default_rng(context.seed), _Walk()
    while True:
        other = context.incumbents.schedules.get(problem)
        if other is not None:
            walk.adopt(other)
        yield walk.step(random)


class _Walk:
    """A walk over schedules with the same transfers, from the best one; it returns there without improvement."""

    def __init__(self) -> None:
        self.best: Schedule | None = None
        self.passes: _Passes | None = None
        self.start_ps = np.zeros(0, dtype=np.int64)
        self.idle = 0

    def adopt(self, other: Schedule) -> None:
        """Go on from a schedule if it is better than the best."""
        if self.best is None or other.finish_ps < self.best.finish_ps:
            self.best, self.passes, self.start_ps, self.idle = other, _passes(other), other.start_ps, 0

    def step(self, random: np.random.Generator) -> Schedule | None:
        """Some passes; the schedule if it is the best so far."""
        if self.best is None or self.passes is None:
            return None
        noise = power_of_ten(float(random.uniform(_LEAST_NOISE, _MOST_NOISE)))
        best_ps, found = self.best.finish_ps, None
        for _ in range(_PASSES):
            both = self.passes.back_and_forth(self.start_ps, noise * best_ps, random)
            if both is None:
                self.passes = None  # transfers wait in a circle
                return None
            self.start_ps = both[1]
            for start_ps in both:
                finish_ps = int((start_ps + self.passes.takes).max())
                if finish_ps < best_ps and keeps(self.passes.mutual, start_ps):
                    best_ps, found = finish_ps, start_ps
        self.idle = self.idle + 1 if found is None else 0
        if found is not None:
            self.best = replace(self.best, start_ps=found, method="justify")
        if self.idle >= _WALK:
            self.start_ps, self.idle = self.best.start_ps, 0
        return None if found is None else self.best


def _passes(schedule: Schedule) -> "_Passes | None":
    """The passes over a schedule; None where it cannot be list scheduled."""
    if not can_list_schedule(schedule) or schedule.demand.ready_ps is not None:
        return None
    forward = ListScheduler(schedule)
    count = len(schedule)
    takes = np.zeros(count, dtype=np.int64)
    timing = schedule.timing
    np.maximum.at(takes, timing.end_transfer, timing.end_arrival_ps - schedule.start_ps[timing.end_transfer])
    before = np.repeat(np.arange(count), np.diff(forward.ptr))
    order = np.argsort(forward.after, kind="stable")
    ptr = np.searchsorted(forward.after[order], np.arange(count + 1)).astype(np.int64)
    lag = (forward.lag + takes[forward.after] - takes[before])[order]
    user = np.repeat(np.arange(count), np.diff(forward.hop_ptr))
    links = (forward.hop_ptr, forward.resource)
    ahead = _Direction(forward.ptr, forward.after, forward.lag, *links, forward.hop_from, forward.hop_to)
    back = _Direction(ptr, before[order], lag, *links, takes[user] - forward.hop_to, takes[user] - forward.hop_from)
    return _Passes(takes, ahead, back, forward.mutual)


@dataclass(frozen=True, eq=False)
class _Direction:
    """The transfers in one direction of time: what waits for each, and when it occupies its links."""

    ptr: I64
    after: I64
    lag: I64
    hop_ptr: I64
    link: NDArray[np.int32]
    hop_from: I64
    hop_to: I64

    @cached_property
    def jobs(self) -> "QueuedJobs":
        """The transfers as jobs of the list scheduling."""
        lanes = np.arange(int(self.link.max()) + 2)  # one of each link
        return jobs_of((self.ptr, self.after, self.lag), (self.hop_ptr, self.link, self.hop_from, self.hop_to), lanes)

    def starts(self, key: I64 | NDArray[np.float64]) -> I64 | None:
        """The starts in which the transfer with the least key goes first; None if transfers wait in a circle."""
        return in_order(np.argsort(key, kind="stable"), self.jobs)


@dataclass(frozen=True, eq=False)
class _Passes:
    """Both directions of a schedule, how long each transfer takes, and the constraints of exchanges."""

    takes: I64
    ahead: _Direction
    back: _Direction
    mutual: Triples

    def back_and_forth(self, start_ps: I64, noise_ps: float, random: np.random.Generator) -> tuple[I64, I64] | None:
        """The starts after a pass to the right, with noise, and one to the left; None if transfers wait in a circle."""
        end_ps = start_ps + self.takes + noise_ps * random.uniform(-1, 1, len(start_ps))
        late = self.back.starts(-end_ps)
        if late is None:
            return None
        late = int((late + self.takes).max()) - late - self.takes
        early = self.ahead.starts(late)
        return None if early is None else (late, early)
