"""Refine schedules: subdivide every chunk into pieces that follow each other along its path.

A refinement needs no search and is hardly ever later than the schedule it refines. The best schedule at each chunk
count can be refined; the one with the largest expected gain is, into as many pieces as the time allows.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from flowccl.auto.arm import Arm
from flowccl.auto.arms import MAX_DELIVERIES, Arms
from flowccl.demand.demand import Demand
from flowccl.schedule.generation.list_scheduling import can_list_schedule, list_schedule
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import subdivide
from flowccl.search.context import SearchContext

_SUFFIX = ", refined"  # appended to the name of the method that found the paths
_FIRST_GAIN, _MIN_GAIN = 0.02, 0.002  # expected gain of the first refinement, and least expected gain of any first one
_FEW_PIECES = 8  # up to this many pieces, a refinement in another order may help
_MIN_IMPROVEMENT = 1e-4  # least expected improvement of the best completion time
_WORK_RATIO = 3  # a refinement is due after this many times the work of all refinements, more after some without gain
# A refinement is also due in the last part of a window of work, after this many times its own work. Each window ends at
# a constant factor of the end of the previous one.
_WINDOW_GROWTH, _WINDOW_PART, _WINDOW_MIN_S = 1.3, 0.15, 0.5
_WINDOW_WORK_RATIO = 10
_TIME_MARGIN = 2  # a refinement starts only if this many times its expected duration is left
_HOP_S = 2e-6  # work per hop, and again for another order
_MAX_REORDERED, _MAX_REORDERED_REDUCTIONS = 100_000, 10_000  # transfers: larger schedules keep their order


@dataclass
class _Refinement:
    """The last refinement at some chunk count: into how many pieces, and of which completion time."""

    made: Arm
    times: int
    from_ps: float
    before: tuple[int, float, float] = (1, 1.0, 0.0)  # pieces, ratio and remaining gain of the previous refinement

    @property
    def ratio(self) -> float:
        """Completion time relative to that of the refined schedule."""
        return self.made.best_ps / self.from_ps

    @property
    def remaining_gain(self) -> float:
        """Expected gain of more pieces, if every doubling gains half as much.

        With few pieces, another order of the transfers may also help.
        """
        times, ratio, remaining_gain = self.before
        more = remaining_gain if self.times == times else (ratio - self.ratio) / (self.times / times - 1)
        return max(more, _MIN_GAIN if self.times < _FEW_PIECES else 0.0)

    @property
    def best_ratio(self) -> float:
        """Expected ratio with any number of pieces."""
        return self.ratio - self.remaining_gain


@dataclass
class Refinements:
    """All refinements so far, each an arm of one step, and the last one at each chunk count."""

    arms: Arms
    made: list[Arm] = field(default_factory=list)
    last: dict[int, _Refinement] = field(default_factory=dict)
    unimproved: int = 0  # refinements since one was the best of all

    def next(self, best_ps: float) -> Arm | None:
        """Return the due refinement with the largest expected gain; None if none may improve the best."""
        if self.made and self.made[-1].best is not None:
            self.unimproved = 0 if self.made[-1].best_ps <= best_ps else self.unimproved + 1
            self.made[-1].best = None  # reported already; free its memory
        options = [(*self._promise(base), base) for base in self._bases()]
        for promise_ps, most, base in sorted(options, key=lambda option: option[0]):
            if promise_ps >= best_ps * (1 - _MIN_IMPROVEMENT):
                break
            for times in self._pieces(base, most):
                if (made := self._refine(base, times)) is not None:
                    return made
        return None

    def _bases(self) -> list[Schedule]:
        """The best schedule at each chunk count."""
        found = [arm.best for arm in self.arms.all if arm.best is not None]
        found.sort(key=lambda schedule: -schedule.finish_ps)
        return list({schedule.demand.pieces: schedule for schedule in found}.values())

    def _promise(self, base: Schedule) -> tuple[float, float]:
        """Expected completion time after refining a schedule, and how many pieces are worthwhile."""
        last = self.last.get(base.demand.pieces)
        if last is not None:
            return base.finish_ps * last.best_ratio, last.times * last.remaining_gain / _MIN_IMPROVEMENT
        gain = self._expected_gain(base.demand.pieces)
        return base.finish_ps * (1 - max(gain, _MIN_GAIN)), gain / _MIN_IMPROVEMENT

    def _expected_gain(self, count: int) -> float:
        """Expected gain at a chunk count: that of the nearest refined count, scaled by chunk size."""
        known = [
            (max(other / count, count / other), (1 - last.best_ratio) * other / count)
            for other, last in self.last.items()
            if last.ratio < float("inf")
        ]
        return min(known)[1] if known else _FIRST_GAIN

    def _pieces(self, base: Schedule, most: float) -> list[int]:
        """Numbers of pieces into which a schedule may be refined next, largest first."""
        last = self.last.get(base.demand.pieces)
        times = [2]
        if last is not None:
            times = [last.times if base.finish_ps < last.from_ps else 2 * last.times]
        while 2 * times[-1] <= most and self.last:
            times.append(2 * times[-1])
        most_pieces = MAX_DELIVERIES / len(base.demand.destination_rank)
        return [
            many for one in times[::-1] if (many := even_pieces(base, one)) <= most_pieces and self._is_due(base, many)
        ]

    def _is_due(self, base: Schedule, times: int) -> bool:
        """Return whether enough work was done, and enough time is left, for a refinement."""
        cost_s = _refinement_work_s(base, times)
        work_done_s, seconds = sum(one.work_done_s for one in self.made), sum(one.last_step_s for one in self.made)
        slowdown = max(seconds / work_done_s, 1.0) if work_done_s else 1.0
        others_s = self.arms.work_done_s * self.arms.slots
        due = _WORK_RATIO * (1 + self.unimproved) * (work_done_s + cost_s) <= others_s
        in_window = self._in_window() and _WINDOW_WORK_RATIO * cost_s <= others_s
        return (due or in_window) and self.arms.has_time(_TIME_MARGIN * slowdown * cost_s)

    def _refine(self, base: Schedule, times: int) -> Arm | None:
        """Return an arm that refines a schedule into pieces; None if the demand cannot be divided."""
        count, last = base.demand.pieces * times, self.last.get(base.demand.pieces)
        demand = self.arms.demand(count)
        if demand is None:
            return None
        made = Arm("refine", count, demand, _refine_once(base, demand, self.arms.context))
        made.slowdown = max(_refinement_work_s(base, times) / made.cost_s, 1.0)
        self.made.append(made)
        before = () if last is None else ((last.times, last.ratio, last.remaining_gain),)
        self.last[base.demand.pieces] = _Refinement(made, times, base.finish_ps, *before)
        return made

    def _in_window(self) -> bool:
        """Return whether refinements are due by the work done. Windows are the same for any time limit."""
        work_done_s = max(self.arms.work_done_s, _WINDOW_MIN_S)
        until_s = _WINDOW_GROWTH ** math.ceil(math.log(work_done_s, _WINDOW_GROWTH))
        return self.arms.context.budget.steps is None and work_done_s > (1 - _WINDOW_PART) * until_s


def even_pieces(base: Schedule, times: int) -> int:
    """Return about `times` pieces, chosen for the most even sizes: the largest piece determines the duration."""
    sizes = np.unique(base.demand.chunk_bytes)
    near = np.arange(math.ceil(times / 1.4), math.floor(times * 1.4) + 1)
    near = near[np.argsort(np.abs(np.log(near / times)), kind="stable")]  # ties go to the number nearest to `times`
    largest = -(-sizes[:, None] // near) * near / sizes[:, None]
    return int(near[np.argmin(largest.max(axis=0))])


def _refinement_work_s(base: Schedule, times: int) -> float:
    """Work of a refinement in seconds."""
    twice = 2 if len(base) * times <= _MAX_REORDERED else 1
    return _HOP_S * twice * len(base.timing.hop_link) * times


def _refine_once(schedule: Schedule, demand: Demand, context: SearchContext) -> Iterator[Schedule | None]:
    """Yield the refined schedule, in the original order or a better one; once."""
    refined = subdivide(replace(schedule, method=schedule.method.removesuffix(_SUFFIX) + _SUFFIX), demand)
    if refined is not None and len(refined) <= _MAX_REORDERED:
        refined = min((one for one in (refined, _reordered(refined)) if one is not None), key=lambda one: one.finish_ps)
        context.incumbents.report(refined)
    yield refined


def _reordered(refined: Schedule) -> Schedule | None:
    """The same transfers with gaps filled; for reductions, list-scheduled by the longest remaining path."""
    from flowccl.schedule.generation.job_shop import can_be_jobs, jobs_from

    if can_be_jobs(refined):
        return jobs_from(refined).in_order(refined.start_ps, refined.finish_ps)
    return list_schedule(refined) if len(refined) <= _MAX_REORDERED_REDUCTIONS and can_list_schedule(refined) else None
