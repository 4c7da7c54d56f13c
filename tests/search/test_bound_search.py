"""The lower bound beside the search."""

from flowccl.demand.collectives import collective
from flowccl.problem import Problem
from flowccl.search.bound_search import BoundSearch
from flowccl.search.context import SearchContext
from flowccl.topology.builders import ring


def test_a_bound_before_the_first_round_has_ended_does_not_ask_for_a_tighter_one():
    """On a busy machine the first round may outlast the tenth of the time after which a tighter bound is sought."""
    context = SearchContext.with_limit(1e-6)
    bounds = BoundSearch(Problem(ring(4), collective("allreduce", 4, 1 << 20, 4)), context, 0.005)
    assert context.incumbents.best_ps == float("inf")
    bounds._run()
    assert bounds.bound is not None
    assert not bounds.tried_tighter


def test_the_search_learns_what_is_good_enough():
    context = SearchContext.with_limit(60.0)
    bounds = BoundSearch(Problem(ring(4), collective("allgather", 4, 4000)), context, 0.5)
    found = bounds.result(None)
    assert context.incumbents.bound_ps == found.ps
    assert context.budget.good_ps == found.ps * 1.5
