"""Stage 1 without a solver: chunks take shortest paths in turn, and the load of a link delays later chunks."""

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import NothingFoundError
from flowccl.papers.taccl.choices import RouteChoices


def quick_routes(choices: RouteChoices) -> NDArray[np.bool_]:
    """Return pairs that bring every chunk to its destinations; pairs of one orbit are chosen together.

    The tree of a chunk grows by the cheapest path to its next destination; chunks take turns.
    """
    from flowccl.papers.taccl.quick_kernels import RoutingPairs, choose_quickly

    demand, nodes, orbit = choices.demand, choices.nodes, choices.pair_orbits[0]
    src, dst = (ends[choices.arc].astype(np.int64) for ends in (choices.logical.src, choices.logical.dst))
    order = np.lexsort((np.arange(len(src)), src, choices.chunk))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    row = (choices.chunk * nodes + src)[order]
    pair, resource, busy = choices.loads
    hops = np.argsort(place[pair], kind="stable")
    members = np.argsort(orbit[order], kind="stable")
    pairs = RoutingPairs(
        first=np.searchsorted(row, np.arange(len(demand) * nodes + 1)),
        chunk=choices.chunk[order].astype(np.int64),
        src=src[order],
        dst=dst[order],
        takes_ps=choices.takes_ps[order].astype(np.int64),
        hop=np.searchsorted(place[pair][hops], np.arange(len(order) + 1)),
        resource=resource[hops].astype(np.int64),
        busy_ps=busy[hops].astype(np.int64),
        orbit=orbit[order].astype(np.int64),
        orbit_ptr=np.searchsorted(orbit[order][members], np.arange(int(orbit.max(initial=-1)) + 2)),
        member=members,
    )
    wanted = np.zeros((len(demand), nodes), dtype=np.bool_)
    wanted[demand.destination_chunk, demand.destination_rank] = True
    arrival = np.full((len(demand), nodes), -1, dtype=np.int64)
    arrival[np.arange(len(demand)), demand.source] = 0
    wanted[np.arange(len(demand)), demand.source] = False
    chosen = np.zeros(len(order), dtype=np.bool_)
    if not choose_quickly(pairs, wanted, arrival, np.zeros(choices.resources, dtype=np.int64), chosen):
        raise NothingFoundError("quick routing found no path to a destination; try another reach in the sketch")
    return chosen[place]
