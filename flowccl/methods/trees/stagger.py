"""Staggered rounds along trees (the thesis's theorem 4): a pipeline with a proved loss.

Each tree carries one chunk per round. A plan gives the start of each edge of each tree within a period, from the links
alone. The plan repeats every period. An edge sends the chunk of round r a whole number of periods later, such that its
data has arrived; the links never carry more than in the plan.

    P   `period_ps`    the longest time from the first to the last use of a link in the plan
    M   `span_ps`      duration of the plan from the first start to the last arrival: P and latency
    D   `depth`        largest number of transfers from the root of a tree to a leaf
    k   `rounds`

    finish <= (k - 1) P + (D - 1) ceil(M / P) P + M

If no route crosses a switch, P is the work of the busiest link per round, so that k P = T is the time of the packing.
Without latency M = P, and finish <= T (1 + (D - 1) / k). The links of a route through a cut-through switch must be free
at the same time, which may make P longer than the work of the busiest link.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.methods.trees.period import plan_period
from flowccl.schedule.generation.job_shop import Jobs
from flowccl.schedule.generation.serial import fits
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.timing import replay
from flowccl.schedule.transform import left_shift
from flowccl.topology.routes import shape_on

I64 = NDArray[np.int64]

_ALIKE = 0.98  # mean size of the jobs, relative to the largest: above it, all are planned with the largest size


@dataclass(frozen=True, eq=False)
class StaggeredPlan:
    """A plan for the jobs of one round, and all jobs: each is job `template` of the plan in round `round_number`.

    For each job of the plan: its start, its duration to the last arrival, and the number of periods and of transfers
    between the first job of its tree and itself.
    """

    jobs: Jobs
    template: I64
    round_number: I64
    period_ps: int
    start_ps: I64
    takes_ps: I64
    periods: I64
    steps: I64

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return int(self.round_number.max()) + 1

    @property
    def span_ps(self) -> int:
        """Time from the first start to the last arrival in the plan."""
        return int((self.start_ps + self.takes_ps).max())

    @property
    def depth(self) -> int:
        """Largest number of transfers along a path of a tree."""
        return int(self.steps.max()) + 1

    @property
    def bound_ps(self) -> int:
        """Upper bound on the completion time: the start of the last round and its duration."""
        last = self.periods * self.period_ps + self.start_ps + self.takes_ps
        return int((self.rounds - 1) * self.period_ps + last.max())

    def schedule(self) -> Schedule | None:
        """Return the repeated plan, left-shifted; None if it is invalid.

        It is valid unless chunks of unequal size cross store-and-forward switches: smaller ones reach the second link
        early.
        """
        jobs = self.jobs
        start = self.start_ps[self.template] + (self.round_number + self.periods[self.template]) * self.period_ps
        whole = _schedule(jobs, np.arange(len(start)), start)
        return left_shift(whole) if fits(whole) else None


def plan_stagger(jobs: Jobs, same_chunk: I64, round_number: I64, seed: int = 0) -> StaggeredPlan:
    """Plan jobs on trees: chunk c, in round `round_number[c]`, uses the tree of `same_chunk[c]` in round 0."""
    count = np.bincount(jobs.chunk, minlength=len(round_number))
    first = np.cumsum(count) - count
    number = np.arange(len(jobs.chunk))
    origin = first[same_chunk[jobs.chunk]] + number - first[jobs.chunk]  # the job of round 0 on the same edge
    plan = np.flatnonzero(round_number[jobs.chunk] == 0)
    place = np.full(len(number), -1, dtype=np.int64)
    place[plan] = np.arange(len(plan))
    parent = np.full(len(number), -1, dtype=np.int64)
    parent[jobs.shop.child] = np.repeat(number, np.diff(jobs.shop.child_ptr))
    above = np.where(parent[plan] < 0, -1, place[parent[plan]])

    fed = np.flatnonzero(above >= 0)  # each job after its predecessor
    steps = _accumulated(above, fed, np.ones(len(plan), dtype=np.int64))
    period_ps, start, size = _least_period(jobs, plan, place[origin], steps, seed)
    takes = _durations_ps(jobs, plan, size)
    wait = np.zeros(len(plan), dtype=np.int64)
    wait[fed] = np.maximum(-((start[fed] - start[above[fed]] - takes[above[fed]]) // period_ps), 0)
    periods = _accumulated(above, fed, wait)
    return StaggeredPlan(jobs, place[origin], round_number[jobs.chunk], period_ps, start, takes, periods, steps)


def _least_period(jobs: Jobs, plan: I64, template: I64, steps: I64, seed: int) -> tuple[int, I64, I64]:
    """Return the shortest period, the starts in it, and the sizes of the jobs of the plan.

    Jobs of one size pack best. Where sizes differ by much, jobs of their own sizes may still need less time.
    """
    own = np.zeros(len(plan), dtype=np.int64)
    np.maximum.at(own, template, jobs.shop.job_bytes)
    equal = np.full(len(plan), own.max())
    best = (*plan_period(jobs, plan, equal, steps, seed), equal)
    if own.sum() < _ALIKE * equal.sum():
        other = (*plan_period(jobs, plan, own, steps, seed), own)
        best = min(best, other, key=lambda found: found[0])
    return best


def _accumulated(above: I64, fed: I64, more: I64) -> I64:
    """The sum of `more` along the path from the root to each job; 0 at the root."""
    total = [0] * len(above)
    for job, before, extra in zip(fed.tolist(), above[fed].tolist(), more[fed].tolist(), strict=True):
        total[job] = total[before] + extra
    return np.array(total, dtype=np.int64)


def _durations_ps(jobs: Jobs, which: I64, size: I64) -> I64:
    """Time from the start of each job to its last arrival, with these sizes."""
    route = jobs.shop.job_route[which].astype(np.int32)
    zero, shape = np.zeros(len(which), dtype=np.int64), shape_on(jobs.topology, jobs.routes)
    timing = replay(jobs.topology, shape, size, route, zero)
    np.maximum.at(zero, timing.end_transfer, timing.end_arrival_ps)
    return zero


def _schedule(jobs: Jobs, which: I64, start_ps: I64) -> Schedule:
    """The schedule of some of the jobs at these starts."""
    flags, route = np.zeros(len(which), dtype=np.bool_), jobs.shop.job_route[which].astype(np.int32)
    return Schedule(jobs.topology, jobs.demand, jobs.routes, jobs.chunk[which], route, start_ps, flags, jobs.method)
