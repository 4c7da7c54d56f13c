"""One source's schedule, spread by a group: for machines that look the same from every GPU.

Where a group takes GPU 0 to every GPU by exactly one element, and no element but the identity leaves a link in place,
the transfers of GPU 0's data moved by all elements are a schedule of all data. A link is then free for a transfer if
its orbit is: a shop with a handful of machines, whatever the number of GPUs.

ways.py      ways from GPU 0, sorted into kinds that hold the same orbits of links
kernels.py   list schedulers on orbits of links
one.py       one source's transfers, and the schedule of all
"""

from collections.abc import Iterator

import numpy as np

from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.symmetric.one_source import OneSource, deliver_one, spread_one
from flowccl.methods.symmetric.paths import Ways
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.symmetry.regular_groups import regular_group
from flowccl.topology.topology import Topology

_NEVER = int(np.iinfo(np.int64).max // 4)
_TIGHTER = (1.0, 0.999, 0.99, 0.97)  # of the best finish: nothing may arrive later than that


def symmetric(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Allgather and alltoall; run after run, each better one expanded to all sources."""
    topology, demand = problem.topology, problem.demand
    pieces, copies = _pattern(topology, demand)
    ways = symmetric_paths(topology)
    if ways is None:
        raise DemandError(f"mirrored needs a machine that looks the same from every GPU; {topology.name} does not")
    kinds = ways.kinds(int(demand.chunk_bytes.max()))
    random = np.random.default_rng(context.seed)
    best: OneSource | None = None
    while True:
        if not copies:
            found: OneSource | None = deliver_one(ways, kinds, pieces, random)
        else:
            tight = float(random.choice(_TIGHTER))
            deadline = _NEVER if best is None else int(best.finish_ps * tight) - 1
            found = spread_one(ways, kinds, pieces, random, deadline)
        if found is None or (best is not None and found.finish_ps >= best.finish_ps):
            yield None
            continue
        best = found
        yield found.expanded(demand, "symmetric")


def symmetric_paths(topology: Topology) -> Ways | None:
    """The ways of a machine that looks the same from every GPU; None where it does not, or has limits or changes."""
    if topology.has_extra_constraints:
        return None
    group = regular_group(topology)
    return None if group is None else Ways.of(group)


def _pattern(topology: Topology, demand: Demand) -> tuple[int, bool]:
    """Pieces of each block, and whether it is an allgather, else an alltoall; of all GPUs, in the order of ranks."""
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
    raise DemandError(f"mirrored is for allgather and alltoall among all GPUs, not for this {demand.collective}")
