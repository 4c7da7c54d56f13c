"""What was found with few chunks, cut finer: every chunk in pieces that follow one another on its way.

A cut takes no search, and what it gives is hardly ever later. So the best for each number of chunks may be cut, and
what promises most is, into as many pieces as there is time for.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from flowccl.auto.arm import Search
from flowccl.auto.arms import MOST_DELIVERIES, Searches
from flowccl.demand.demand import Demand
from flowccl.schedule.generation.list_scheduling import can_list_schedule, list_schedule
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import subdivide
from flowccl.search.context import SearchContext

_CUT = ", refined"  # behind the name of the method that found the ways
_MAY_WIN, _LEAST = 0.02, 0.002  # of its finish, what is cut first of all, and what was never cut
_SOME = 8  # pieces
_WORTH = 1e-4  # of the best finish, for which something is cut
_SHARE = 3  # a cut is made once so many times as much work was done as all cuts take, more after some for nothing
_APART, _REST, _LEAST_S = 1.3, 0.15, 0.5  # or at the end of so many times as much work as before, from some seconds on:
_EACH = 10  # then once so many times as much was done as this one takes
_SURE = 2  # it is begun where so many times as long is left as it is thought to take
_HOP_S = 2e-6  # the work for each hop, and as much again for another order
_FEW, _FEW_SUMS = 100_000, 10_000  # transfers, up to which they are put in another order as well


@dataclass
class _Cut:
    """The last cut of the best with some number of chunks: into how many pieces, and from which finish."""

    made: Search
    times: int
    from_ps: float
    before: tuple[int, float, float] = (1, 1.0, 0.0)  # pieces, part and what was left of the one before

    @property
    def part(self) -> float:
        """What it gave, as a part of what was cut."""
        return self.made.best_ps / self.from_ps

    @property
    def left(self) -> float:
        """What more pieces may still win, if twice as many always win half as much; with some, another order may."""
        times, part, left = self.before
        more = left if self.times == times else (part - self.part) / (self.times / times - 1)
        return max(more, _LEAST if self.times < _SOME else 0.0)

    @property
    def hope(self) -> float:
        """What any number of pieces may give, as a part of what is cut."""
        return self.part - self.left


@dataclass
class Cuts:
    """All cuts so far, each a search of one step, and the last one for each number of chunks that was cut."""

    searches: Searches
    made: list[Search] = field(default_factory=list)
    last: dict[int, _Cut] = field(default_factory=dict)
    idle: int = 0  # cuts since one was the best of all

    def next(self, best_ps: float) -> Search | None:
        """The cut that promises most of those that are due, if it may be better than the best."""
        if self.made and self.made[-1].best is not None:
            self.idle = 0 if self.made[-1].best_ps <= best_ps else self.idle + 1
            self.made[-1].best = None  # who wants it has it
        options = [(*self._hope(base), base) for base in self._bases()]
        for hope_ps, most, base in sorted(options, key=lambda option: option[0]):
            if hope_ps >= best_ps * (1 - _WORTH):
                break
            for times in self._pieces(base, most):
                if (made := self._cut(base, times)) is not None:
                    return made
        return None

    def _bases(self) -> list[Schedule]:
        """The best schedule with each number of chunks."""
        found = [search.best for search in self.searches.all if search.best is not None]
        found.sort(key=lambda schedule: -schedule.finish_ps)
        return list({schedule.demand.pieces: schedule for schedule in found}.values())

    def _hope(self, base: Schedule) -> tuple[float, float]:
        """What may come of a schedule if it is cut, and how many pieces are worth it."""
        last = self.last.get(base.demand.pieces)
        if last is not None:
            return base.finish_ps * last.hope, last.times * last.left / _WORTH
        win = self._may_win(base.demand.pieces)
        return base.finish_ps * (1 - max(win, _LEAST)), win / _WORTH

    def _may_win(self, count: int) -> float:
        """Of a finish with so many chunks: as much as the nearest that was cut, but less where chunks are smaller."""
        known = [
            (max(other / count, count / other), (1 - last.hope) * other / count)
            for other, last in self.last.items()
            if last.part < float("inf")
        ]
        return min(known)[1] if known else _MAY_WIN

    def _pieces(self, base: Schedule, most: float) -> list[int]:
        """Into how many pieces a schedule may be cut next, many first."""
        last = self.last.get(base.demand.pieces)
        times = [2]
        if last is not None:
            times = [last.times if base.finish_ps < last.from_ps else 2 * last.times]
        while 2 * times[-1] <= most and self.last:
            times.append(2 * times[-1])
        room = MOST_DELIVERIES / len(base.demand.destination_rank)
        return [many for one in times[::-1] if (many := alike_pieces(base, one)) <= room and self._due(base, many)]

    def _due(self, base: Schedule, times: int) -> bool:
        """Whether enough was done, and there is time, to cut a schedule into so many pieces."""
        cost_s = _work_s(base, times)
        worked_s, seconds = sum(one.worked_s for one in self.made), sum(one.seconds for one in self.made)
        slow = max(seconds / worked_s, 1.0) if worked_s else 1.0
        others_s = self.searches.worked_s * self.searches.places
        due = _SHARE * (1 + self.idle) * (worked_s + cost_s) <= others_s
        at_times = self._at_times() and _EACH * cost_s <= others_s
        return (due or at_times) and self.searches.has_time(_SURE * slow * cost_s)

    def _cut(self, base: Schedule, times: int) -> Search | None:
        """A search that cuts a schedule, if that can be."""
        count, last = base.demand.pieces * times, self.last.get(base.demand.pieces)
        demand = self.searches.demand(count)
        if demand is None:
            return None
        made = Search("refine", count, demand, _cut_finer(base, demand, self.searches.context))
        made.slow = max(_work_s(base, times) / made.cost_s, 1.0)
        self.made.append(made)
        before = () if last is None else ((last.times, last.part, last.left),)
        self.last[base.demand.pieces] = _Cut(made, times, base.finish_ps, *before)
        return made

    def _at_times(self) -> bool:
        """Whether it is a time for cuts, ever farther apart: by the work that was done, so with any limit the same."""
        worked_s = max(self.searches.worked_s, _LEAST_S)
        until_s = _APART ** math.ceil(math.log(worked_s, _APART))
        return self.searches.context.budget.steps is None and worked_s > (1 - _REST) * until_s


def alike_pieces(base: Schedule, times: int) -> int:
    """About so many pieces, such that they are alike: the largest piece says how long all take."""
    sizes = np.unique(base.demand.chunk_bytes)
    near = np.arange(math.ceil(times / 1.4), math.floor(times * 1.4) + 1)
    near = near[np.argsort(np.abs(np.log(near / times)), kind="stable")]  # as many as asked for, where that is as good
    largest = -(-sizes[:, None] // near) * near / sizes[:, None]
    return int(near[np.argmin(largest.max(axis=0))])


def _work_s(base: Schedule, times: int) -> float:
    """The work of a cut."""
    twice = 2 if len(base) * times <= _FEW else 1
    return _HOP_S * twice * len(base.timing.hop_link) * times


def _cut_finer(schedule: Schedule, demand: Demand, context: SearchContext) -> Iterator[Schedule | None]:
    """The schedule in pieces, in the order of the whole or another; once."""
    cut = subdivide(replace(schedule, method=schedule.method.removesuffix(_CUT) + _CUT), demand)
    if cut is not None and len(cut) <= _FEW:
        cut = min((one for one in (cut, _other_order(cut)) if one is not None), key=lambda one: one.finish_ps)
        context.incumbents.report(cut)
    yield cut


def _other_order(cut: Schedule) -> Schedule | None:
    """The same transfers with gaps filled, or of sums those with the longest way to go first."""
    from flowccl.schedule.generation.job_shop import can_be_jobs, jobs_from

    if can_be_jobs(cut):
        return jobs_from(cut).in_order(cut.start_ps, cut.finish_ps)
    return list_schedule(cut) if len(cut) <= _FEW_SUMS and can_list_schedule(cut) else None
