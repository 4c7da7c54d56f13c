"""Phase insertion: one phase is planned alone, and the other is inserted into the idle times of the links.

A reduction is a distribution that runs backwards in time on the reversed machine, so either phase can be the first:

    reduction first     the reduction starts at time zero; each chunk of the distribution starts when it is reduced
    distribution first  the distribution is planned; the reduction is inserted, backwards from the end of the schedule,
                        so that each chunk is reduced before its distribution starts

The large-neighbourhood search of method `lns` inserts the second phase into a timetable that the first phase occupies
in part. For sizes at which both latency and bandwidth matter, where two concatenated phases leave links idle.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.lns import LnsSearch
from flowccl.methods.lns.timetable_kernels import Timetable
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift, reverse
from flowccl.search.context import SearchContext
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology

I64 = NDArray[np.int64]

_ALONE = 4  # steps of the phase that is planned first
_PATIENCE = 60  # steps without improvement before the first phase is planned again
_MOST_ENTRIES = 3_000_000  # chunks x nodes


def phase_insertion(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Steps of both orders of the phases in turn; the better order twice as often."""
    topology, demand = problem.topology, problem.demand
    if len(demand) * len(topology.nodes) > _MOST_ENTRIES:
        raise DemandError(
            f"method phase-insertion supports up to {_MOST_ENTRIES} chunks x nodes; got {len(demand)} chunks"
        )
    orders = [_PhaseOrder(problem, context, reduction_first) for reduction_first in (True, False)]
    turn = 0
    while True:
        ahead = sorted(orders, key=lambda order: order.best_ps)
        order = orders[turn] if turn < len(orders) else ahead[turn % 3 // 2]
        turn += 1
        yield order.step()


@dataclass
class _Phase:
    """A phase as a distribution, a reduction on the reversed machine; `chunks` are its chunks in the whole demand."""

    topology: Topology
    demand: Demand
    chunks: I64


class _PhaseOrder:
    """One order of the phases: the first is planned alone, the second is inserted."""

    def __init__(self, problem: Problem, context: SearchContext, reduction_first: bool) -> None:
        topology, demand = problem.topology, problem.demand
        (reduction, reduced_chunks), (distribution, copied_chunks) = demand.halves
        up, down = (
            _Phase(topology.reversed, reduction.backward, reduced_chunks),
            _Phase(topology, distribution, copied_chunks),
        )
        self.topology, self.demand, self.reduction, self.context = topology, demand, reduction, context
        self.reduction_first = reduction_first
        self.first, self.second = (up, down) if reduction_first else (down, up)
        self.best_ps = float("inf")
        self.idle = self.restarts = 0
        self.alone: Schedule | None = None
        self.search: LnsSearch | None = None

    def step(self) -> Schedule | None:
        """One step of the search for the second phase; the whole schedule if it is the best of this order."""
        if self.search is None or self.alone is None or self.idle >= _PATIENCE:
            self.alone = self._planned_alone()
            self.search, self.idle = self._insertion(self.alone), 0
            self.restarts += 1
        self.idle += 1
        part = self.search.step()
        if part is None:
            return None
        both = left_shift(self._both(self.alone, part))
        if both.finish_ps >= self.best_ps:
            return None
        self.best_ps, self.idle = both.finish_ps, 0
        return both

    def _planned_alone(self) -> Schedule:
        phase, known = self.first, self.context.incumbents.schedules
        search = LnsSearch(phase.topology, phase.demand, self.context.seed + self.restarts)
        for _ in range(_ALONE):
            search.step(known.get(Problem(phase.topology, phase.demand)) if self.restarts % 2 == 0 else None)
        if search.best is None:
            raise DemandError(
                f"method phase-insertion found no schedule for {self.demand.collective} on {self.topology.name}"
            )
        return search.best

    def _insertion(self, alone: Schedule) -> LnsSearch:
        """The search for the second phase, with time counted backwards from the end of the first."""
        phase, timing, end = self.second, alone.timing, alone.finish_ps
        whole = timing.hop_to_ps + alone.topology.link_latency_ps[timing.hop_link]
        busy = timing.hop_to_ps - timing.hop_from_ps
        occupied = _occupied(len(alone.topology.links), timing.hop_link, end - whole, busy)
        leaves = np.full(len(self.demand), end)
        np.minimum.at(leaves, self.first.chunks[alone.chunk], alone.start_ps)
        ready = replace(phase.demand, ready_ps=end - leaves[phase.chunks])
        return LnsSearch(phase.topology, ready, self.context.seed + self.restarts, occupied=occupied)

    def _both(self, alone: Schedule, part: Schedule) -> Schedule:
        """Both phases as one schedule, forwards in time."""
        end = max(alone.finish_ps, part.finish_ps)
        up, down = (alone, part) if self.reduction_first else (part, alone)
        reduction = reverse(up, self.reduction, reduce=True)
        delay = (0, 0) if self.reduction_first else (end - up.finish_ps, end - down.finish_ps)
        copied, reduced = (self.second, self.first) if self.reduction_first else (self.first, self.second)
        routes = [part.routes.links(r) for part in (reduction, down) for r in range(len(part.routes))]
        return Schedule(
            self.topology,
            self.demand,
            Routes.from_lists(routes),
            np.concatenate((reduced.chunks[reduction.chunk], copied.chunks[down.chunk])).astype(np.int32),
            np.concatenate((reduction.route, down.route + len(reduction.routes))).astype(np.int32),
            np.concatenate((reduction.start_ps + delay[0], down.start_ps + delay[1])),
            np.concatenate((reduction.reduce, down.reduce)),
            "phase-insertion",
        )


def _occupied(links: int, link: NDArray[np.int32], begin: I64, busy: I64) -> Timetable:
    """A timetable with these entries, which belong to no chunk of the search."""
    order = np.lexsort((begin, link))
    entries = np.bincount(link, minlength=links).astype(np.int64)
    place = np.arange(len(link)) - np.repeat(np.cumsum(entries) - entries, entries)
    space = int(entries.max(initial=0)) + 64
    table = Timetable(
        entries,
        np.zeros((links, space), dtype=np.int64),
        np.zeros((links, space), dtype=np.int64),
        np.full((links, space), -1, dtype=np.int32),
    )
    table.begin_ps[link[order], place] = begin[order]
    table.until_ps[link[order], place] = (begin + busy)[order]
    return table
