"""Warm starts: schedules of searches in continuous time, moved onto the grid."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from flowccl.bounds.lower_bound import lower_bound
from flowccl.demand.demand import Demand
from flowccl.papers.teccl.epochs import Grid
from flowccl.papers.teccl.plan import GridPlan, to_grid_plan
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.topology import Topology

_GOOD = 1e-4  # relative distance to the lower bound at which a schedule is good enough
_IDLE_STEPS = 400  # steps without improvement after which the searches end


@dataclass
class WarmStart:
    """The results of the searches: a plan of few epochs and, independently, the earliest schedule.

    `schedules` maps plans to the schedules from which they were made.
    """

    plan: GridPlan | None = None
    schedule: Schedule | None = None
    schedules: dict[GridPlan, Schedule] = field(default_factory=dict)

    def take(self, found: Schedule, plan: GridPlan | None, *, real: bool) -> bool:
        """Keep the schedule and the plan if they are better; return whether one of them was."""
        earlier = real and (self.schedule is None or found.finish_ps < self.schedule.finish_ps)
        if earlier:
            self.schedule = found
        if plan is None:
            return earlier
        fewer = self.plan is None or plan.epochs < self.plan.epochs
        if fewer or earlier:
            self.plan = plan
            if real:
                self.schedules[plan] = found
        return fewer or earlier

    def add(self, other: "WarmStart") -> None:
        """Keep what is better of the results of other searches."""
        if other.schedule is not None and (self.schedule is None or other.schedule.finish_ps < self.schedule.finish_ps):
            self.schedule = other.schedule
        if other.plan is not None and (self.plan is None or other.plan.epochs < self.plan.epochs):
            self.plan = other.plan
            self.schedules |= other.schedules


def find_warm_start(grid: Grid, demand: Demand, bound: int, context: SearchContext, share: float = 0.3) -> WarmStart:
    """Return plans and schedules of `greedy` and `reroute`.

    The searches take turns, on the machine itself and on the machine with all times rounded to the grid. They end when
    a plan has `bound` epochs and the completion time is good or stops improving, or after their share of the time.
    """
    until = context.budget.elapsed_s + share * max(context.budget.left_s, 0.0)
    good_ps = context.budget.good_ps or lower_bound(grid.topology, demand).ps * (1 + _GOOD)
    limited = grid.topology.has_buffer_limits
    start, idle, searches = WarmStart(), 0, _searches(grid, demand, context)
    while idle < _IDLE_STEPS and searches:
        for search, real in list(searches):
            idle += 1
            found = next(search, "over")
            if found == "over":
                searches.remove((search, real))
            if not isinstance(found, Schedule):
                continue
            plan = None
            if not limited:  # with buffer limits, a plan in this order may need more space
                most = start.plan.epochs if start.plan is not None else _horizon(grid, found)
                plan = to_grid_plan(grid, demand, in_order(found), most)
            idle = 0 if start.take(found, plan, real=real) else idle
        met = limited or (start.plan is not None and start.plan.epochs <= bound)
        good = start.schedule is not None and (start.schedule.finish_ps <= good_ps or idle >= _IDLE_STEPS // 4)
        if (met and good) or context.budget.elapsed_s > until or context.budget.should_stop():
            break
    return start


def _searches(grid: Grid, demand: Demand, context: SearchContext) -> list[tuple[Iterator[Schedule | None], bool]]:
    """The searches, each with whether it runs on the real machine."""
    from flowccl.methods.registry import load_method

    topology, rounded = grid.topology, rounded_topology(grid)
    greedy, reroute = load_method("greedy"), load_method("reroute")
    searches = [(greedy(Problem(topology, demand), context), True)]
    if rounded is not None:
        searches.append((greedy(Problem(rounded, equal_chunks(demand)), context), False))
    if not topology.has_extra_constraints:
        searches.append((reroute(Problem(topology, demand), context), True))
    return searches


def _horizon(grid: Grid, schedule: Schedule) -> int:
    """A number of epochs within which a plan in this order is certain to fit."""
    longest = int(grid.delay.max()) + int(grid.busy_epochs.max())
    return 4 * (schedule.finish_ps // grid.epoch_ps + 1) + 8 * longest


def in_order(schedule: Schedule) -> list[tuple[int, tuple[int, ...]]]:
    """Return (chunk, links) of all transfers by their start."""
    order = np.argsort(schedule.start_ps, kind="stable")
    routes = [schedule.routes.links(r) for r in range(len(schedule.routes))]
    return [(int(schedule.chunk[i]), routes[schedule.route[i]]) for i in order.tolist()]


def equal_chunks(demand: Demand) -> Demand:
    """Return the demand with chunks of equal size: on the grid they take the same time."""
    return replace(demand, chunk_bytes=np.full(len(demand), _ROUND_BYTES, dtype=np.int64))


_ROUND_BYTES = 1_000_000  # any size: the bandwidths of the rounded machine are derived from it


def rounded_topology(grid: Grid) -> Topology | None:
    """Return the machine with all times rounded to epochs; None with limits or routes."""
    topology = grid.topology
    if not grid.by_links or topology.limits:
        return None
    busy_ps = grid.busy_epochs * grid.epoch_ps // grid.capacity
    late_ps = grid.delay * grid.epoch_ps - np.where(topology.cuts_through[grid.head], 0, busy_ps)
    if busy_ps.min() < 1:
        return None
    GBps = _ROUND_BYTES * 1000.0 / busy_ps * (1 + 1e-13)
    links = [
        replace(link, bandwidth_GBps=float(b), latency_us=int(late) / 1e6)
        for link, b, late in zip(topology.links, GBps, late_ps, strict=True)
    ]
    return replace(topology, name=f"{topology.name} in epochs", links=tuple(links))
