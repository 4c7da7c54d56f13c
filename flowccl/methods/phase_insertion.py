"""Sums and copies woven into each other: one half is planned alone, the other goes between what that leaves free.

Adding up is spreading out backwards in time on the reversed machine, so either half can be the first:

    sums first      the sums, as early as they can; then between them the copies, each from when its sum is there
    copies first    the copies; then between them, seen backwards from the end, the sums: there when their copies start

The second half is woven in by `woven`, which knows what is taken; what is better stays, again and again. For sizes at
which latency and bandwidth both count, where two good halves one after the other leave much idle.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.lns import LnsSearch
from flowccl.methods.lns.timetable_kernels import Table
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift, reverse
from flowccl.search.context import SearchContext
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology

I64 = NDArray[np.int64]

_ALONE = 4  # steps of the half that is planned first
_PATIENCE = 60  # steps of a lane that may bring nothing until its first half is planned anew
_MOST_ENTRIES = 3_000_000  # chunks x nodes


def phase_insertion(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """A step of each lane in turn, for ever; the better lane twice as often."""
    topology, demand = problem.topology, problem.demand
    if len(demand) * len(topology.nodes) > _MOST_ENTRIES:
        raise DemandError(f"entwined is for up to {_MOST_ENTRIES} chunks x nodes, got {len(demand)} chunks")
    lanes = [_Lane(problem, context, sums_first) for sums_first in (True, False)]
    turn = 0
    while True:
        ahead = sorted(lanes, key=lambda lane: lane.best_ps)
        lane = lanes[turn] if turn < len(lanes) else ahead[turn % 3 // 2]
        turn += 1
        yield lane.step()


@dataclass
class _Half:
    """A half as a distribution: on the machine, or on the reversed one where it adds up; with its chunks' numbers."""

    topology: Topology
    demand: Demand
    chunks: I64


class _Lane:
    """One half planned alone, the other between it."""

    def __init__(self, problem: Problem, context: SearchContext, sums_first: bool) -> None:
        topology, demand = problem.topology, problem.demand
        (sums, added), (copies, copied) = demand.halves
        up, down = _Half(topology.reversed, sums.backward, added), _Half(topology, copies, copied)
        self.topology, self.demand, self.sums, self.context = topology, demand, sums, context
        self.sums_first = sums_first
        self.first, self.second = (up, down) if sums_first else (down, up)
        self.best_ps = float("inf")
        self.idle = self.restarts = 0
        self.alone: Schedule | None = None
        self.search: LnsSearch | None = None

    def step(self) -> Schedule | None:
        """A step of the second half between the first; a schedule of both if it is the best of this lane."""
        if self.search is None or self.alone is None or self.idle >= _PATIENCE:
            self.alone = self._planned_alone()
            self.search, self.idle = self._between(self.alone), 0
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
        half, told = self.first, self.context.incumbents.schedules
        search = LnsSearch(half.topology, half.demand, self.context.seed + self.restarts)
        for _ in range(_ALONE):
            search.step(told.get(Problem(half.topology, half.demand)) if self.restarts % 2 == 0 else None)
        if search.best is None:
            raise DemandError(f"entwined found no way for {self.demand.collective} on {self.topology.name}")
        return search.best

    def _between(self, alone: Schedule) -> LnsSearch:
        """The search for the second half, seen from the end of the first."""
        half, timing, end = self.second, alone.timing, alone.finish_ps
        whole = timing.hop_to_ps + alone.topology.link_latency_ps[timing.hop_link]
        hold = timing.hop_to_ps - timing.hop_from_ps
        taken = _taken(len(alone.topology.links), timing.hop_link, end - whole, hold)
        leaves = np.full(len(self.demand), end)
        np.minimum.at(leaves, self.first.chunks[alone.chunk], alone.start_ps)
        ready = replace(half.demand, ready_ps=end - leaves[half.chunks])
        return LnsSearch(half.topology, ready, self.context.seed + self.restarts, taken=taken)

    def _both(self, alone: Schedule, part: Schedule) -> Schedule:
        """Both halves with their times, as they go forwards."""
        end = max(alone.finish_ps, part.finish_ps)
        up, down = (alone, part) if self.sums_first else (part, alone)
        sums = reverse(up, self.sums, reduce=True)
        late = (0, 0) if self.sums_first else (end - up.finish_ps, end - down.finish_ps)
        copied, added = (self.second, self.first) if self.sums_first else (self.first, self.second)
        routes = [part.routes.links(r) for part in (sums, down) for r in range(len(part.routes))]
        return Schedule(
            self.topology,
            self.demand,
            Routes.from_lists(routes),
            np.concatenate((added.chunks[sums.chunk], copied.chunks[down.chunk])).astype(np.int32),
            np.concatenate((sums.route, down.route + len(sums.routes))).astype(np.int32),
            np.concatenate((sums.start_ps + late[0], down.start_ps + late[1])),
            np.concatenate((sums.reduce, down.reduce)),
            "phase-insertion",
        )


def _taken(links: int, link: NDArray[np.int32], begin: I64, hold: I64) -> Table:
    """A timetable with these holds, which are not ours."""
    order = np.lexsort((begin, link))
    holds = np.bincount(link, minlength=links).astype(np.int64)
    place = np.arange(len(link)) - np.repeat(np.cumsum(holds) - holds, holds)
    space = int(holds.max(initial=0)) + 64
    table = Table(
        holds,
        np.zeros((links, space), dtype=np.int64),
        np.zeros((links, space), dtype=np.int64),
        np.full((links, space), -1, dtype=np.int32),
    )
    table.begin_ps[link[order], place] = begin[order]
    table.until_ps[link[order], place] = (begin + hold)[order]
    return table
