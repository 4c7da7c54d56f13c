"""The search for a plan: pieces of several sizes, routed and scheduled in several ways, until the gap is small."""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from flowccl.adapters.trunks import on_trunks
from flowccl.bounds.lower_bound import Bound
from flowccl.errors import DemandError, InputError, InvalidScheduleError, NothingFoundError
from flowccl.resharding.baselines import baseline_round, round_counts
from flowccl.resharding.bound import reshard_bound
from flowccl.resharding.layout import Layout
from flowccl.resharding.pieces import Pieces
from flowccl.resharding.plan import ReshardPlan, check_plan
from flowccl.resharding.routing import (
    PieceTrees,
    RoundTrees,
    SourceSets,
    check_reach,
    repeated,
    route_round,
    source_sets,
)
from flowccl.resharding.scheduling import METHOD, NEVER, schedules
from flowccl.resharding.staging import in_bucket, staged_ps, staging_bytes
from flowccl.resharding.traffic import Traffic, TrafficClass, check_ranks, traffic
from flowccl.result import Progress, Result
from flowccl.schedule.metrics import measure
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology
from flowccl.topology.trunks import split_trunks
from flowccl.units import format_bytes, ps_to_us
from flowccl.verifier.verify import verify


@dataclass(frozen=True, slots=True)
class ReshardParams:
    """Numbers of the search.

    `min_piece_bytes`: smaller pieces are mostly overhead, as in `synthesize`. `most_deliveries`: of pieces to targets,
    for which a schedule takes about a second. `per_round`: pieces of the largest class in a round; few give short
    rounds, many balance the links better, until the busiest link is within `balanced` of the lower bound.
    `depth_weights`: as in the method `reroute`. `rounds_kept`: how many of the rounds found go on with more rounds, the
    best ones. `routing_share`: of the time limit, for balancing.
    """

    min_piece_bytes: int = 4_000
    most_deliveries: int = 60_000
    per_round: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32)
    depth_weights: tuple[float, ...] = (0.3, 1.0, 0.0)
    balanced: float = 0.001
    rounds_kept: int = 4
    routing_share: float = 0.25


@dataclass(frozen=True)
class ReshardResult:
    """A plan, and the result of its synthesis: schedule, lower bound, metrics.

    `staging_bytes` is the memory for messages and relayed data on the rank with most of it. `finish_ps` is the
    completion time; in stages (`bucket_bytes`) it is later than that of the schedule.
    """

    plan: ReshardPlan
    result: Result
    staging_bytes: int
    finish_ps: int

    @property
    def finish_us(self) -> float:
        """The completion time in microseconds, in stages if the plan has some."""
        return ps_to_us(self.finish_ps)

    @property
    def gap(self) -> float:
        """Relative distance to the lower bound: completion time / lower bound - 1."""
        return self.finish_ps / max(self.result.bound.ps, 1) - 1

    def to_json(self) -> dict[str, Any]:
        """One flat JSON object, for scripts."""
        more = self.plan.traffic.facts | {
            "staged_us": self.finish_us,
            "stages": self.plan.stages,
            "staging_bytes": self.staging_bytes,
            "source_fingerprint": self.plan.source.fingerprint,
            "target_fingerprint": self.plan.target.fingerprint,
        }
        return self.result.to_json() | {"collective": "reshard"} | more


@dataclass
class _PlanSearch:
    """The state of the search: what is planned, and the best plan so far."""

    topology: Topology
    found: Traffic
    classes: list[TrafficClass]
    sets: SourceSets
    bound: Bound
    params: ReshardParams
    random: np.random.Generator
    over: Callable[[], bool]
    gap: float
    began: float
    time_limit_s: float
    current: tuple[Schedule, Pieces, PieceTrees, RoundTrees] | None = None
    best: tuple[Schedule, Pieces, PieceTrees, RoundTrees] | None = None

    @property
    def is_good(self) -> bool:
        """Whether the gap is reached."""
        return self.best is not None and self.best[0].finish_ps <= self.bound.ps * (1 + self.gap)

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
        for shape in ("direct", "ring"):
            one = baseline_round(self.topology, self.sets, self.classes, shape)
            for rounds in round_counts(self.classes) if one is not None else ():
                assert one is not None
                yield from (schedule for schedule in self._schedules(one, rounds) if self._is_better(schedule))

    def _balanced_rounds(self) -> list[RoundTrees]:
        """Rounds with ever more pieces, the best balanced first, until the busiest link is close to the bound."""
        found: list[RoundTrees] = []
        until = self.began + self.params.routing_share * self.time_limit_s
        for per_round in self.params.per_round:
            if per_round > 1 and self.largest // per_round < self.params.min_piece_bytes:
                break
            for depth_weight in self.params.depth_weights:
                found.append(route_round(self.sets, self.classes, per_round, self.random, depth_weight))
            least = min(one.busiest_ps for one in found)
            if least <= self.bound.ps * (1 + self.params.balanced) or time.monotonic() > until or self.over():
                break
        found.sort(key=lambda one: one.busiest_ps)
        good = [one for one in found if one.busiest_ps <= found[0].busiest_ps * (1 + self.params.balanced)]
        return sorted(good, key=lambda one: one.depth) + [one for one in found if one not in good][:2]

    def _deliveries(self, count: int) -> float:
        return sum(max(one.bytes * count / self.largest, 1) * len(one.missing) for one in self.classes)

    def _schedules(self, one: RoundTrees, repeats: int) -> Iterator[Schedule]:
        pieces, on_trees = repeated(self.topology, self.sets, self.classes, one, repeats, self.found.target.bytes)
        for schedule in schedules(self.topology, on_trees, pieces, self.random):
            if schedule is not None:
                self.current = (schedule, pieces, on_trees, one)
                yield schedule

    def _is_better(self, schedule: Schedule) -> bool:
        """Whether the current schedule is earlier than the best one; it is then the best."""
        if self.current is None or (self.best is not None and schedule.finish_ps >= self.best[0].finish_ps):
            return False
        violations = verify(schedule)
        if violations:
            raise InvalidScheduleError(f"{METHOD} made an invalid schedule: {violations[0]}")
        self.best = self.current
        return True

    def plan_of(self, schedule: Schedule, pieces: Pieces, on_trees: PieceTrees) -> ReshardPlan:
        """The plan of a schedule of pieces on trees."""
        moved = np.array(self.found.moved, dtype=np.int64)
        of_chunk = on_trees.piece
        return ReshardPlan(
            self.found.source,
            self.found.target,
            schedule,
            moved[pieces.cls[of_chunk]],
            pieces.begin[of_chunk],
            pieces.end[of_chunk],
            pieces.round_number[of_chunk],
        )


