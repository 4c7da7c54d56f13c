"""Method `trees`: spanning trees that achieve the bottleneck-cut optimum, then chunks in a pipeline along them.

amount.py    the number of chunks for a gap
packing.py   the least time for whole chunks, splitting off switches, packing (Edmonds; Bang-Jensen, Frank, Jackson)
along.py     chunks on their trees, equal in every round: jobs
period.py    the starts of one round, from the links alone
stagger.py   staggered rounds: a pipeline with a proved loss (the thesis's theorem 4)
pacing.py    dispatching of the jobs by the remaining work of the links

For demands in which every chunk goes to all members: allgather, broadcast; reduce_scatter, reduce and allreduce with
time reversed.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.bounds.bottleneck_cut import bottleneck_cut
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.trees.along import jobs_along
from flowccl.methods.trees.pacing import dispatch_runs
from flowccl.methods.trees.packing import cached_packing, choose_rounds
from flowccl.problem import Problem
from flowccl.schedule.generation.job_shop import Jobs
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.topology import Topology

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


def trees(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Yield schedules: pack trees once, then stagger the chunks along them and dispatch the jobs in other orders."""
    topology, demand = problem.topology, problem.demand
    check_destinations(demand, "trees")
    _note_optimum(problem, context)
    yield from dispatch_runs(*packed_jobs(topology, demand, "trees", context.incumbents.hints), context)


def packed_jobs(
    topology: Topology, demand: Demand, method: str, known: dict[str, object], link_GBps: F64 | None = None
) -> tuple[Jobs, int]:
    """Return the jobs of the chunks on trees, packed into this much of each link, and the number of rounds.

    With many chunks, the same trees repeat in every round. `known` caches packings.
    """
    roots = np.bincount(demand.source, minlength=len(topology.nodes)).astype(np.int64)
    members, size = _members(demand), int(demand.chunk_bytes.max())
    GBps = topology.link_GBps if link_GBps is None else link_GBps
    rounds = choose_rounds(topology, roots, members, GBps * 1000 / size)
    packing = cached_packing(topology, roots // rounds, members, size, known, link_GBps)
    return replace(jobs_along(topology, demand, packing, rounds), method=method), rounds


def _note_optimum(problem: Problem, context: SearchContext) -> None:
    """Note the bottleneck-cut optimum of an allgather, once."""
    topology, demand = problem.topology, problem.demand
    whole = demand.collective in ("allgather", "reduce_scatter") and len(_members(demand)) == topology.num_gpus
    if whole and "optimum_us" not in context.notes:
        context.notes["optimum_us"] = (
            bottleneck_cut(topology).seconds_per_GB * demand.size_bytes / topology.num_gpus / 1000
        )


def check_destinations(demand: Demand, method: str) -> None:
    """Raise DemandError unless every chunk goes to all members."""
    if demand.reduces:
        raise DemandError(f"method {method} needs chunks with one source each; {demand.collective} reduces several")
    if np.any(np.diff(demand.destination_ptr) != len(_members(demand)) - 1):
        raise DemandError(f"method {method} needs chunks that go to all ranks, as in allgather; use greedy or reroute")


def _members(demand: Demand) -> I64:
    return np.union1d(demand.source, demand.destination_rank).astype(np.int64)
