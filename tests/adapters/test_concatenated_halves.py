"""Allreduce by any method: two searches, joined whenever one of them gets better."""

from collections.abc import Iterator

from flowccl.adapters.reduction import with_reductions
from flowccl.demand.collectives import collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.methods.baselines import direct, ring
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.synthesis import synthesize
from flowccl.topology import builders
from flowccl.verifier.verify import verify


def slow_then_nothing_then_fast(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """A search that finds something better in its third step."""
    topology, demand = problem.topology, problem.demand
    yield ring(topology, demand)
    yield None
    yield direct(topology, demand)


def test_what_a_half_finds_after_a_step_without_luck_is_not_lost():
    topology, demand = builders.full(4), collective("allreduce", 4, 400_000)
    found = list(with_reductions(slow_then_nothing_then_fast)(topology, demand, SearchContext.with_limit(60.0)))
    best = next(load_method("direct")(Problem(topology, demand), SearchContext.with_limit(60.0)))
    assert [schedule is None for schedule in found] == [False, True, False]
    assert found[2].finish_ps == best.finish_ps < found[0].finish_ps
    assert verify(found[2]) == []


def test_a_search_that_ends_ends_the_joined_one_too():
    steps = load_method("ring")(
        Problem(builders.ring(4), collective("allreduce", 4, 40_000)), SearchContext.with_limit(60.0)
    )
    assert len(list(steps)) == 1


def test_an_allreduce_of_some_is_summed_among_them():
    """Ranks 2 and 3 only; nobody else need be visited."""
    chunks = [Chunk(bytes=1000, sources=(2, 3), destinations=(2, 3))] * 2
    demand = Demand.from_chunks("custom", 4, chunks)
    schedule = next(load_method("direct")(Problem(builders.full(4), demand), SearchContext.with_limit(60.0)))
    assert verify(schedule) == []
    assert set(schedule.timing.end_node.tolist()) == {2, 3}


def test_auto_takes_a_given_number_of_chunks_for_large_sums():
    """Trees go ahead to more chunks only where their number is free."""
    found = synthesize(builders.ring(4), "allreduce", 400_000_000, chunks=2, steps=60, gap=-1.0, time_limit_s=100)
    assert found.schedule.demand.collective == "allreduce"
    assert verify(found.schedule) == []
