"""`reshard`: a verified plan between two layouts, with a proved lower bound."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flowccl.adapters.trunks import on_trunks
from flowccl.errors import DemandError, InputError, InvalidScheduleError, NothingFoundError
from flowccl.resharding.baselines import Broadcasts
from flowccl.resharding.bound import reshard_bound
from flowccl.resharding.for_runtime import collective_for, plan_for_runtime
from flowccl.resharding.layout import Layout
from flowccl.resharding.plan import ReshardPlan, check_plan
from flowccl.resharding.plan_search import PlanSearch, ReshardParams
from flowccl.resharding.routing import check_reach, source_sets
from flowccl.resharding.scheduling import METHOD
from flowccl.resharding.staging import staging_bytes
from flowccl.resharding.traffic import Traffic, TrafficClass, check_ranks, traffic
from flowccl.result import Progress, Result, peak_memory_MB
from flowccl.runtimes.profiles import RuntimeProfile, runtime_profile
from flowccl.schedule.metrics import measure
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology
from flowccl.topology.trunks import split_trunks
from flowccl.units import ps_to_us
from flowccl.verifier.verify import verify


@dataclass(frozen=True)
class ReshardResult:
    """A plan, and the result of its synthesis: schedule, lower bound, metrics.

    `staging_bytes` is the memory for messages and relayed data on the rank with most of it. `finish_ps` is the
    completion time; in stages (`bucket_bytes`) it is that of the stages, mostly later than that of the schedule.
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
    runtime: str | RuntimeProfile = "ideal",
    sms: int | None = None,
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

    With a `runtime`, such as "mscclpp", the plan is one that `export` writes for it. Only layouts between which one of
    its collectives moves the bytes have such plans; for all others, DemandError is raised before the search. `sms` is
    the number of SMs of a GPU where the machine does not name a GPU model.
    """
    began = time.monotonic()
    profile = runtime_profile(runtime) if isinstance(runtime, str) else runtime
    on_phase("comparing the layouts")
    found, classes = _moved(topology, source, target, partial)
    if not profile.is_ideal:
        options: dict[str, Any] = {"sms": sms, "time_limit_s": time_limit_s, "gap": gap, "seed": seed}
        options |= {"on_progress": on_progress, "on_phase": on_phase, "should_stop": should_stop}
        return _for_runtime(topology, found, profile, bucket_bytes, **options)
    lanes = split_trunks(topology)
    machine = topology if lanes is None else lanes.topology
    forbidden = _forbidden(topology, found, helpers)
    sets = source_sets(machine, classes, forbidden)
    check_reach(sets, classes)
    on_phase("computing the lower bound")
    bound = reshard_bound(topology, source_sets(topology, classes, forbidden), classes)
    on_phase("loading compiled code (the first run compiles it)")
    work = machine, found, classes, sets, bound, Broadcasts(topology, found), params or ReshardParams()
    search = PlanSearch(*work, np.random.default_rng(seed), should_stop, gap, time_limit_s)
    trace: list[Progress] = []
    for schedule in search.run():
        trace.append(Progress(schedule.finish_us, bound.us, METHOD, time.monotonic() - began))
        if on_progress is not None:
            on_progress(trace[-1])
    plan, finish_ps = _plan_of(search, partial, bucket_bytes, on_phase)
    if lanes is not None:
        plan = replace(plan, schedule=_verified(on_trunks(plan.schedule, lanes)))
    check_plan(plan)
    seconds, metrics = time.monotonic() - began, measure(plan.schedule)
    result = Result(plan.schedule, bound, metrics, seconds, peak_memory_MB(), seed, tuple(trace), should_stop())
    return ReshardResult(plan, result, staging_bytes(plan), finish_ps)


def _moved(topology: Topology, source: Layout, target: Layout, partial: bool) -> tuple[Traffic, list[TrafficClass]]:
    """What moves between two layouts, and its classes; an error if nothing does."""
    found = traffic(source, target, partial=partial)
    check_ranks(found, topology)
    if not found.moved:
        raise DemandError("every rank already has what it wants; no plan is needed")
    return found, [found.classes[number] for number in found.moved]


def _plan_of(
    search: PlanSearch, partial: bool, bucket_bytes: int | None, on_phase: Callable[[str], None]
) -> tuple[ReshardPlan, int]:
    """The best plan of a search and its completion time, in stages if it needs more memory than `bucket_bytes`."""
    if search.best is None:
        raise NothingFoundError(f"no plan found in {search.time_limit_s:g} s")
    plan = search.plan_of(search.best, partial)
    if bucket_bytes is None or staging_bytes(plan) <= bucket_bytes:
        return plan, search.best.schedule.finish_ps
    on_phase("dividing the plan into stages")
    return search.staged(bucket_bytes, partial)


def _for_runtime(
    topology: Topology, found: Traffic, profile: RuntimeProfile, bucket_bytes: int | None, **options: Any
) -> ReshardResult:
    """A plan that is a collective of a runtime."""
    one = collective_for(found, topology, profile)
    if bucket_bytes is not None:
        raise InputError(f"--bucket: a program of {profile.name} runs whole; leave --bucket or --for out")
    plan, result = plan_for_runtime(topology, found, one, profile, **options)
    check_plan(plan)
    return ReshardResult(plan, result, staging_bytes(plan), plan.schedule.finish_ps)


def _verified(schedule: Schedule) -> Schedule:
    violations = verify(schedule)
    if violations:
        raise InvalidScheduleError(f"{METHOD} made an invalid schedule: {violations[0]}")
    return schedule


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
