"""Jobs worked off so that no link falls behind: of the routes that are free, the one whose links have most left to do.

Where the optimum fills many links, an order by the longest way to go alone leaves some of them idle now and then, and
nothing makes up for it later.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flowccl.methods.trees.along import link_work_ps, rounds_of
from flowccl.methods.trees.pacing_kernels import work_evenly
from flowccl.methods.trees.stagger import staggered
from flowccl.schedule.generation.job_shop import Jobs
from flowccl.schedule.generation.serial import generate_serial, sequence
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift
from flowccl.search.context import SearchContext

F64 = NDArray[np.float64]

_NEVER = int(np.iinfo(np.int64).max)


def dispatched(jobs: Jobs, rounds: int, context: SearchContext) -> Iterator[Schedule | None]:
    """Run after run, each better schedule: by what links have left to do and by the longest way to go, with noise.

    The first is no worse than the trees of all rounds staggered.
    """
    random = np.random.default_rng(context.seed)
    work, best_ps, runs = link_work_ps(jobs), _NEVER, 0
    while True:
        noise = 0.0 if runs < 2 else float(10 ** random.uniform(-2.0, -0.3))
        key = -jobs.tail * (1 + noise * random.uniform(-1, 1, len(jobs.tail)))
        found = jobs.in_order(key, best_ps) if runs % 2 else in_even_order(jobs, key, work, best_ps)
        if found is not None and jobs.topology.limits:  # which the shop does not know
            found = generate_serial(found, sequence(found))
        if runs == 0 and not jobs.topology.limits:
            found = _better(found, in_rounds(jobs, rounds, context.seed))
        runs += 1
        if found is not None and found.finish_ps < best_ps:
            best_ps = found.finish_ps
            yield found
        else:
            yield None


def in_rounds(jobs: Jobs, rounds: int, seed: int) -> Schedule | None:
    """The best of staggers with as many rounds, or fewer and larger ones, and of the shop round by round."""
    best = in_turns(jobs, rounds)
    for fewer in [count for count in range(2, rounds + 1) if rounds % count == 0]:
        best = _better(best, staggered(jobs, *rounds_of(jobs.demand, fewer), seed).schedule())
    return best


def in_turns(jobs: Jobs, rounds: int) -> Schedule | None:
    """One run of the shop in which every round has its turn, and in it the longest way goes first."""
    turn = rounds_of(jobs.demand, rounds)[1][jobs.chunk]
    return jobs.in_order(turn * (float(link_work_ps(jobs).max()) / rounds) - jobs.tail, _NEVER)


def _better(one: Schedule | None, other: Schedule | None) -> Schedule | None:
    if one is None or other is None:
        return one or other
    return other if other.finish_ps < one.finish_ps else one


def in_even_order(jobs: Jobs, key: F64, work: F64, give_up_ps: int) -> Schedule | None:
    """One run of `work_evenly`; on a route the least key goes first. None where it is no better than `give_up_ps`."""
    rank = np.empty(len(key), dtype=np.int64)
    rank[np.argsort(key, kind="stable")] = np.arange(len(key))
    done, _, start = work_evenly(jobs.shop, rank, work, give_up_ps)
    if not done:
        return None
    flags, route = np.zeros(len(start), dtype=np.bool_), jobs.shop.job_route.astype(np.int32)
    return left_shift(Schedule(jobs.topology, jobs.demand, jobs.routes, jobs.chunk, route, start, flags, jobs.method))
