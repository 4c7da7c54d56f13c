"""From epochs to a verified schedule in continuous time, pruned and left-shifted.

Up to three schedules are built, and the earliest is returned: the plan as it is on the grid, with epochs long enough
for times that rounding left out (latency below the threshold); the transfers in the order of the plan, each as early as
possible; and the transfers dispatched anew, those with the longest remaining path first (the order within an epoch that
is much longer than a transfer is arbitrary).
"""

from bisect import bisect_right
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import InvalidScheduleError
from flowccl.papers.teccl.plan import GridPlan, RouteTimes, by_epoch
from flowccl.papers.teccl.start import WarmStart
from flowccl.schedule.generation.job_shop import jobs_from
from flowccl.schedule.generation.serial import generate_serial
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift, prune
from flowccl.search.context import SearchContext
from flowccl.topology.routes import Routes, route_shape
from flowccl.units import busy_times_ps
from flowccl.verifier.verify import Violation, verify


def read_back(plan: GridPlan, method: str = "milp", *, drop_useless: bool = True) -> Schedule:
    """Return the verified schedule of a plan; `drop_useless` removes transfers that no destination needs."""
    order = by_epoch(plan)
    routes = Routes.from_lists([plan.links[i] for i in order])
    chunk = np.array([plan.chunk[i] for i in order], dtype=np.int32)
    grid = _on_grid(plan, order, routes, chunk)
    raw = Schedule.from_links(plan.grid.topology, plan.demand, chunk, routes, grid, method=method)
    found, problems = _valid(raw, drop_useless)
    late = not found or found[0].finish_ps > plan.epochs * plan.grid.epoch_ps
    if late and (not found or len(raw) <= _MOST_TO_GENERATE):
        more, wrong = _valid(_in_plan_order(raw), drop_useless)
        found, problems = found + more, problems + wrong
    if found and drop_useless:
        found += _rescheduled(found[0])
    if not found:
        raise InvalidScheduleError(f"{method}: the plan on the grid gives no valid schedule: {problems[0]}")
    return min(found, key=lambda schedule: schedule.finish_ps)


_MOST_TO_GENERATE = 20_000  # larger schedules are not generated again if there is a valid one


def _in_plan_order(schedule: Schedule) -> Schedule:
    """Place the transfers in their order, each as early as its data and its links allow, using gaps."""
    if schedule.topology.has_limits_or_changes:
        return generate_serial(schedule, np.arange(len(schedule), dtype=np.int64))
    timing, start = schedule.timing, schedule.start_ps
    hops: list[list[tuple[int, int, int]]] = [[] for _ in range(len(schedule))]
    ends: list[list[tuple[int, int]]] = [[] for _ in range(len(schedule))]
    first = start[timing.hop_transfer]
    rows = (timing.hop_transfer, timing.hop_link, timing.hop_from_ps - first, timing.hop_to_ps - first)
    for i, link, begin, end in zip(*(row.tolist() for row in rows), strict=True):
        hops[i].append((link, begin, end))
    arrival = timing.end_arrival_ps - start[timing.end_transfer]
    for i, node, at in zip(timing.end_transfer.tolist(), timing.end_node.tolist(), arrival.tolist(), strict=True):
        ends[i].append((node, at))
    demand, chunk, root = schedule.demand, schedule.chunk.tolist(), timing.root_node.tolist()
    ready = dict.fromkeys(zip(range(len(demand)), demand.source.tolist(), strict=True), 0)
    busy: list[tuple[list[int], list[int]]] = [([], []) for _ in schedule.topology.links]
    placed = np.zeros(len(schedule), dtype=np.int64)
    for i in range(len(schedule)):
        at = _earliest(ready[chunk[i], root[i]], hops[i], busy)
        for link, begin, end in hops[i]:
            begins, until = busy[link]
            place = bisect_right(begins, at + begin)
            begins.insert(place, at + begin)
            until.insert(place, at + end)
        for node, away in ends[i]:
            ready[chunk[i], node] = min(ready.get((chunk[i], node), at + away), at + away)
        placed[i] = at
    return replace(schedule, start_ps=placed)


