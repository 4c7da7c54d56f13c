"""The starts of the jobs of one round within a period, from the links alone: jobs do not wait for data.

Links that share no route are planned separately. If all routes of a component have one link, they follow each other. If
all have two links that are busy equally long, they are the edge coloring of a bipartite graph (König). In both cases
the period is the work of the busiest link. Otherwise a list scheduler runs a few times.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER, pointers
from flowccl.methods.trees.along import link_work_ps
from flowccl.methods.trees.pacing_kernels import dispatch_balanced
from flowccl.methods.trees.period_kernels import edge_coloring
from flowccl.schedule.generation.job_shop import Jobs
from flowccl.schedule.timing import replay
from flowccl.topology.routes import shape_on

I64 = NDArray[np.int64]

_RUNS = 8  # runs of the list scheduler; the shortest period is used
_EXACT = 1 + 1e-9  # relative to the busiest link: no plan is shorter


def plan_period(jobs: Jobs, which: I64, size: I64, steps: I64, seed: int) -> tuple[int, I64]:
    """Return the shortest period found for these jobs with these sizes in bytes, and their starts in it.

    Jobs with few `steps` from the root go first if that costs nothing: then others need not wait for the next period.
    """
    alone = _without_data(jobs, which, size)
    uses = _link_uses(alone)
    component = _components(uses, len(jobs.topology.links))
    start, period_ps = np.zeros(len(which), dtype=np.int64), 1
    for one in np.unique(component).tolist():
        members = np.flatnonzero(component == one)
        own = _LinkUses(*(column[component[uses.job] == one] for column in uses))
        own = own._replace(job=np.searchsorted(members, own.job))
        found = _exact_starts(own, steps[members])
        if found is None:
            found = _list_scheduled(alone, members, own, steps[members], seed)
        start[members] = found
        period_ps = max(period_ps, _period(own, found))
    return period_ps, start


class _LinkUses(NamedTuple):
    """Which job uses which link from when until when after its start."""

    job: I64
    link: I64
    begin: I64
    end: I64


def _without_data(jobs: Jobs, which: I64, size: I64) -> Jobs:
    """Some jobs with these sizes, without precedence between them."""
    shop = jobs.shop
    waits = np.bincount(shop.job_route[which], minlength=len(shop.hop_ptr) - 1)
    alone = shop._replace(
        queue_ptr=pointers(waits),
        job_route=shop.job_route[which],
        job_bytes=size,
        child_ptr=np.zeros(len(which) + 1, dtype=np.int64),
        child=np.zeros(0, dtype=np.int64),
        feeding_hop=np.full(len(which), -1, dtype=np.int64),
    )
    return replace(jobs, chunk=jobs.chunk[which], shop=alone)


def _link_uses(jobs: Jobs) -> _LinkUses:
    shop, zero = jobs.shop, np.zeros(len(jobs.chunk), dtype=np.int64)
    shape = shape_on(jobs.topology, jobs.routes)
    timing = replay(jobs.topology, shape, shop.job_bytes, shop.job_route.astype(np.int32), zero)
    return _LinkUses(timing.hop_transfer, timing.hop_link.astype(np.int64), timing.hop_from_ps, timing.hop_to_ps)


def _components(uses: _LinkUses, links: int) -> I64:
    """The component of each job: jobs that share a link, directly or indirectly, are in one."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    count = int(uses.job.max()) + 1
    joins = csr_array((np.ones(len(uses.job)), (uses.job, count + uses.link)), shape=(count + links,) * 2)
    component: I64 = connected_components(joins, directed=False)[1][:count].astype(np.int64)
    return component


def _exact_starts(uses: _LinkUses, steps: I64) -> I64 | None:
    """Starts for which the busiest link is never idle, if all jobs use one link, or two equally long."""
    hops = np.bincount(uses.job)
    takes = uses.end - uses.begin
    if hops.min() < hops.max() or hops[0] > 2 or takes.min() < takes.max():
        return None
    if hops[0] == 1:
        return _ranked(steps) * int(takes[0])
    by_job = np.lexsort((uses.begin, uses.job)).reshape(-1, 2)
    late = uses.begin[by_job[:, 1]]
    if late.min() < late.max():  # the order on the second link would differ from that on the first
        return None
    names, link = np.unique(uses.link, return_inverse=True)
    first, second = link[by_job[:, 0]].astype(np.int64), link[by_job[:, 1]].astype(np.int64)
    if len(np.intersect1d(first, second)):
        return None
    most = int(np.bincount(link.reshape(-1)).max())
    color = edge_coloring(first, second, len(names), most)
    mean = np.bincount(color, steps, most) / np.maximum(np.bincount(color, minlength=most), 1)
    return _ranked(mean)[color] * int(takes[0])


def _ranked(values: NDArray[np.number]) -> I64:
    """The rank of each value in ascending order."""
    rank = np.empty(len(values), dtype=np.int64)
    rank[np.argsort(values, kind="stable")] = np.arange(len(values))
    return rank


def _list_scheduled(jobs: Jobs, members: I64, uses: _LinkUses, steps: I64, seed: int) -> I64:
    """Starts by the list scheduler: the shortest period of a few runs."""
    some = _without_data(jobs, members, jobs.shop.job_bytes[members])
    work, random = link_work_ps(some), np.random.default_rng(seed)
    best, least = np.zeros(len(members), dtype=np.int64), NEVER
    for _ in range(_RUNS):
        rank = _ranked(steps + random.uniform(0, 1, len(members)))
        start = dispatch_balanced(some.shop, rank, work, NEVER)[2]
        if _period(uses, start) < least:
            best, least = start, _period(uses, start)
        if least <= work.max() * _EXACT:
            break
    return best


def _period(uses: _LinkUses, start: I64) -> int:
    """The longest time from the first to the last use of a link."""
    first, last = np.full(int(uses.link.max()) + 1, NEVER), np.zeros(int(uses.link.max()) + 1, dtype=np.int64)
    np.minimum.at(first, uses.link, start[uses.job] + uses.begin)
    np.maximum.at(last, uses.link, start[uses.job] + uses.end)
    return int((last - first)[uses.link].max())
