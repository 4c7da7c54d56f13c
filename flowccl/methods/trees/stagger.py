"""Chunks staggered along their trees (the thesis's theorem 4): the pipeline whose loss is known before it runs.

Each tree has one chunk in every round. A plan says when, within a period, each edge of each tree sends; it looks at the
links only, not at the data. The plan is repeated period after period, and an edge sends the chunk of round r as many
periods later as its data needs: so everything is there when it is sent, and links never carry more than the plan.

    P   `period_ps`    the longest time from the first to the last use of a link in the plan
    M   `span_ps`      how long the plan takes from the first start to the last arrival: P and latency
    D   `depth`        transfers from the root of a tree to its leaves, at most
    k   `rounds`

    finish <= (k - 1) P + (D - 1) ceil(M / P) P + M

Where no route crosses a switch P is what the fullest link has to do in a round, so that k P = T is the time of the
packing, and without latency M = P: then finish <= T (1 + (D - 1) / k). Where routes cross switches, which pass on at
once, their links must be free together; what P is above the fullest link is the loss by that.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.methods.trees.period import planned
from flowccl.schedule.generation.job_shop import Jobs
from flowccl.schedule.generation.serial import fits
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.timing import replay
from flowccl.schedule.transform import left_shift
from flowccl.topology.routes import shape_on

I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Stagger:
    """A plan for the jobs of one round, and all jobs: each is job `same` of the plan in round `turn`.

    Of each job of the plan: when it starts there, how long it takes to the last arrival, how many periods after the
    first job of its tree it comes, and how many transfers after it.
    """

    jobs: Jobs
    same: I64
    turn: I64
    period_ps: int
    start_ps: I64
    takes_ps: I64
    periods: I64
    steps: I64

    @property
    def rounds(self) -> int:
        """How often the plan is repeated."""
        return int(self.turn.max()) + 1

    @property
    def span_ps(self) -> int:
        """From the first start to the last arrival in the plan."""
        return int((self.start_ps + self.takes_ps).max())

    @property
    def depth(self) -> int:
        """Transfers one after the other in a tree, at most."""
        return int(self.steps.max()) + 1

    @property
    def bound_ps(self) -> int:
        """No later than this everything is there: what the last round takes after all the others have begun."""
        last = self.periods * self.period_ps + self.start_ps + self.takes_ps
        return int((self.rounds - 1) * self.period_ps + last.max())

    def schedule(self) -> Schedule | None:
        """The plan, repeated, then everything as early as each link's order allows; None where it does not fit.

        It does, but for chunks of unequal size on store-and-forward switches: smaller ones reach the second link early.
        """
        jobs = self.jobs
        start = self.start_ps[self.same] + (self.turn + self.periods[self.same]) * self.period_ps
        whole = _schedule(jobs, np.arange(len(start)), start)
        return left_shift(whole) if fits(whole) else None


def staggered(jobs: Jobs, same_chunk: I64, turn: I64, seed: int = 0) -> Stagger:
    """A plan for jobs on trees: chunk c, in round `turn[c]`, goes the same way as `same_chunk[c]` in round 0."""
    count = np.bincount(jobs.chunk, minlength=len(turn))
    first = np.cumsum(count) - count
    number = np.arange(len(jobs.chunk))
    origin = first[same_chunk[jobs.chunk]] + number - first[jobs.chunk]  # the job of round 0 on the same edge
    plan = np.flatnonzero(turn[jobs.chunk] == 0)
    place = np.full(len(number), -1, dtype=np.int64)
    place[plan] = np.arange(len(plan))
    parent = np.full(len(number), -1, dtype=np.int64)
    parent[jobs.shop.child] = np.repeat(number, np.diff(jobs.shop.child_ptr))
    above = np.where(parent[plan] < 0, -1, place[parent[plan]])

    fed = np.flatnonzero(above >= 0)  # each after the one that feeds it
    steps = _added_up(above, fed, np.ones(len(plan), dtype=np.int64))
    period_ps, start = planned(jobs, plan, steps, seed)
    takes = _takes(jobs, plan)
    wait = np.zeros(len(plan), dtype=np.int64)
    wait[fed] = np.maximum(-((start[fed] - start[above[fed]] - takes[above[fed]]) // period_ps), 0)
    periods = _added_up(above, fed, wait)
    return Stagger(jobs, place[origin], turn[jobs.chunk], period_ps, start, takes, periods, steps)


def _added_up(above: I64, fed: I64, more: I64) -> I64:
    """What each job has more than the one above it, added up from the root, which has nothing."""
    total = [0] * len(above)
    for job, before, extra in zip(fed.tolist(), above[fed].tolist(), more[fed].tolist(), strict=True):
        total[job] = total[before] + extra
    return np.array(total, dtype=np.int64)


def _takes(jobs: Jobs, which: I64) -> I64:
    """From the start of each job to its last arrival, as if all were as large as the largest."""
    size, route = np.full(len(which), jobs.shop.job_bytes.max()), jobs.shop.job_route[which].astype(np.int32)
    zero, shape = np.zeros(len(which), dtype=np.int64), shape_on(jobs.topology, jobs.routes)
    timing = replay(jobs.topology, shape, size, route, zero)
    np.maximum.at(zero, timing.end_transfer, timing.end_arrival_ps)
    return zero


def _schedule(jobs: Jobs, which: I64, start_ps: I64) -> Schedule:
    """Some of the jobs at these starts."""
    flags, route = np.zeros(len(which), dtype=np.bool_), jobs.shop.job_route[which].astype(np.int32)
    return Schedule(jobs.topology, jobs.demand, jobs.routes, jobs.chunk[which], route, start_ps, flags, jobs.method)
