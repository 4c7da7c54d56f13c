"""When, within a period, each job of a round sends, if none waited for another: links alone decide.

Links that no route joins are planned apart. Where all routes of a part have one link, they follow each other; where all
have two links and hold them equally long, they are the colors of a bipartite graph (König): either way the period is
what the fullest link has to do. Elsewhere a list scheduler is asked a few times.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowccl.methods.trees.along import link_work_ps
from flowccl.methods.trees.pacing_kernels import work_evenly
from flowccl.methods.trees.period_kernels import colors
from flowccl.schedule.generation.job_shop import Jobs
from flowccl.schedule.timing import replay
from flowccl.topology.routes import shape_on

I64 = NDArray[np.int64]

_RUNS = 8  # of the list scheduler; the shortest period counts
_EXACT = 1 + 1e-9  # of the fullest link: no plan is shorter
_NEVER = int(np.iinfo(np.int64).max)


def planned(jobs: Jobs, which: I64, steps: I64, seed: int) -> tuple[int, I64]:
    """The shortest period that was found for these jobs, and their starts in it.

    Those with few `steps` from the root go first where that costs nothing: then others need not wait for the next
    period.
    """
    alone = _without_data(jobs, which)
    holds = _holds(alone)
    part = _parts(holds, len(jobs.topology.links))
    start, period_ps = np.zeros(len(which), dtype=np.int64), 1
    for one in np.unique(part).tolist():
        mine = np.flatnonzero(part == one)
        own = _Holds(*(column[part[holds.job] == one] for column in holds))
        own = own._replace(job=np.searchsorted(mine, own.job))
        found = _in_turn(own, steps[mine])
        if found is None:
            found = _listed(alone, mine, own, steps[mine], seed)
        start[mine] = found
        period_ps = max(period_ps, _period(own, found))
    return period_ps, start


class _Holds(NamedTuple):
    """Which job holds which link from when until when after its start."""

    job: I64
    link: I64
    begin: I64
    end: I64


def _without_data(jobs: Jobs, which: I64) -> Jobs:
    """Some jobs, of which none waits for another, all as large as the largest."""
    shop = jobs.shop
    waits = np.bincount(shop.job_route[which], minlength=len(shop.hop_ptr) - 1)
    alone = shop._replace(
        queue_ptr=np.concatenate(([0], np.cumsum(waits))).astype(np.int64),
        job_route=shop.job_route[which],
        job_bytes=np.full(len(which), shop.job_bytes.max()),
        child_ptr=np.zeros(len(which) + 1, dtype=np.int64),
        child=np.zeros(0, dtype=np.int64),
        feeding_hop=np.full(len(which), -1, dtype=np.int64),
    )
    return replace(jobs, chunk=jobs.chunk[which], shop=alone)


def _holds(jobs: Jobs) -> _Holds:
    shop, zero = jobs.shop, np.zeros(len(jobs.chunk), dtype=np.int64)
    shape = shape_on(jobs.topology, jobs.routes)
    timing = replay(jobs.topology, shape, shop.job_bytes, shop.job_route.astype(np.int32), zero)
    return _Holds(timing.hop_transfer, timing.hop_link.astype(np.int64), timing.hop_from_ps, timing.hop_to_ps)


def _parts(holds: _Holds, links: int) -> I64:
    """The part of each job: jobs that use a link together are in one, and so on."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    count = int(holds.job.max()) + 1
    joins = csr_array((np.ones(len(holds.job)), (holds.job, count + holds.link)), shape=(count + links,) * 2)
    part: I64 = connected_components(joins, directed=False)[1][:count].astype(np.int64)
    return part


def _in_turn(holds: _Holds, steps: I64) -> I64 | None:
    """Starts in which the fullest link never rests, where all jobs hold one link, or two equally long."""
    hops = np.bincount(holds.job)
    takes = holds.end - holds.begin
    if hops.min() < hops.max() or hops[0] > 2 or takes.min() < takes.max():
        return None
    if hops[0] == 1:
        return _ranked(steps) * int(takes[0])
    by_job = np.lexsort((holds.begin, holds.job)).reshape(-1, 2)
    late = holds.begin[by_job[:, 1]]
    if late.min() < late.max():  # the second link would not be used in the order of the first
        return None
    names, link = np.unique(holds.link, return_inverse=True)
    first, second = link[by_job[:, 0]].astype(np.int64), link[by_job[:, 1]].astype(np.int64)
    if len(np.intersect1d(first, second)):
        return None
    most = int(np.bincount(link.reshape(-1)).max())
    color = colors(first, second, len(names), most)
    mean = np.bincount(color, steps, most) / np.maximum(np.bincount(color, minlength=most), 1)
    return _ranked(mean)[color] * int(takes[0])


def _ranked(values: NDArray[np.number]) -> I64:
    """The place of each in ascending order."""
    rank = np.empty(len(values), dtype=np.int64)
    rank[np.argsort(values, kind="stable")] = np.arange(len(values))
    return rank


def _listed(jobs: Jobs, mine: I64, holds: _Holds, steps: I64, seed: int) -> I64:
    """Starts by the list scheduler: the shortest period of a few runs."""
    some = _without_data(jobs, mine)
    work, random = link_work_ps(some), np.random.default_rng(seed)
    best, least = np.zeros(len(mine), dtype=np.int64), _NEVER
    for _ in range(_RUNS):
        rank = _ranked(steps + random.uniform(0, 1, len(mine)))
        start = work_evenly(some.shop, rank, work, _NEVER)[2]
        if _period(holds, start) < least:
            best, least = start, _period(holds, start)
        if least <= work.max() * _EXACT:
            break
    return best


def _period(holds: _Holds, start: I64) -> int:
    """The longest time from the first to the last use of a link."""
    first, last = np.full(int(holds.link.max()) + 1, _NEVER), np.zeros(int(holds.link.max()) + 1, dtype=np.int64)
    np.minimum.at(first, holds.link, start[holds.job] + holds.begin)
    np.maximum.at(last, holds.link, start[holds.job] + holds.end)
    return int((last - first)[holds.link].max())
