"""The choice between two plans of a schedule for MSCCL++: a threadblock for each peer, or queues."""

from functools import partial

from flowccl.export.lowering.plan import ExecutionPlan, make_plan
from flowccl.export.lowering.plan_program import program_of
from flowccl.export.proof.estimate import estimate_ps
from flowccl.runtimes.limits import RuntimeLimits
from flowccl.schedule.schedule import Schedule

_WORTH = 0.05  # what the order of messages must gain: threadblocks side by side are faster where it does not matter


def fastest_plan(
    schedule: Schedule,
    limits: RuntimeLimits,
    *,
    inplace: bool = False,
    instances: int = 1,
    protocol: str = "Simple",
    sms: int | None = None,
) -> ExecutionPlan:
    """Return the plan of a schedule, with queues where it would lose time because messages overtake each other.

    Queues are tried where the program finishes more than 5 % later than the schedule, and used where they are more than
    5 % faster. A schedule that knows no message costs has no short messages, and so no queues.
    """
    plan = partial(make_plan, schedule, limits, inplace=inplace, instances=instances, protocol=protocol, sms=sms)
    side_by_side = plan()
    if not limits.with_protocol(protocol).direct or not schedule.topology.has_overheads:
        return side_by_side
    late_ps = _program_ps(side_by_side, schedule, limits)
    if late_ps <= (1 + _WORTH) * schedule.finish_ps:
        return side_by_side
    in_order = plan(queues=True)
    return in_order if (1 + _WORTH) * _program_ps(in_order, schedule, limits) < late_ps else side_by_side


def _program_ps(plan: ExecutionPlan, schedule: Schedule, limits: RuntimeLimits) -> int:
    costs = None if schedule.runtime is None else schedule.runtime.costs
    return estimate_ps(program_of(plan, limits), schedule.topology, schedule.demand.size_bytes, costs)