def _rescheduled(schedule: Schedule) -> list[Schedule]:
    """Dispatch the transfers anew; an empty list if the result is invalid."""
    topology = schedule.topology
    if topology.has_extra_constraints:
        return []
    jobs = jobs_from(schedule)
    again = jobs.in_order(-jobs.tail, schedule.finish_ps)
    return [again] if again is not None and not verify(again) else []


def _earliest(at: int, hops: list[tuple[int, int, int]], busy: list[tuple[list[int], list[int]]]) -> int:
    """The first start from `at` on at which the link of every hop is free."""
    while True:
        for link, begin, end in hops:
            begins, until = busy[link]
            place = bisect_right(until, at + begin)  # the first busy interval that has not ended
            if place < len(begins) and begins[place] < at + end:
                at = until[place] - begin
                break
        else:
            return at


def _valid(raw: Schedule, drop_useless: bool) -> tuple[list[Schedule], list[Violation]]:
    """Return the left-shifted schedule, or the original if left-shifting makes it invalid; and the violations."""
    wrong = verify(raw)
    smaller = prune(raw) if drop_useless and not wrong else raw
    for schedule in (left_shift(smaller), smaller):  # starting earlier may exceed a buffer limit
        if not wrong and not verify(schedule):
            return [schedule], []
    return [], wrong


def best_schedule(context: SearchContext, schedule: Schedule, start: WarmStart, method: str) -> Schedule:
    """Return the schedule of the plan, or that of the searches if it is earlier; the notes say which."""
    context.notes["plan_finish_us"] = schedule.finish_us
    context.notes["schedule_by"] = "plan"
    if start.schedule is not None and start.schedule.finish_ps < schedule.finish_ps:
        context.notes["schedule_by"] = "search"
        schedule = start.schedule
    return replace(schedule, method=method)


def _on_grid(plan: GridPlan, order: list[int], routes: Routes, chunk: NDArray[np.int32]) -> NDArray[np.int64]:
    """Starts at the epochs of the plan; chunks that share an epoch on a link follow each other."""
    epoch_ps = _epoch_ps(plan, routes, chunk)
    steps = RouteTimes(plan.grid, plan.epochs + 1)
    nth: dict[tuple[int, int], int] = {}
    start = np.zeros(len(order), dtype=np.int64)
    for place, i in enumerate(order):
        links, epoch = plan.links[i], plan.epoch[i]
        arcs = [(arc, epoch + shift) for arc, shift in steps.arcs(links, epoch)]
        slot = max(nth.get(key, 0) for key in arcs)
        fits = min(int(steps.capacity[arc, min(k, plan.epochs)]) for arc, k in arcs)
        for key in arcs:
            nth[key] = slot + 1
        start[place] = epoch * epoch_ps + slot * (epoch_ps // fits)
    return start


def _epoch_ps(plan: GridPlan, routes: Routes, chunk: NDArray[np.int32]) -> int:
    """An epoch length that gives every route the time it needs."""
    grid = plan.grid
    shape = route_shape(grid.topology, routes)
    steps = RouteTimes(grid, plan.epochs + 1)
    busy_epochs = np.zeros(len(routes), dtype=np.int64)
    np.add.at(
        busy_epochs,
        shape.segment_route,
        busy_times_ps(plan.demand.chunk_bytes[chunk][shape.segment_route], shape.segment_GBps),
    )
    late = np.zeros(len(routes), dtype=np.int64)
    route = np.repeat(np.arange(len(routes)), np.diff(routes.ptr))
    np.maximum.at(late, route, shape.hop_offset_ps + grid.topology.link_latency_ps[routes.link])
    longest = grid.epoch_ps
    for r in range(len(routes)):
        arrival = max(at for _, at in steps.ends(routes.links(r), 0))
        longest = max(longest, -(-int(busy_epochs[r] + late[r]) // max(arrival, 1)))
    return longest
