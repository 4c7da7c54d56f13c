"""Refinement: schedules with few chunks, subdivided."""

from collections.abc import Iterator

from flowccl.auto.refine import even_pieces
from flowccl.auto.search import PortfolioSearch
from flowccl.demand.collectives import collective
from flowccl.errors import DemandError
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.builders import line, star
from flowccl.topology.topology import Topology
from flowccl.verifier.verify import verify


def whole_only(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """A method for one chunk that never ends and finds nothing after its first schedule."""
    topology, demand = problem.topology, problem.demand
    if demand.pieces > 1:
        raise DemandError("only one chunk is supported")
    yield next(load_method("greedy")(Problem(topology, demand), context))
    while True:
        yield None


def searched(topology: Topology, name: str, size_bytes: int, steps: int) -> tuple[PortfolioSearch, list[Schedule]]:
    methods = {"first": whole_only, "second": whole_only}
    demand_of = lambda count: collective(name, topology.num_gpus, size_bytes, count)  # noqa: E731
    run = PortfolioSearch(topology, demand_of, methods, SearchContext.with_limit(60.0, steps=steps))
    return run, list(run.run())


def test_auto_refines_a_schedule_with_one_chunk() -> None:
    """Three links in a row: 6 us with one chunk; with many chunks 2 us and the time of two chunks."""
    run, found = searched(line(4, bandwidth_GBps=10, latency_us=0), "broadcast", 20_000, 1500)
    assert found[0].finish_us == 6.0
    assert found[-1].finish_us < 2.1
    assert found[-1].demand.pieces >= 32
    assert (found[0].method, found[-1].method) == ("greedy", "greedy, refined")
    assert verify(found[-1]) == []
    assert all(arm.best is None for arm in run.refinements.made[:-1])  # only the last one keeps its schedule


def test_pieces_have_equal_sizes_if_possible() -> None:
    """250 B in 8 pieces occupy a link as long as 256 B; in 10 pieces, as long as 250 B."""
    topology = line(2, bandwidth_GBps=10, latency_us=0)
    for size_bytes, requested, even in ((1000, 8, 10), (1024, 8, 8), (1000, 2, 2), (4 * 251, 8, 9), (4, 2, 2)):
        whole = next(
            load_method("greedy")(
                Problem(topology, collective("broadcast", 2, size_bytes, 4)), SearchContext.with_limit(60.0)
            )
        )
        assert whole is not None
        assert even_pieces(whole, requested) == even


def test_few_refinements_are_tried_if_they_do_not_help() -> None:
    """Each of 4 GPUs sends to each through one switch: the links are busy from start to end."""
    run, found = searched(star(4, bandwidth_GBps=10, latency_us=0), "alltoall", 64_000, 1500)
    refinement_s = sum(arm.work_done_s for arm in run.refinements.made)
    assert 0 < len(run.refinements.made) < 12
    assert refinement_s < 0.1 * run.arms.work_done_s * 2
    assert found[-1].finish_us == found[0].finish_us


def test_a_single_method_is_not_refined() -> None:
    topology, context = line(4, bandwidth_GBps=10, latency_us=0), SearchContext.with_limit(60.0, steps=100)
    run = PortfolioSearch(
        topology, lambda count: collective("broadcast", 4, 20_000, count), {"greedy": load_method("greedy")}, context
    )
    assert len(list(run.run())) > 1
    assert run.refinements.made == []
