"""The choice among schedules: fewer chunks where they are as good, programs of all methods where a runtime is given."""

from dataclasses import replace
from functools import cache

import pytest

from flowccl.lowered import lowering_s
from flowccl.runtimes.profiles import PROFILES
from flowccl.schedule.schedule import Schedule
from flowccl.synthesis import choice, synthesize
from flowccl.synthesis.choice import leanest, slack, with_fewer_chunks, with_program
from flowccl.topology.machines import machine


@cache
def planned(method: str, chunks: int) -> Schedule:
    return synthesize(
        machine("dgx_a100:2"), "allreduce", 2**26, method=method, chunks=chunks, steps=4, time_limit_s=100
    ).schedule


def test_half_as_many_chunks_as_long_as_they_are_as_good():
    """With 2 chunks per block the pipeline is not full: 12 % later; 4, 8 and 16 are alike."""
    asked = []

    def schedule_with(like: Schedule, count: int) -> Schedule:
        asked.append(count)
        return planned("hierarchical", count)

    found = with_fewer_chunks(planned("hierarchical", 16), 0.005, schedule_with)
    assert [one.demand.pieces for one in found] == [8, 4]
    assert asked == [8, 4, 2]


def test_there_may_be_no_schedule_with_fewer_chunks():
    assert with_fewer_chunks(planned("hierarchical", 4), 0.005, lambda like, count: None) == []


def test_a_gap_that_was_reached_is_not_given_up_for_fewer_transfers():
    coarse, fine = planned("hierarchical", 2), planned("hierarchical", 4)
    assert fine.finish_ps < coarse.finish_ps < 1.2 * fine.finish_ps
    between_ps = (fine.finish_ps + coarse.finish_ps) / 2
    assert leanest([coarse, fine], fine, slack(fine, 0.2, between_ps)) is fine
    assert leanest([coarse, fine], fine, slack(fine, 0.2, coarse.finish_ps + 1)) is coarse


@pytest.mark.parametrize("good", [0.0, 0.999, 1.005, 2.0])
def test_without_a_gap_that_was_reached_all_schedules_near_the_best_count(good):
    best = planned("hierarchical", 4)
    assert slack(best, 0.005, good * best.finish_ps) == pytest.approx(0.005)


def test_a_program_that_takes_longer_than_what_is_left_is_left_out():
    found = synthesize(
        machine("dgx_h100:1"), "allgather", 1 << 20, method="direct", runtime="mscclpp", steps=1
    ).schedule
    seconds = lowering_s(found)
    assert seconds > 0
    profile = PROFILES["mscclpp"]
    assert with_program([found], profile, None, lambda: seconds / 2) == (found, None)
    best, lowered = with_program([found], profile, None, lambda: 2 * seconds)
    assert best is found
    assert lowered is not None


def test_a_much_later_schedule_is_not_chosen_for_its_program(monkeypatch):
    early, late = (
        synthesize(machine("dgx_h100:1"), "allgather", 1 << 20, method=method, runtime="mscclpp", steps=1).schedule
        for method in ("direct", "ring")
    )
    near = replace(early, method="near")
    assert late.finish_ps > 2 * early.finish_ps
    monkeypatch.setattr(choice, "lowering_s", lambda schedule: 10.0 if schedule is early else 0.1)
    profile = PROFILES["mscclpp"]
    assert with_program([early, late], profile, None, lambda: 1.0) == (early, None)
    best, lowered = with_program([early, near, late], profile, None, lambda: 1.0)
    assert best is near
    assert lowered is not None
