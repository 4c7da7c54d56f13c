"""Double justification: the schedule of another method, shifted right and left again, with noise.

Backward, every transfer starts as late as possible: those that end last go first. Forward, every transfer starts as
early as possible, in the order of these late starts. Each pass is list scheduling, so transfers may change their order
on a link; trees and data stay the same. Transfers move into times at which links are idle: in an allreduce of two
halves, copies of early chunks begin beside the reductions of late ones. Known from project scheduling (Valls, Ballestín
and Quintanilla 2005). On machines of direct links alone, transfers follow each other on a link; elsewhere the engine
shares links and limits by rate, and the backward pass is a schedule of the reversed machine.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flowccl.portable import power_of_ten
from flowccl.problem import Problem
from flowccl.schedule.generation.engine import LEAST_RATES, Engine
from flowccl.schedule.generation.list_scheduling import ListScheduler, can_list_schedule, in_order, jobs_of, keeps
from flowccl.schedule.generation.precedence import Triples
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import reverse
from flowccl.search.context import SearchContext
from flowccl.verifier.verify import verify

if TYPE_CHECKING:
    from flowccl.schedule.generation.queue_kernels import QueuedJobs

I64 = NDArray[np.int64]

_WALK = 6  # steps without improvement before the search returns to the best
_LEAST_NOISE, _MOST_NOISE = -2.5, -1.3  # of the order, as powers of ten of the completion time
_MOST_BY_RATE = 20_000  # transfers that the engine is given


def justify(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Improve the best schedule that other methods report for the same problem."""
    direct = problem.is_plain and bool(problem.topology.stores.all())
    random, walk = np.random.default_rng(context.seed), JustifyingWalk(by_rate=not direct)
    while True:
        other = context.incumbents.schedules.get(problem)
        if other is not None:
            walk.adopt(other)
        found = walk.step(random)
        yield None if found is None else replace(found, method="justify")


class JustifyingWalk:
    """A walk over schedules with the same transfers, from the best one; it returns there without improvement."""

    def __init__(self, *, by_rate: bool) -> None:
        self.by_rate = by_rate
        self.best: Schedule | None = None
        self.passes: _Passes | _EnginePasses | None = None
        self.start_ps: I64 = np.zeros(0, dtype=np.int64)
        self.idle = 0

    def adopt(self, other: Schedule) -> None:
        """Go on from a schedule if it is better than the best."""
        if self.best is None or other.finish_ps < self.best.finish_ps:
            self.best, self.start_ps, self.idle = other, other.start_ps, 0
            self.passes = _EnginePasses.of(other) if self.by_rate else _passes(other)

    def step(self, random: np.random.Generator) -> Schedule | None:
        """Some passes; the schedule if it is the best so far."""
        if self.best is None or self.passes is None:
            return None
        noise = power_of_ten(float(random.uniform(_LEAST_NOISE, _MOST_NOISE)))
        best = self.best
        for _ in range(self.passes.count):
            both = self.passes.back_and_forth(self.start_ps, noise * best.finish_ps, random)
            if both is None:
                self.passes = None  # transfers wait in a circle
                return None
            self.start_ps = both[1]
            best = min([best, *self.passes.found(best, both)], key=lambda one: one.finish_ps)
        self.idle = self.idle + 1 if best is self.best else 0
        found, self.best = None if best is self.best else best, best
        if self.idle >= _WALK:
            self.start_ps, self.idle = best.start_ps, 0
        return found


class _EnginePasses:
    """Both directions of a schedule by the engine: the schedule, and the same transfers on the reversed machine."""

    count = 1  # of passes in a step, which take longer than those on direct links

    def __init__(self, schedule: Schedule) -> None:
        self.ahead, self.back = Engine(schedule), Engine(_turned(schedule))
        self.takes = _takes_ps(replace(schedule, rate_GBps=np.zeros(0)))
        self.early = schedule

    @classmethod
    def of(cls, schedule: Schedule) -> "_EnginePasses | None":
        """The passes over a schedule; None where it has too many transfers, or messages."""
        few = 0 < len(schedule) <= _MOST_BY_RATE
        return cls(schedule) if few and not schedule.has_messages and schedule.demand.ready_ps is None else None

    def back_and_forth(self, start_ps: I64, noise_ps: float, random: np.random.Generator) -> tuple[I64, I64] | None:
        """The starts after a pass to the right, with noise, and one to the left; None if transfers wait in a circle."""
        least = float(random.choice(LEAST_RATES))
        back = self.back.run(-(start_ps + self.takes + noise_ps * random.uniform(-1, 1, len(start_ps))), least)
        late_ps = start_ps if back is None else back.finish_ps - back.start_ps - self.takes
        early = self.ahead.run(late_ps, least)
        if early is None:
            return None
        self.early = early
        return late_ps, early.start_ps

    def found(self, best: Schedule, both: tuple[I64, I64]) -> list[Schedule]:
        """The schedule after a pass to the left, where it is valid and better than the best."""
        return [self.early] if self.early.finish_ps < best.finish_ps and not verify(self.early) else []


def _turned(schedule: Schedule) -> Schedule:
    """The transfers backwards on the reversed machine, with every GPU of a chunk at both ends of it."""
    demand = schedule.demand
    count = np.arange(len(demand))
    source, wanted = (np.repeat(count, np.diff(ptr)) for ptr in (demand.source_ptr, demand.destination_ptr))
    ranks = np.concatenate((demand.source_rank, demand.destination_rank))
    ends = np.concatenate((source, wanted)) * demand.num_gpus + ranks
    chunk, rank = np.divmod(np.unique(ends), demand.num_gpus)
    ptr, ranks = np.searchsorted(chunk, np.arange(len(demand) + 1)).astype(np.int64), rank.astype(np.int32)
    both = replace(demand, source_ptr=ptr, source_rank=ranks, destination_ptr=ptr, destination_rank=ranks)
    return replace(reverse(schedule, both, reduce=True), reduce=~schedule.reduce)


def _takes_ps(schedule: Schedule) -> I64:
    """The time of every transfer from its start to its last arrival."""
    timing, takes = schedule.timing, np.zeros(len(schedule), dtype=np.int64)
    np.maximum.at(takes, timing.end_transfer, timing.end_arrival_ps - schedule.start_ps[timing.end_transfer])
    return takes


def _passes(schedule: Schedule) -> "_Passes | None":
    """The passes over a schedule; None where it cannot be list scheduled."""
    if not can_list_schedule(schedule) or schedule.demand.ready_ps is not None:
        return None
    forward = ListScheduler(schedule)
    count, takes = len(schedule), _takes_ps(schedule)
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
    count = 4  # passes in a step

    def found(self, best: Schedule, both: tuple[I64, I64]) -> list[Schedule]:
        """The schedules after a pass that are better than the best."""
        return [
            replace(best, start_ps=start_ps)
            for start_ps in both
            if int((start_ps + self.takes).max()) < best.finish_ps and keeps(self.mutual, start_ps)
        ]

    def back_and_forth(self, start_ps: I64, noise_ps: float, random: np.random.Generator) -> tuple[I64, I64] | None:
        """The starts after a pass to the right, with noise, and one to the left; None if transfers wait in a circle."""
        end_ps = start_ps + self.takes + noise_ps * random.uniform(-1, 1, len(start_ps))
        late = self.back.starts(-end_ps)
        if late is None:
            return None
        late = int((late + self.takes).max()) - late - self.takes
        early = self.ahead.starts(late)
        return None if early is None else (late, early)
