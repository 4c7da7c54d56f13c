"""Better plans with more time: other parameters of the planner, tried one after the other."""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

from flowccl.errors import InvalidScheduleError
from flowccl.moe.blocks import Blocks
from flowccl.moe.expert_parallel import CombinePlan
from flowccl.moe.plan import Plan
from flowccl.moe.plan_params import FINE, PlanParams
from flowccl.moe.planner import Planner
from flowccl.moe.reordering import busiest_ps, reordered
from flowccl.result import Progress, Result
from flowccl.schedule.metrics import measure
from flowccl.verifier.verify import verify

_CUTS = (FINE.cuts, *(tuple(k / count for k in range(1, count)) for count in (16, 32, 64)))


def variants(has_trunks: bool) -> Iterator[PlanParams]:
    """The parameters that are tried, those that differ most from each other first."""
    for residual, lead in product((0.0, 0.01, 0.03), (1 / 8, 1 / 2, 1 / 32)):
        for pieces, cuts in product((16, 8, 32, 4), _CUTS[::-1]):
            for in_turn in (True, False) if has_trunks else (False,):
                yield replace(FINE, residual=residual, lead=lead, pieces=pieces, cuts=cuts, in_turn=in_turn)


def improved(
    planner: Planner,
    blocks: Blocks,
    collective: str,
    seconds: float,
    gap: float = 0.0,
    on_better: Callable[[Plan], None] = lambda plan: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Plan:
    """Return the best plan found in some seconds, at least the first one; stops within `gap` of the lower bound."""
    until = time.monotonic() + seconds
    best = planner.plan_blocks(blocks, collective)
    on_better(best)
    for params in variants(planner.layout.has_trunks):
        if best.gap <= gap or time.monotonic() > until or should_stop():
            break
        other = planner.plan_blocks(blocks, collective, params=params)
        if busiest_ps(other) < best.finish_ps:
            other = reordered(other)
        if other.finish_ps < best.finish_ps:
            best = other
            on_better(best)
    return best


def result_of(plan: Plan | CombinePlan, begun: float, trace: tuple[Progress, ...] = ()) -> Result:
    """Return a plan as a verified result; `begun` is when planning began, on the monotonic clock."""
    schedule = plan.schedule()
    violations = verify(schedule)
    if violations:
        raise InvalidScheduleError(f"the planner made an invalid schedule: {violations[0]}")
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
    return Result(schedule, plan.bound, measure(schedule), time.monotonic() - begun, used, 0, trace)
