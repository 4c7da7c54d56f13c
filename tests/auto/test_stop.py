"""Stop rules."""

from flowccl.auto.stop import GapReached, TimeLimit
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


def test_every_rule_has_a_reason():
    context = SearchContext.with_limit(1000.0)
    assert GapReached(context).reason == "the requested gap was reached"
    assert TimeLimit(context).reason == "the time limit was reached"
    context.budget.should_stop = lambda: True
    assert TimeLimit(context).reason == "the search was stopped"
