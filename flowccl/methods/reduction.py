"""Reductions by any method: a reduction is a distribution run backwards on the reversed machine."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.clock import Clock
from flowccl.methods.method import Method
from flowccl.schedule.relist import relist
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import join, reverse
from flowccl.topology.topology import Topology
from flowccl.topology.view import with_links

_PATIENCE = 8
Halves = tuple[tuple[Demand, NDArray[np.int64]], tuple[Demand, NDArray[np.int64]]]


def with_reductions(method: Method, *, by_bandwidth: bool = False) -> Method:
    """The method, made to take reductions too: sums for one destination, and allreduce as two halves joined.

    In allreduce each block is summed at an owner: all ranks in turn, or more blocks where there is more bandwidth.
    """

    def run(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
        if not demand.reduces:
            return method(topology, demand, clock)
        if len(demand.destination_rank) == len(demand):
            return _reduced(method, topology, demand, clock)
        halves = demand.halves
        if by_bandwidth:
            halves = demand.halves_at(owners_by_bandwidth(topology, demand))
        elif demand.ready_ps is not None:
            halves = demand.halves_at(owners_on_time(demand))
        return _joined(method, topology, demand, halves, clock)

    return run


def _reduced(method: Method, topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    machine, kept = _late_as_leaves(topology, demand)
    for schedule in method(machine.reversed, demand.backward, clock):
        if schedule is None:
            yield None
            continue
        found = reverse(schedule, demand, reduce=True)
        yield replace(found, topology=topology, routes=found.routes if kept is None else found.routes.renamed(kept))


def owners_by_bandwidth(topology: Topology, demand: Demand) -> NDArray[np.int32]:
    """An owner for every chunk among its destinations, each with a share of the bytes like that of its bandwidth."""
    nodes = len(topology.nodes)
    into = np.bincount(topology.link_dst, topology.link_GBps, nodes)
    out = np.bincount(topology.link_src, topology.link_GBps, nodes)
    room = np.maximum(np.minimum(into, out), 1e-9)
    given = np.zeros(nodes)
    owner = np.empty(len(demand), dtype=np.int32)
    for chunk in range(len(demand)):
        wants = demand.destinations(chunk)
        size = float(demand.chunk_bytes[chunk])
        owner[chunk] = wants[np.argmin((given[wants] + size) / room[wants])]
        given[owner[chunk]] += size
    return owner


def owners_on_time(demand: Demand) -> NDArray[np.int32]:
    """An owner for every chunk among its destinations: those whose own data is not late, in turn."""
    late = demand.source_rank[demand.available_ps > 0]
    owner = np.empty(len(demand), dtype=np.int32)
    for chunk in range(len(demand)):
        wants = demand.destinations(chunk)
        able = wants[~np.isin(wants, late)]
        able = able if len(able) else wants
        owner[chunk] = able[chunk // demand.pieces % len(able)]
    return owner


def is_uneven(topology: Topology, demand: Demand) -> bool:
    """Whether some GPU that wants a sum has more bandwidth than another."""
    ranks = np.unique(demand.destination_rank)
    into = np.bincount(topology.link_dst, topology.link_GBps, len(topology.nodes))[ranks]
    out = np.bincount(topology.link_src, topology.link_GBps, len(topology.nodes))[ranks]
    return bool(np.ptp(np.minimum(into, out)) > 0)


def _joined(
    method: Method, topology: Topology, demand: Demand, halves: Halves, clock: Clock
) -> Iterator[Schedule | None]:
    """Both halves get better in turn; whenever one does, they are joined again."""
    (first, summed), (second, sent) = halves
    searches = [_reduced(method, topology, first, clock), method(topology, second, clock)]
    best: list[Schedule | None] = [None, None]
    joiner = _Joiner(demand, clock.shared)
    finish_ps = None
    while True:
        found = [next(search, "over") for search in searches]
        if found == ["over", "over"]:
            return
        for i, chunks in enumerate((summed, sent)):
            part = found[i]
            if isinstance(part, Schedule):
                best[i] = replace(part, demand=demand, chunk=chunks[part.chunk].astype(np.int32))
        both = None
        if best[0] is not None and best[1] is not None and any(isinstance(part, Schedule) for part in found):
            both = joiner.join(best[0], best[1])
        if both is None or (finish_ps is not None and both.finish_ps >= finish_ps):
            yield None
        else:
            finish_ps = both.finish_ps
            yield both


class _Joiner:
    """Joins two halves: every link works off the first half before the second, or who has the longest way to go.

    The second order is left out when it did not help a few times, in this search or in others on the same clock.
    """

    def __init__(self, demand: Demand, shared: dict[str, object]) -> None:
        self.demand = demand
        self.shared = shared

    @property
    def idle(self) -> int:
        """How many times in a row the second order did not help."""
        told = self.shared.get("joins without help", 0)
        return told if isinstance(told, int) else 0

    def join(self, first: Schedule, second: Schedule) -> Schedule:
        """The better of both orders."""
        joined = join(first, second, self.demand)
        mixed = relist(joined) if self.idle < _PATIENCE else None
        if mixed is None or mixed.finish_ps >= joined.finish_ps:
            self.shared["joins without help"] = self.idle + 1
            return joined
        self.shared["joins without help"] = 0
        return mixed


def _late_as_leaves(topology: Topology, demand: Demand) -> tuple[Topology, NDArray[np.int64] | None]:
    """The machine on which to add up when some data is late: nothing goes through GPUs that wait for their own.

    With the number that each link left has in the whole machine; None where it is the whole machine.
    """
    if demand.ready_ps is None:
        return topology, None
    late = np.setdiff1d(demand.source_rank[demand.ready_ps > 0], demand.destination_rank)
    into = np.isin(topology.link_dst, late)
    if not into.any():
        return topology, None
    view, kept = with_links(topology, ~into, "late gpus as leaves")
    try:
        demand.check_fits(view)
    except DemandError:  # only through a late GPU can some of the others be reached
        return topology, None
    return view, kept
