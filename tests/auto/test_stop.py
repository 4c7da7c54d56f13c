"""Stop rules."""

from flowccl.auto.stop import GapReached, NoImprovement, TimeLimit
from flowccl.search.context import SearchContext


def test_the_time_limit_waits_for_a_first_schedule():
    rule = TimeLimit(SearchContext.with_limit(-1.0))
    assert not rule(1.0, float("inf"))
    assert rule(1.0, 5.0)


def test_a_request_to_stop_counts_as_the_end_of_the_time():
    context = SearchContext.with_limit(1000.0)
    context.budget.should_stop = lambda: True
    assert TimeLimit(context)(0.0, 5.0)


def test_the_gap_is_measured_against_the_bound():
    context = SearchContext.with_limit(1000.0)
    context.incumbents.bound_ps, context.budget.good_ps = 100.0, 105.0
    assert GapReached(context)(0.0, 105.0)
    assert not GapReached(context)(0.0, 106.0)


def test_half_of_the_work_in_vain_is_the_end():
    rule = NoImprovement(0.01, 0.5)
    assert [rule(work, finish) for work, finish in ((0.2, 100.0), (0.4, 99.0), (0.8, 99.0))] == [False, False, True]


def test_while_the_schedule_improves_the_search_goes_on():
    rule = NoImprovement(0.01, 0.5)
    assert not any(rule(0.5 * 2**k, 100 * 0.9**k) for k in range(6))


def test_with_zero_only_other_rules_stop():
    rule = NoImprovement(0.0, 0.5)
    assert not any(rule(float(work), 100.0) for work in range(100))
