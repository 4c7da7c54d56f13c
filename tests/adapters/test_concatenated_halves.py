"""Allreduce by any method: two searches, whose halves are concatenated after every improvement."""

from collections.abc import Iterator

from flowccl.adapters.reduction import with_reductions
from flowccl.demand.collectives import collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.methods.baselines import direct, tree
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.synthesis import synthesize
from flowccl.topology import builders
from flowccl.verifier.verify import verify


def slow_then_nothing_then_fast(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """A search that improves in its third step."""
    yield from tree(problem, context)
    yield None
    yield from direct(problem, context)


def test_an_improvement_of_a_half_after_an_idle_step_counts():
    topology, demand = builders.full(4), collective("allreduce", 4, 400_000)
    found = list(
        with_reductions(slow_then_nothing_then_fast)(Problem(topology, demand), SearchContext.with_limit(60.0))
    )
    best = next(load_method("direct")(Problem(topology, demand), SearchContext.with_limit(60.0)))
    assert [schedule is None for schedule in found] == [False, True, False]
    assert found[2].finish_ps == best.finish_ps < found[0].finish_ps
    assert verify(found[2]) == []


def test_the_concatenated_search_ends_with_its_halves():
    steps = load_method("direct")(
        Problem(builders.ring(4), collective("allreduce", 4, 40_000)), SearchContext.with_limit(60.0)
    )
    assert len(list(steps)) == 1


def test_an_allreduce_of_some_ranks_stays_among_them():
    """Ranks 2 and 3 only; no other rank is visited."""
    chunks = [Chunk(bytes=1000, sources=(2, 3), destinations=(2, 3))] * 2
    demand = Demand.from_chunks("custom", 4, chunks)
    schedule = next(load_method("direct")(Problem(builders.full(4), demand), SearchContext.with_limit(60.0)))
    assert verify(schedule) == []
    assert set(schedule.timing.end_node.tolist()) == {2, 3}


def test_auto_respects_the_chunk_count_for_a_large_allreduce():
    """Methods move on to more chunks only if the chunk count is free."""
    found = synthesize(builders.ring(4), "allreduce", 400_000_000, chunks=2, steps=60, gap=-1.0, time_limit_s=100)
    assert found.schedule.demand.collective == "allreduce"
    assert verify(found.schedule) == []
