"""Reductions in compact form: an allgather that runs backwards, and an allgather after it."""

from dataclasses import replace

import numpy as np

from flowccl.adapters.reversal import links_back
from flowccl.errors import DemandError
from flowccl.methods.symmetric.one_source import OneSource
from flowccl.methods.symmetric.routes import SourceRoutes
from flowccl.schedule.compact import part_of_one
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import reverse
from flowccl.topology.routes import Routes


def reduced_by_halves(allgather: Schedule, kind: str) -> Schedule:
    """A reduce_scatter from an allgather that runs backwards over the opposite links; an allreduce is both in turn.

    In compact form the second phase starts when all of the first has arrived: a left shift would not see the orbits.
    """
    topology, opposite = allgather.topology, links_back(allgather.topology)
    if opposite is None:
        raise DemandError(f"the compact form of {kind} needs a link back for every link; {topology.name} has not")
    count, pieces = topology.num_gpus, allgather.demand.pieces
    block = int(allgather.demand.chunk_bytes.sum())
    there = replace(allgather, topology=topology.reversed, routes=allgather.routes.renamed(opposite))
    back = replace(reverse(there, part_of_one("reduce_scatter", count, block, pieces), reduce=True), topology=topology)
    if kind == "reduce_scatter":
        return back
    routes = (back.routes, allgather.routes)
    ptr = np.concatenate((routes[0].ptr, routes[0].ptr[-1] + routes[1].ptr[1:]))
    return Schedule(
        topology,
        part_of_one(kind, count, block, pieces),
        Routes(ptr, np.concatenate((routes[0].link, routes[1].link))),
        np.concatenate((back.chunk, allgather.chunk)),
        np.concatenate((back.route, allgather.route + len(back.routes))).astype(np.int32),
        np.concatenate((back.start_ps, allgather.start_ps + back.finish_ps)),
        np.concatenate((back.reduce, allgather.reduce)),
        allgather.method,
    )


def backwards(allgather: OneSource) -> OneSource:
    """The allgather on the reversed machine: the same transfers over the opposite links."""
    routes = allgather.source_routes
    topology = routes.group.topology
    if (opposite := links_back(topology)) is None:
        raise DemandError(f"a compact reduction needs a link back for every link; {topology.name} has not")
    turned = SourceRoutes(routes.group, routes.routes.renamed(opposite), routes.end, routes.shape)
    return replace(allgather, source_routes=turned)
