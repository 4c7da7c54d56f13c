"""Dispatching by remaining work: of the free routes, the one whose links have most work left goes first.

If the optimum uses many links fully, dispatching by the longest remaining path alone leaves some of them idle at times,
and that time is lost.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER
from flowccl.methods.trees.along import link_work_ps, rounds_of_chunks
from flowccl.methods.trees.pacing_kernels import dispatch_balanced
from flowccl.methods.trees.stagger import plan_stagger
from flowccl.portable import power_of_ten
from flowccl.schedule.generation.job_shop import Jobs
from flowccl.schedule.generation.serial import within_limits
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift
from flowccl.search.context import SearchContext

F64 = NDArray[np.float64]


def dispatch_runs(jobs: Jobs, rounds: int, context: SearchContext) -> Iterator[Schedule | None]:
    """Yield a schedule per run, or None if it is no better.

    Runs dispatch by the remaining work of links and by the longest remaining path in turn, with noise. The first
    schedule is at least as good as the staggered trees.
    """
    random = np.random.default_rng(context.seed)
    work, best_ps, runs = link_work_ps(jobs), NEVER, 0
    while True:
        noise = 0.0 if runs < 2 else power_of_ten(float(random.uniform(-2.0, -0.3)))
        key = -jobs.tail * (1 + noise * random.uniform(-1, 1, len(jobs.tail)))
        found = jobs.in_order(key, best_ps) if runs % 2 else in_balanced_order(jobs, key, work, best_ps)
        if found is not None and jobs.topology.limits:  # the dispatcher ignores limits
            found = within_limits(found)
        if runs == 0 and not jobs.topology.limits:
            found = _better(found, best_of_rounds(jobs, rounds, context.seed))
        runs += 1
        if found is not None and found.finish_ps < best_ps:
            best_ps = found.finish_ps
            yield found
        else:
            yield None


def best_of_rounds(jobs: Jobs, rounds: int, seed: int) -> Schedule | None:
    """The best staggered schedule with this many rounds, or fewer and larger ones, or dispatched round by round."""
    best = round_by_round(jobs, rounds)
    for fewer in [count for count in range(2, rounds + 1) if rounds % count == 0]:
        best = _better(best, plan_stagger(jobs, *rounds_of_chunks(jobs.demand, fewer), seed).schedule())
    return best


def round_by_round(jobs: Jobs, rounds: int) -> Schedule | None:
    """Dispatch the jobs round by round, within a round by the longest remaining path."""
    round_number = rounds_of_chunks(jobs.demand, rounds)[1][jobs.chunk]
    return jobs.in_order(round_number * (float(link_work_ps(jobs).max()) / rounds) - jobs.tail, NEVER)


def _better(one: Schedule | None, other: Schedule | None) -> Schedule | None:
    if one is None or other is None:
        return one or other
    return other if other.finish_ps < one.finish_ps else one


def in_balanced_order(jobs: Jobs, key: F64, work: F64, give_up_ps: int) -> Schedule | None:
    """One run of `dispatch_balanced`; on a route the least key goes first. None if not below `give_up_ps`."""
    rank = np.empty(len(key), dtype=np.int64)
    rank[np.argsort(key, kind="stable")] = np.arange(len(key))
    done, _, start = dispatch_balanced(jobs.shop, rank, work, give_up_ps)
    if not done:
        return None
    flags, route = np.zeros(len(start), dtype=np.bool_), jobs.shop.job_route.astype(np.int32)
    return left_shift(Schedule(jobs.topology, jobs.demand, jobs.routes, jobs.chunk, route, start, flags, jobs.method))
