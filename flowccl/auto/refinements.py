"""Refinements of schedules in a search: their chunks, subdivided into chunks that follow each other."""

from dataclasses import dataclass, field
from math import inf

from flowccl.auto.arm import REFINE, Arm, step_work_s
from flowccl.auto.chunk_counts import limit_ps
from flowccl.auto.refine import refined
from flowccl.auto.state import PLACES, SAFETY, SearchState
from flowccl.schedule.schedule import Schedule


@dataclass(frozen=True)
class Refinements:
    """Which schedule of a search is refined next."""

    search: SearchState
    refined: dict[tuple[int, int], float] = field(default_factory=dict)  # (count, fine count) -> time refined from

    def next_one(self) -> list[Arm]:
        """The most promising refinement of a schedule, where one is due."""
        bases: dict[int, Schedule] = {}
        for arm in sorted(self.search.arms, key=lambda arm: -arm.best_ps):
            rated = arm.traits.delivery_s > 0  # more chunks of such a method are better than its chunks in parts
            if arm.best is not None and len(self.search.methods) > 1 and not rated:
                bases[arm.count] = arm.best
        fines = {count: self._fine_count(count, base) for count, base in bases.items()}
        options = [(self._limit_ps(count, bases[count]), fine, count) for count, fine in fines.items() if fine]
        done_s = sum(arm.work_s for arm in self.search.arms if arm.name == REFINE)
        for hope_ps, fine, count in sorted(options):
            demand = self.search.counts.demand(fine)
            if hope_ps >= self.search.best_ps * (1 - self.search.params.worth) or demand is None:
                continue
            work_s = step_work_s(REFINE, demand, first=True) + self.search.carry_s(demand)
            enough = self.search.params.due * (done_s + work_s) <= self.search.work_s * PLACES
            if enough and self.search.context.budget.has_time(SAFETY * work_s):
                self.refined[count, fine] = bases[count].finish_ps
                steps = refined(bases[count], demand, self.search.context, self.search.carry)
                return [self.search.open(REFINE, fine, steps)]
        return []

    def _fine_count(self, count: int, base: Schedule) -> int | None:
        """The fine count to try for a schedule: the first double of it that was not tried from this completion time."""
        times = 2
        while (fine := self.search.counts.multiple(count, times)) is not None:
            if self.refined.get((count, fine)) != base.finish_ps:
                return fine
            times = 2 * fine // count
        return None

    def _limit_ps(self, count: int, base: Schedule) -> float:
        """What refining a schedule may reach, by the law of pipelines from earlier refinements of this count."""
        if not (tried := sorted(fine for coarse, fine in self.refined if coarse == count)):
            return base.finish_ps * 0.98
        found = (arm.best_ps for arm in self.search.arms if arm.name == REFINE and arm.count == tried[-1])
        ratio = min(found, default=inf) / self.refined[count, tried[-1]]
        return base.finish_ps * limit_ps(count, 1.0, tried[-1], ratio)
