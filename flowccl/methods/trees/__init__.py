"""Trees: the cut optimum as trees that share the links exactly, then chunks one after the other along them.

amount.py    how many chunks, from the gap wanted
packing.py   the least time for whole chunks, switches split off, trees packed (Edmonds; Bang-Jensen, Frank, Jackson)
along.py     chunks on their trees, round by round the same: jobs
plan.py      one round, link by link
stagger.py   rounds staggered: a pipeline whose loss is known (the thesis's theorem 4)
shop.py      the jobs worked off so that no link falls behind

For demands in which every chunk goes to all members: allgather, broadcast; reduce_scatter, reduce and allreduce by
running backwards.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.bounds.bottleneck_cut import bottleneck_cut
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.trees.along import jobs_along
from flowccl.methods.trees.pacing import dispatched
from flowccl.methods.trees.packing import fewest_rounds, remembered
from flowccl.problem import Problem
from flowccl.schedule.generation.job_shop import Jobs
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.topology import Topology

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


def trees(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """One packing; then chunks staggered along its trees, and runs of the shop."""
    topology, demand = problem.topology, problem.demand
    if topology.limits:
        raise DemandError("trees knows no shared limits; use fluid or greedy")
    everybody(topology, demand, "trees")
    _note_optimum(problem, context)
    yield from dispatched(*packed_jobs(topology, demand, "trees", context.incumbents.hints), context)


def packed_jobs(
    topology: Topology, demand: Demand, method: str, known: dict[str, object], link_GBps: F64 | None = None
) -> tuple[Jobs, int]:
    """The chunks on trees that are packed into so much of each link, and in how many rounds the trees repeat.

    They repeat where there are many; `known` keeps packings for the next time.
    """
    roots = np.bincount(demand.source, minlength=len(topology.nodes)).astype(np.int64)
    members, size = _members(demand), int(demand.chunk_bytes.max())
    GBps = topology.link_GBps if link_GBps is None else link_GBps
    rounds = fewest_rounds(topology, roots, members, GBps * 1000 / size)
    packing = remembered(topology, roots // rounds, members, size, known, link_GBps)
    return replace(jobs_along(topology, demand, packing, rounds), method=method), rounds


def _note_optimum(problem: Problem, context: SearchContext) -> None:
    """The cut optimum, for the reader of the result; of an allgather, once."""
    topology, demand = problem.topology, problem.demand
    whole = demand.collective in ("allgather", "reduce_scatter") and len(_members(demand)) == topology.num_gpus
    if whole and "optimum_us" not in context.notes:
        context.notes["optimum_us"] = (
            bottleneck_cut(topology).seconds_per_GB * demand.size_bytes / topology.num_gpus / 1000
        )


def everybody(topology: Topology, demand: Demand, method: str) -> None:
    """Raise DemandError unless every chunk goes to all who get any, on a machine whose bandwidth stays as it is."""
    if demand.reduces:
        raise DemandError(f"{method} moves chunks with one source each; {demand.collective} adds up several")
    if topology.changes or topology.has_buffer_limits:
        raise DemandError(f"{method} knows no buffer limits and no changing bandwidth; use greedy")
    if np.any(np.diff(demand.destination_ptr) != len(_members(demand)) - 1):
        raise DemandError(f"{method} is for chunks that go to everybody, as in allgather; use greedy or routed")


def _members(demand: Demand) -> I64:
    return np.union1d(demand.source, demand.destination_rank).astype(np.int64)
