"""From epochs to a verified schedule in continuous time.

Three schedules are built, and the earliest valid one is returned: the plan as it is on the grid, with epochs long
enough for times that rounding left out (latency below the threshold), left-shifted; its transfers in the order of the
plan, each as early as possible; and those with the longest remaining path first (the order within an epoch that is much
longer than a transfer is arbitrary).
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import InvalidScheduleError
from flowccl.papers.teccl.plan import GridPlan
from flowccl.papers.teccl.start import WarmStart
from flowccl.schedule.generation.engine import Engine
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift, prune
from flowccl.search.context import SearchContext
from flowccl.topology.routes import Routes, route_shape
from flowccl.units import busy_times_ps
from flowccl.verifier.verify import verify


def read_back(plan: GridPlan, method: str = "milp", *, drop_useless: bool = True) -> Schedule:
    """Return the verified schedule of a plan; `drop_useless` removes transfers that no destination needs."""
    routes = Routes.from_lists([links for _, links, _ in plan.rows])
    chunk = np.array([chunk for chunk, _, _ in plan.rows], dtype=np.int32)
    takes_ps = _takes_ps(plan, routes, chunk)
    start = np.array([epoch for _, _, epoch in plan.rows], dtype=np.int64) * int(takes_ps.max())
    spaced = Schedule.from_links(plan.grid.topology, plan.demand, chunk, routes, start, method=method)
    on_grid = replace(spaced, start_ps=_grid_starts(plan, takes_ps))
    if drop_useless:
        spaced = prune(spaced)
        on_grid = on_grid if verify(on_grid) else prune(on_grid)
    engine = Engine(spaced)
    made = [left_shift(on_grid), engine.run(), engine.run(-engine.tail_ps)]
    found = [schedule for schedule in made if schedule is not None and not verify(schedule)]
    if not found:  # earlier starts may exceed a buffer limit
        problems = verify(on_grid)
        if problems:
            raise InvalidScheduleError(f"{method}: the plan on the grid gives no valid schedule: {problems[0]}")
        found = [on_grid]
    return min(found, key=lambda schedule: schedule.finish_ps)


def best_schedule(context: SearchContext, schedule: Schedule, start: WarmStart, method: str) -> Schedule:
    """Return the schedule of the plan, or that of the searches if it is earlier; the notes say which."""
    context.notes["plan_finish_us"] = schedule.finish_us
    context.notes["schedule_by"] = "plan"
    if start.schedule is not None and start.schedule.finish_ps < schedule.finish_ps:
        context.notes["schedule_by"] = "search"
        schedule = start.schedule
    return replace(schedule, method=method)


def _takes_ps(plan: GridPlan, routes: Routes, chunk: NDArray[np.int32]) -> NDArray[np.int64]:
    """An upper bound of the time of each transfer."""
    shape = route_shape(plan.grid.topology, routes)
    busy = np.zeros(len(routes), dtype=np.int64)
    size = plan.demand.chunk_bytes[chunk][shape.segment_route]
    np.add.at(busy, shape.segment_route, busy_times_ps(size, shape.segment_GBps))
    late = np.zeros(len(routes), dtype=np.int64)
    route = np.repeat(np.arange(len(routes)), np.diff(routes.ptr))
    np.maximum.at(late, route, shape.hop_offset_ps + plan.grid.topology.link_latency_ps[routes.link])
    return busy + late


def _grid_starts(plan: GridPlan, takes_ps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Starts at the epochs of the plan, long enough for all; chunks that share an epoch on a link follow each other."""
    grid, epoch_ps = plan.grid, plan.grid.epoch_ps
    nth: dict[tuple[int, int], int] = {}
    slots = []
    for (_, links, epoch), takes in zip(plan.rows, takes_ps.tolist(), strict=True):
        epoch_ps = max(epoch_ps, -(-takes // max(1, *(at for _, at in grid.ends_of(links)))))
        sends = [(arc, epoch + shift) for arc, shift in grid.sends_of(links)]
        slot = max(nth.get(send, 0) for send in sends)
        nth.update(dict.fromkeys(sends, slot + 1))
        slots.append((epoch, slot, min(int(grid.capacity[arc]) for arc, _ in sends)))
    return np.array([epoch * epoch_ps + slot * (epoch_ps // fits) for epoch, slot, fits in slots], dtype=np.int64)
