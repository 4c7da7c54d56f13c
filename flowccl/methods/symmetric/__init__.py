"""Symmetric schedules from one source, for machines that look the same from every GPU.

If a group maps GPU 0 to every GPU by exactly one element, and only the identity fixes a link, the images of the
transfers of GPU 0's data under all elements are a schedule of all data. A link is free for a transfer if its orbit is
free, so the problem is a job shop with a few machines, however large the number of GPUs.

routes.py          routes from GPU 0, classified by the orbits of links that they occupy
spread_kernels.py  list schedulers on orbits of links
one_source.py      the transfers of one source, and the schedule of all
"""

from collections.abc import Iterator

import numpy as np

from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.symmetric.one_source import OneSource, deliver_one, spread_one
from flowccl.methods.symmetric.routes import SourceRoutes
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.symmetry.regular_groups import regular_group
from flowccl.topology.topology import Topology

_NEVER = int(np.iinfo(np.int64).max // 4)
_TIGHTER = (1.0, 0.999, 0.99, 0.97)  # deadlines, relative to the best completion time


def symmetric(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Run again and again, for allgather and alltoall; every better schedule is expanded to all sources."""
    topology, demand = problem.topology, problem.demand
    pieces, copies = _pattern(topology, demand)
    source_routes = symmetric_routes(topology)
    if source_routes is None:
        raise DemandError(
            f"method symmetric needs a machine that looks the same from every GPU; {topology.name} does not"
        )
    kinds = source_routes.kinds(int(demand.chunk_bytes.max()))
    random = np.random.default_rng(context.seed)
    best: OneSource | None = None
    while True:
        if not copies:
            found: OneSource | None = deliver_one(source_routes, kinds, pieces, random)
        else:
            tight = float(random.choice(_TIGHTER))
            deadline = _NEVER if best is None else int(best.finish_ps * tight) - 1
            found = spread_one(source_routes, kinds, pieces, random, deadline)
        if found is None or (best is not None and found.finish_ps >= best.finish_ps):
            yield None
            continue
        best = found
        yield found.expanded(demand, "symmetric")


def symmetric_routes(topology: Topology) -> SourceRoutes | None:
    """The routes from GPU 0 of a regular machine; None if it is not regular, or has limits or changing bandwidth."""
    if topology.has_extra_constraints:
        return None
    group = regular_group(topology)
    return None if group is None else SourceRoutes.of(group)


def _pattern(topology: Topology, demand: Demand) -> tuple[int, bool]:
    """Chunks per block, and whether the demand is an allgather of all GPUs; otherwise it is an alltoall."""
    count = topology.num_gpus
    wants = np.diff(demand.destination_ptr)
    if not demand.reduces and demand.num_gpus == count and len(demand) and np.all(wants == wants[0]):
        copies = bool(wants[0] == count - 1)
        blocks = count if copies else count * (count - 1)
        pieces = len(demand) // blocks
        block = np.arange(len(demand)) // max(pieces, 1)
        source = block if copies else block // (count - 1)
        same = len(demand) == blocks * pieces and np.array_equal(demand.source, source)
        if not copies and same:
            to = block % (count - 1)
            same = bool(wants[0] == 1) and np.array_equal(demand.destination_rank, to + (to >= source))
        if same:
            return pieces, copies
    raise DemandError(
        f"method symmetric supports only allgather and alltoall among all GPUs, not this {demand.collective}"
    )
