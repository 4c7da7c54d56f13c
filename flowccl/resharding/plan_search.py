"""The search for a plan: pieces of several sizes, routed and scheduled in several ways, until the gap is small."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from flowccl.arrays import NEVER
from flowccl.bounds.lower_bound import Bound
from flowccl.errors import DemandError, InvalidScheduleError
from flowccl.resharding.baselines import Broadcasts, baseline_round, round_counts
from flowccl.resharding.pieces import Pieces
from flowccl.resharding.plan import ReshardPlan
from flowccl.resharding.routing import PieceTrees, RoundTrees, SourceSets, repeated, route_round
from flowccl.resharding.scheduling import METHOD, schedules
from flowccl.resharding.staging import MOST_SLICES, in_bucket, staged_ps
from flowccl.resharding.traffic import Traffic, TrafficClass
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology
from flowccl.units import format_bytes
from flowccl.verifier.verify import verify


class FoundSchedule(NamedTuple):
    """A schedule, its pieces, their chunks, and the trees of its rounds."""

    schedule: Schedule
    pieces: Pieces
    on_trees: PieceTrees
    round_trees: RoundTrees


@dataclass(frozen=True, slots=True)
class ReshardParams:
    """Numbers of the search.

    `min_piece_bytes`: smaller pieces are mostly overhead, as in `synthesize`. `most_deliveries`: of pieces to targets,
    for which a schedule takes about a second. `per_round`: pieces of the largest class in a round; few give short
    rounds, many balance the links better, until the busiest link is within `balanced` of the lower bound.
    `depth_weights`: as in the method `reroute`. `rounds_kept`: how many of the rounds found go on with more rounds, the
    best ones. `rounds_staged`: for how many of them stages are planned, if there is a bucket. `stages_later`: how much
    later than the schedule its stages may end before they are made smaller. `routing_share`: of the time limit, for
    balancing.
    """

    min_piece_bytes: int = 4_000
    most_deliveries: int = 60_000
    per_round: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32)
    depth_weights: tuple[float, ...] = (0.3, 1.0, 0.0)
    balanced: float = 0.001
    rounds_kept: int = 4
    rounds_staged: int = 6
    stages_later: float = 0.05
    routing_share: float = 0.25


@dataclass
class PlanSearch:
    """The state of the search: what is planned, and the best plan so far."""

    topology: Topology
    found: Traffic
    classes: list[TrafficClass]
    sets: SourceSets
    bound: Bound
    broadcasts: Broadcasts
    params: ReshardParams
    random: np.random.Generator
    should_stop: Callable[[], bool]
    gap: float
    time_limit_s: float
    began: float = field(default_factory=time.monotonic)
    current: FoundSchedule | None = None
    best: FoundSchedule | None = None
    by_round: dict[int, FoundSchedule] = field(default_factory=dict)
    """The best schedule on the trees of each round that was tried."""

    def over(self) -> bool:
        """Whether the time limit is over; it starts when compiled code is loaded and the first trees exist."""
        return self.should_stop() or time.monotonic() - self.began > self.time_limit_s

    @property
    def is_good(self) -> bool:
        """Whether the gap is reached, and no baseline that moves whole tensors is earlier."""
        if self.best is None or self.best.schedule.finish_ps > self.bound.ps * (1 + self.gap):
            return False
        return not self.broadcasts.are_before(self.best.schedule.finish_ps)

    @cached_property
    def largest(self) -> int:
        """Bytes of the largest class."""
        return max(one.bytes for one in self.classes)

    def run(self) -> Iterator[Schedule]:
        """Yield every improvement: the baselines, then balanced trees with few pieces, then with more."""
        yield from self._baselines()
        if self.is_good:
            return
        rounds = self._balanced_rounds()
        scores: dict[int, int] = {}
        tried: set[tuple[int, int]] = set()
        count = 1
        while count == 1 or self._deliveries(count) <= self.params.most_deliveries:
            order = sorted(range(len(rounds)), key=lambda n: scores.get(n, 0))
            for number in order[: self.params.rounds_kept if count > 1 else None]:
                repeats = max(count // rounds[number].per_round, 1)
                small = self.largest // (repeats * rounds[number].per_round) < self.params.min_piece_bytes
                if (number, repeats) in tried or (small and count > 1):
                    continue
                tried.add((number, repeats))
                scores[number] = NEVER
                for schedule in self._schedules(rounds[number], repeats):
                    scores[number] = min(scores[number], schedule.finish_ps)
                    if self._is_better(schedule):
                        yield schedule
                    if self.is_good or (self.best is not None and self.over()):
                        return
            count *= 2

    def _baselines(self) -> Iterator[Schedule]:
        """Yield the improvements of the baselines that move nothing but the demand."""
        for shape in ("direct", "ring", "tree"):
            one = baseline_round(self.topology, self.sets, self.classes, shape)
            for rounds in round_counts(self.classes) if one is not None else ():
                assert one is not None
                found = self._schedules(one, rounds, np.random.default_rng(0))  # the same as those of `baseline_us`
                yield from (schedule for schedule in found if self._is_better(schedule))

    def _balanced_rounds(self) -> list[RoundTrees]:
        """Rounds with ever more pieces, the best balanced first, until the busiest link is close to the bound."""
        found: list[RoundTrees] = []
        for per_round in self.params.per_round:
            if per_round > 1 and self.largest // per_round < self.params.min_piece_bytes:
                break
            for depth_weight in self.params.depth_weights:
                found.append(route_round(self.sets, self.classes, per_round, self.random, depth_weight))
                self.began = time.monotonic() if len(found) == 1 else self.began
            until = self.began + self.params.routing_share * self.time_limit_s
            least = min(one.busiest_ps for one in found)
            if least <= self.bound.ps * (1 + self.params.balanced) or time.monotonic() > until or self.over():
                break
        found.sort(key=lambda one: one.busiest_ps)
        good = [one for one in found if one.busiest_ps <= found[0].busiest_ps * (1 + self.params.balanced)]
        return sorted(good, key=lambda one: one.depth) + [one for one in found if one not in good][:2]

    def _deliveries(self, count: int) -> float:
        return sum(max(one.bytes * count / self.largest, 1) * len(one.missing) for one in self.classes)

    def _schedules(
        self, one: RoundTrees, repeats: int, random: np.random.Generator | None = None
    ) -> Iterator[Schedule]:
        pieces, on_trees = repeated(self.topology, self.sets, self.classes, one, repeats, self.found.target.bytes)
        for schedule in schedules(self.topology, on_trees, pieces, random or self.random):
            if schedule is not None:
                self.current = FoundSchedule(schedule, pieces, on_trees, one)
                known = self.by_round.get(id(one))
                if known is None or schedule.finish_ps < known.schedule.finish_ps:
                    self.by_round[id(one)] = self.current
                yield schedule

    def _is_better(self, schedule: Schedule) -> bool:
        """Whether the current schedule is earlier than the best one; it is then the best."""
        if self.current is None or (self.best is not None and schedule.finish_ps >= self.best.schedule.finish_ps):
            return False
        violations = verify(schedule)
        if violations:
            raise InvalidScheduleError(f"{METHOD} made an invalid schedule: {violations[0]}")
        self.best = self.current
        return True

    def plan_of(self, one: FoundSchedule, partial: bool) -> ReshardPlan:
        """The plan of a schedule of pieces on trees."""
        moved, pieces, of_chunk = np.array(self.found.moved, dtype=np.int64), one.pieces, one.on_trees.piece
        return ReshardPlan(
            self.found.source,
            self.found.target,
            replace(one.schedule, method=METHOD),
            moved[pieces.cls[of_chunk]],
            pieces.begin[of_chunk],
            pieces.end[of_chunk],
            pieces.round_number[of_chunk],
            partial=partial,
        )

    def staged(self, bucket_bytes: int, partial: bool) -> tuple[ReshardPlan, int]:
        """Return the plan in stages with the least completion time, and that time in ps.

        The trees of the best schedule need not be the best ones for stages: deep trees fill the pipeline slowly.
        """
        best: tuple[ReshardPlan, int] | None = None
        by_time = sorted(self.by_round.values(), key=lambda one: one.schedule.finish_ps)
        for one in by_time[: self.params.rounds_staged]:
            plan = in_bucket(self.plan_of(one, partial), bucket_bytes)
            if plan is None or verify(one.schedule):
                continue
            staged = self._in_slices(one, plan)
            if best is None or staged[1] < best[1]:
                best = staged
        if best is None:
            raise DemandError(f"the messages of no stage fit into {format_bytes(bucket_bytes)}; give a larger bucket")
        return best

    def _in_slices(self, one: FoundSchedule, plan: ReshardPlan) -> tuple[ReshardPlan, int]:
        """Divide the slices of a plan further, until its stages end about when the schedule does; return the time too.

        Few stages fill the pipeline slowly: the first one makes all its hops before the second one arrives.
        """
        best = plan, self._staged_ps(one, plan)
        most_ps = one.schedule.finish_ps * (1 + self.params.stages_later)
        while best[1] > most_ps and plan.slices < MOST_SLICES:
            plan = replace(plan, slices=2 * plan.slices)
            ps = self._staged_ps(one, plan)
            if ps >= best[1] or self.largest // plan.stages < self.params.min_piece_bytes:
                break
            best = plan, ps
        return best

    def _staged_ps(self, one: FoundSchedule, plan: ReshardPlan) -> int:
        if plan.slices == 1:
            return one.schedule.finish_ps
        return staged_ps(self.topology, self.sets, self.classes, one.round_trees, plan.stages)
