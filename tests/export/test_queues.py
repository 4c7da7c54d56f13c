"""Queues: one threadblock of MSCCL++ sends the short messages of a link to all peers, in the schedule's order."""

from collections import defaultdict
from functools import cache

import pytest

from flowccl.errors import InputError
from flowccl.export.lowering.fastest import fastest_plan
from flowccl.export.lowering.moves import moves_of
from flowccl.export.lowering.plan import ExecutionPlan, make_plan
from flowccl.export.lowering.plan_program import program_of
from flowccl.export.proof.estimate import estimate_ps, step_times
from flowccl.lowered import lower_for
from flowccl.run.replay import replay
from flowccl.runtimes.limits import CHANNELS_PER_BLOCK, MSCCLPP_LIMITS
from flowccl.runtimes.profiles import PROFILES
from flowccl.schedule.schedule import Schedule
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine
from tests.export.cases import findings, made, read

PROFILE = PROFILES["mscclpp"]


@cache
def schedule_for(name: str, collective: str, size: int, method: str = "hierarchical") -> Schedule:
    """A schedule with one chunk per block, with the message costs of MSCCL++."""
    return synthesize(machine(name), collective, size, runtime="mscclpp", method=method, chunks=1, steps=2).schedule


def plan_of(schedule: Schedule) -> ExecutionPlan:
    """The plan of a schedule on MSCCL++, with queues where it has short messages."""
    return make_plan(schedule, MSCCLPP_LIMITS, queues=True)


def has_queues(plan: ExecutionPlan) -> bool:
    """Whether a threadblock sends to several peers."""
    return any(len(block.targets) > 1 for gpu in plan.gpus for block in gpu.blocks)


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce"])
def test_short_messages_leave_in_the_schedules_order(collective: str) -> None:
    schedule = schedule_for("dgx2:2", collective, 2**16)
    program = program_of(plan_of(schedule), MSCCLPP_LIMITS)
    assert replay(program, seed=0) == []
    times = step_times(program, schedule.topology, schedule.demand.size_bytes, PROFILE.costs)
    host = [node.host for node in schedule.topology.nodes]
    sent = defaultdict(list)
    for number, one in enumerate(program.operations):
        if one.sends_to >= 0 and one.size and host[one.rank] == host[one.sends_to]:
            sent[one.rank].append((times.begin_ps[number], one.sends_to))
    planned = defaultdict(list)
    for move in moves_of(schedule):
        if host[move.src] == host[move.dst]:
            planned[move.src].append((move.start_ps, move.dst))
    assert sent.keys() == planned.keys()
    for rank, rows in planned.items():
        assert [peer for _, peer in sorted(sent[rank])] == [peer for _, peer in sorted(rows)]


def test_a_program_in_order_is_as_early_as_its_schedule() -> None:
    schedule = schedule_for("dgx2:2", "reduce_scatter", 2**16)
    assert has_queues(fastest_plan(schedule, MSCCLPP_LIMITS))
    assert findings(made(schedule, "mscclpp"), "mscclpp") == []
    assert lower_for(schedule, PROFILE, 80).program_us <= 1.05 * schedule.finish_us  # 1.30 with a threadblock per peer


def test_where_order_does_not_matter_each_peer_has_a_threadblock() -> None:
    """They are faster: alltoall of 1 MiB, 8 ranks on an H200, takes 40 us with a threadblock per peer, 60 in order."""
    schedule = schedule_for("dgx_a100:1", "alltoall", 2**16, "direct")
    assert has_queues(plan_of(schedule))
    assert not has_queues(fastest_plan(schedule, MSCCLPP_LIMITS))


def test_long_messages_have_a_threadblock_for_each_peer() -> None:
    assert not has_queues(plan_of(schedule_for("dgx_a100:1", "alltoall", 2**26, "direct")))


def test_without_message_costs_each_peer_has_a_threadblock() -> None:
    schedule = synthesize(machine("dgx_a100:1"), "alltoall", 2**16, method="direct", chunks=1, steps=1).schedule
    assert not has_queues(plan_of(schedule))


def test_messages_to_other_hosts_are_not_queued() -> None:
    plan = plan_of(schedule_for("dgx_a100:2", "allgather", 2**16))
    for gpu in plan.gpus:
        for block in gpu.blocks:
            if len(block.targets) > 1:
                assert {peer // 8 for peer, _ in block.targets} == {gpu.rank // 8}


def test_a_long_queue_is_cut_into_threadblocks_that_run_one_after_the_other() -> None:
    schedule = schedule_for("dgx2:1", "alltoall", 2**18, "direct")
    plan = plan_of(schedule)
    for gpu in plan.gpus:
        queues = [block for block in gpu.blocks if len(block.targets) > 1]
        assert len(queues) > 1
        assert all(len(block.targets) <= CHANNELS_PER_BLOCK for block in queues)
        assert sum(len(block.targets) for block in queues) == 15
        firsts = [next(step for step in block.steps if step.kind == "s") for block in queues]
        numbers = {id(block): number for number, block in enumerate(gpu.blocks)}
        waited = {block for step in firsts for block, _ in step.waits}
        assert len(waited & {numbers[id(block)] for block in queues}) == len(queues) - 1


def test_a_plan_without_room_for_queues_has_a_threadblock_for_each_peer() -> None:
    schedule = schedule_for("dgx2:2", "allreduce", 2**16)
    free = max(len(gpu.blocks) for gpu in plan_of(schedule).gpus)
    fewer = max(len(gpu.blocks) for gpu in make_plan(schedule, MSCCLPP_LIMITS, sms=free - 1, queues=True).gpus)
    assert fewer < free
    with pytest.raises(InputError, match="threadblocks per gpu"):
        make_plan(schedule, MSCCLPP_LIMITS, sms=2, queues=True)


def test_the_estimate_is_the_same_with_and_without_a_file() -> None:
    schedule = schedule_for("dgx_a100:1", "reduce_scatter", 2**16, "direct")
    program = read(made(schedule, "mscclpp"), "mscclpp")
    ps = estimate_ps(program, schedule.topology, schedule.demand.size_bytes, PROFILE.costs)
    assert ps == lower_for(schedule, PROFILE, 108).program_ps
