"""What was found with few chunks, in more pieces."""

from collections.abc import Iterator

from flowccl.auto.refine import alike_pieces
from flowccl.auto.search import Chunking
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
    """A method that knows no more than one chunk, and has to think for long."""
    topology, demand = problem.topology, problem.demand
    if demand.pieces > 1:
        raise DemandError("one chunk only")
    yield next(load_method("greedy")(Problem(topology, demand), context))
    while True:
        yield None


def searched(topology: Topology, name: str, size_bytes: int, steps: int) -> tuple[Chunking, list[Schedule]]:
    methods = {"first": whole_only, "second": whole_only}
    demand_of = lambda count: collective(name, topology.num_gpus, size_bytes, count)  # noqa: E731
    run = Chunking(topology, demand_of, methods, SearchContext.with_limit(60.0, steps=steps))
    return run, list(run.run())


def test_auto_cuts_what_is_found_with_one_chunk() -> None:
    """Three links in a row: 6 us whole, 2 us plus two pieces in many."""
    run, found = searched(line(4, bandwidth_GBps=10, latency_us=0), "broadcast", 20_000, 1500)
    assert found[0].finish_us == 6.0
    assert found[-1].finish_us < 2.1
    assert found[-1].demand.pieces >= 32
    assert (found[0].method, found[-1].method) == ("greedy", "greedy, cut finer")
    assert verify(found[-1]) == []
    assert all(cut.best is None for cut in run.cuts.made[:-1])  # no memory for what is not the best


def test_pieces_are_alike_where_the_bytes_allow_it() -> None:
    """250 B in 8 pieces hold a link as long as 256; in 10 as long as 250."""
    topology = line(2, bandwidth_GBps=10, latency_us=0)
    for size_bytes, asked, alike in ((1000, 8, 10), (1024, 8, 8), (1000, 2, 2), (4 * 251, 8, 9), (4, 2, 2)):
        whole = next(
            load_method("greedy")(
                Problem(topology, collective("broadcast", 2, size_bytes, 4)), SearchContext.with_limit(60.0)
            )
        )
        assert whole is not None
        assert alike_pieces(whole, asked) == alike


def test_little_is_cut_where_it_brings_nothing() -> None:
    """Each of 4 GPUs sends to each through one switch: the links are full from start to end."""
    run, found = searched(star(4, bandwidth_GBps=10, latency_us=0), "alltoall", 64_000, 1500)
    cuts_s = sum(cut.worked_s for cut in run.cuts.made)
    assert 0 < len(run.cuts.made) < 12
    assert cuts_s < 0.1 * run.searches.worked_s * 2
    assert found[-1].finish_us == found[0].finish_us


def test_a_single_method_is_not_cut() -> None:
    topology, context = line(4, bandwidth_GBps=10, latency_us=0), SearchContext.with_limit(60.0, steps=100)
    run = Chunking(
        topology, lambda count: collective("broadcast", 4, 20_000, count), {"greedy": load_method("greedy")}, context
    )
    assert len(list(run.run())) > 1
    assert run.cuts.made == []