def reshard(
    topology: Topology,
    source: Layout,
    target: Layout,
    *,
    helpers: tuple[int, ...] | None = None,
    bucket_bytes: int | None = None,
    time_limit_s: float = 10.0,
    gap: float = 0.01,
    seed: int = 0,
    partial: bool = False,
    params: ReshardParams | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_phase: Callable[[str], None] = lambda text: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> ReshardResult:
    """Return a verified plan that moves the tensors of one layout to another, with a proved lower bound.

    Any rank that has the bytes may send them, targets pass on what they got, and `helpers` relay (None: all other
    GPUs). With `bucket_bytes`, no rank uses more memory than that beside its tensors. The search stops when the
    completion time is within `gap` of the lower bound, or after `time_limit_s`. `partial` allows source tensors that
    the target layout does not have.
    """
    began = time.monotonic()
    on_phase("comparing the layouts")
    found = traffic(source, target, partial=partial)
    check_ranks(found, topology)
    classes = [found.classes[number] for number in found.moved]
    if not classes:
        raise DemandError("every rank already has what it wants; no plan is needed")
    lanes = split_trunks(topology)
    machine = topology if lanes is None else lanes.topology
    forbidden = _forbidden(topology, found, helpers)
    sets = source_sets(machine, classes, forbidden)
    check_reach(sets, classes)
    on_phase("computing the lower bound")
    bound = reshard_bound(topology, source_sets(topology, classes, forbidden), classes)
    on_phase("loading compiled code (the first run compiles it)")

    def over() -> bool:
        return should_stop() or time.monotonic() - began > time_limit_s

    search = _PlanSearch(
        machine,
        found,
        classes,
        sets,
        bound,
        params or ReshardParams(),
        np.random.default_rng(seed),
        over,
        gap,
        began,
        time_limit_s,
    )
    trace: list[Progress] = []
    for schedule in search.run():
        trace.append(Progress(schedule.finish_us, bound.us, METHOD, time.monotonic() - began))
        if on_progress is not None:
            on_progress(trace[-1])
    if search.best is None:
        raise NothingFoundError(f"no plan found in {time_limit_s:g} s")
    schedule, pieces, on_trees, one = search.best
    schedule = replace(schedule, method=METHOD)
    if lanes is not None:
        schedule = on_trunks(schedule, lanes)
        if verify(schedule):
            raise InvalidScheduleError(f"{METHOD} made an invalid schedule: {verify(schedule)[0]}")
    plan = replace(search.plan_of(schedule, pieces, on_trees), partial=partial)
    check_plan(plan)
    finish_ps = schedule.finish_ps
    if bucket_bytes is not None and staging_bytes(plan) > bucket_bytes:
        on_phase("dividing the plan into stages")
        plan = _staged(plan, bucket_bytes)
        finish_ps = max(staged_ps(machine, sets, classes, one, plan.stages), finish_ps)
    seconds, memory = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak_MB = memory / (1e6 if sys.platform == "darwin" else 1e3)
    result = Result(schedule, bound, measure(schedule), seconds, peak_MB, seed, tuple(trace), should_stop())
    return ReshardResult(plan, result, staging_bytes(plan), finish_ps)


def _staged(plan: ReshardPlan, bucket_bytes: int) -> ReshardPlan:
    found = in_bucket(plan, bucket_bytes)
    if found is None:
        raise DemandError(f"the messages of no stage fit into {format_bytes(bucket_bytes)}; give a larger bucket")
    return found


def _forbidden(topology: Topology, found: Traffic, helpers: tuple[int, ...] | None) -> frozenset[int]:
    """The ranks that may not relay: neither sources, targets nor helpers."""
    if helpers is None:
        return frozenset()
    for rank in helpers:
        if not 0 <= rank < topology.num_gpus:
            raise InputError(
                f"helpers: rank {rank} is not a GPU of {topology.name}: ranks 0 to {topology.num_gpus - 1}"
            )
    return frozenset(range(topology.num_gpus)) - {*found.source.ranks, *found.target.ranks, *helpers}
