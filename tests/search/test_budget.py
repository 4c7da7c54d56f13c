"""The budget of a search."""

import pytest

from flowccl.lowered import LEAST_S, LoweringTime
from flowccl.schedule.schedule import Schedule
from flowccl.search.budget import Budget
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine


def test_what_comes_after_the_search_is_part_of_the_time_limit():
    budget = Budget(10.0, kept_s=lambda: 2.0)
    assert budget.has_time(7.9)
    assert not budget.has_time(8.0)


def test_at_least_half_of_the_time_limit_is_for_the_search():
    budget = Budget(10.0, kept_s=lambda: 60.0)
    assert budget.has_time(4.9)
    assert not budget.has_time(5.0)


def test_a_program_takes_time_for_every_message_and_threadblock():
    lowering = LoweringTime()
    assert lowering() == LEAST_S  # before any schedule is known
    plain: Schedule = synthesize(machine("ring:4"), "allgather", 1 << 20, steps=1).schedule
    lowering.see(plain)
    assert lowering() == 0  # it has no program
    made = synthesize(machine("dgx_h100:1"), "allgather", 1 << 20, method="direct", runtime="mscclpp", steps=1).schedule
    lowering.see(made)
    messages = len(set(made.leader.tolist()))
    assert lowering() == pytest.approx(LEAST_S + 6e-5 * messages * made.execution.width)


def test_all_of_a_synthesis_may_exceed_the_limit_by_a_tenth_or_by_three_seconds():
    assert 2 < Budget(1.0).after_s - 1.0 <= 2.5
    assert 9 < Budget(100.0).after_s - 100.0 <= 9.5
    assert Budget(1.0, steps=5).after_s == float("inf")


def test_loading_takes_at_most_half_of_the_grace_from_the_search():
    budget = Budget(10.0)
    budget.start(budget.began - 1.0)
    assert budget.left_s > 9
    budget.start(budget.began - 2.0)  # three seconds in all
    assert 7.5 < budget.left_s <= 8.5


def test_what_comes_after_the_search_has_time_within_the_grace():
    budget = Budget(1.0, kept_s=lambda: 2.0)
    budget.start(budget.began - 2.0)
    assert budget.left_s < 0  # of 4 s, 2 are over, and 2.5 are for a program and printing
    assert 0.4 < Budget(1.0, kept_s=lambda: 2.0).left_s <= 0.5  # half of the limit is the search's
