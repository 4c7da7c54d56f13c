"""Which searches get time."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np
import pytest

from flowccl import synthesize
from flowccl.auto.portfolio import portfolio
from flowccl.auto.search import Chunking
from flowccl.bounds.lower_bound import lower_bound
from flowccl.demand.collectives import alltoallv, collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.errors import DemandError
from flowccl.methods.registry import load_method
from flowccl.methods.reroute import RerouteSearch
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import Method, SearchContext
from flowccl.topology.files import read_machine
from flowccl.verifier.verify import verify


def test_methods_that_go_on_from_others_are_asked_where_those_are_best() -> None:
    """On the ladder the improver finds nothing and leaves it at once; behind it, it is asked at the best counts."""
    topology, asked = read_machine("ring:4"), []

    def improver(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
        demand = problem.demand
        asked.append(demand.pieces)
        while True:
            yield None

    methods = {"greedy": load_method("greedy"), "lns": improver}
    run = Chunking(
        topology,
        lambda count: collective("broadcast", 4, 10**6, count),
        methods,
        SearchContext.with_limit(60.0, steps=400),
    )
    assert list(run.run())
    assert asked[0] == 1
    assert len(asked) >= 4
    assert len(set(asked)) == len(asked)
    assert min(run.searches.all, key=lambda search: search.best_ps).count in asked[1:]


def test_who_goes_on_from_others_and_leads_goes_on_up_the_ladder() -> None:
    """100 MB for one of 32 GPUs: only many ways at once are near the floor, which greedy's ladder does not reach."""
    matrix = np.zeros((32, 32), dtype=np.int64)
    matrix[3, 17] = 10**8
    topology = read_machine("dgx_h100:4")
    found = synthesize(topology, lambda count: alltoallv(matrix, count), steps=400, time_limit_s=1000.0, gap=0.02)
    assert found.schedule.method == "lns"
    assert found.gap <= 0.02


def test_woven_says_what_it_goes_on_from() -> None:
    topology, demand, context = read_machine("ring:4"), collective("allgather", 4, 4000), SearchContext.with_limit(60.0)
    other = next(load_method("greedy")(Problem(topology, demand), context))
    assert other is not None
    context.incumbents.schedules[topology, demand] = other
    found = next(load_method("lns")(Problem(topology, demand), context))
    assert found is not None
    assert found.finish_ps <= other.finish_ps


def test_what_is_good_goes_on_for_seconds_only_where_little_gap_was_asked_for() -> None:
    topology, demand = read_machine("ring:4"), collective("allgather", 4, 4000)
    for gap, finish, enough in ((0.005, 1003, False), (0.005, 1000, True), (0.05, 1003, True)):
        context = SearchContext.with_limit(60.0, bound_ps=1000.0, good_ps=1000.0 * (1 + gap), best_ps=finish)
        run = Chunking(topology, lambda _: demand, {"greedy": load_method("greedy")}, context, all_first=True)
        run.steps, run.best_ps = 1, finish
        assert run._enough() is enough
        context.budget.started -= 10.0
        assert run._enough()


def test_what_is_close_goes_on_while_it_gets_better() -> None:
    """Two methods: it is enough after two seconds of work, or half as much as until then, that brought nothing."""
    topology, demand = read_machine("ring:4"), collective("allgather", 4, 4000)
    cases = ((0.5, 2.4, False), (0.5, 2.6, True), (6.0, 8.9, False), (6.0, 9.1, True))
    for (better_s, worked_s, enough), finish in itertools.product(cases, (1000.5, 1000.0)):
        context = SearchContext.with_limit(60.0, bound_ps=1000.0, good_ps=1005.0, best_ps=finish)
        methods = {name: load_method(name) for name in ("greedy", "reroute")}
        run = Chunking(topology, lambda _: demand, methods, context, all_first=True)
        run.steps, run.best_ps, run.better_s = 2, finish, better_s
        run.searches.new("greedy", 1).worked_s = worked_s * run.places
        assert run._enough() is (enough or finish == 1000.0)
        context.budget.started -= 10.0
        assert run._enough()


def test_for_a_hair_nothing_is_cut() -> None:
    """At 0.04 % something is cut where no gap was asked for, and nothing where 0.5 % was; at 0.06 % it is."""
    topology = read_machine("ring:4")
    for above, gap, cuts in ((1.0004, 0.005, 0), (1.0004, 0.0, 1), (1.0006, 0.005, 1)):
        run = Chunking(
            topology,
            lambda count: collective("broadcast", 4, 10**6, count),
            {name: load_method(name) for name in ("greedy", "direct")},
            SearchContext.with_limit(60.0, steps=40),
        )
        first = next(run.run())
        run.context.incumbents.bound_ps = run.best_ps / above
        run.context.budget.good_ps = run.context.incumbents.bound_ps * (1 + gap)
        run.searches.all[0].worked_s = 100.0
        assert first.finish_ps == run.best_ps
        assert len(run._cut()) == cuts


def test_routed_listens_only_when_it_has_ways_of_its_own() -> None:
    topology, demand = read_machine("ring:4"), collective("allgather", 4, 4000)
    other = next(load_method("lns")(Problem(topology, demand), SearchContext.with_limit(60.0)))
    assert other is not None
    search = RerouteSearch(topology, demand, 0)
    assert search.hear(other) is None
    search.step()
    search.best_ps = other.finish_ps + 1
    assert search.hear(other) is other


def test_the_program_over_time_is_for_few_chunks_with_one_destination() -> None:
    topology = read_machine("dgx1")
    assert "lp-quick" in portfolio(topology, collective("alltoall", 8, 10**6))
    assert "lp-quick" not in portfolio(topology, collective("alltoall", 8, 10**6, 100))
    assert "lp-quick" not in portfolio(topology, collective("allgather", 8, 10**6))
    assert "lp-quick" not in portfolio(topology, collective("reduce_scatter", 8, 10**6))


def test_the_program_over_time_knows_when_links_are_needed() -> None:
    context = SearchContext.with_limit(60.0)
    topology, demand = read_machine("ring:5"), collective("alltoall", 5, 5 * 10**6)
    found = next(load_method("lp-quick")(Problem(topology, demand), context))
    assert found is not None
    assert verify(found) == []
    assert found.finish_ps <= 1.1 * lower_bound(topology, demand).ps
    assert context.notes == {}  # auto has nothing to say of epochs
    with pytest.raises(DemandError, match="lp-quick is for a time limit"):
        next(load_method("lp-quick")(Problem(topology, demand), SearchContext.with_limit(60.0, steps=3)))


def test_an_unlucky_rung_does_not_end_the_ladder_for_good() -> None:
    """A method whose rungs 3, 4 and 6 are no better than 2 leaves the ladder; later 8 chunks are tried and are best."""
    topology = read_machine("ring:4")
    good = {count: schedule for count in (1, 2, 8) if (schedule := _greedy(count)) is not None}

    def moody(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
        topology, demand = problem.topology, problem.demand
        best = next(load_method("greedy")(Problem(topology, demand), context))
        yield best if demand.pieces in good else _slowed(best)
        while True:
            yield None

    methods = {"moody": moody, "direct": load_method("direct")}
    run = Chunking(
        topology,
        lambda count: collective("broadcast", 4, 10**6, count),
        methods,
        SearchContext.with_limit(60.0, steps=60),
    )
    assert list(run.run())[-1].demand.pieces == 8


@dataclass
class _Told(SearchContext):
    """A context that goes on when it is told to."""

    now: float = 0.0

    @property
    def elapsed_s(self) -> float:
        return self.now


@pytest.mark.parametrize("cost_s", [0.002, 0.01, 0.1])
def test_with_more_time_a_search_begins_as_with_less(cost_s: float) -> None:
    """What is tried in the first half of the time does not depend on whether there is a second."""
    less, more = _begun(10.0, cost_s), _begun(20.0, cost_s)
    assert _same(less, more) >= 0.8 * len(less)  # at the end nothing begins that would take too long
    assert len({count for _, count in more}) > len({count for _, count in less}) > 3


def test_near_the_floor_whom_every_rung_helps_leaves_some_out() -> None:
    """Four rungs in a row help up to 32 chunks: then it goes on with powers of two, but not one that is alone."""
    both, alone = ("greedy", "other"), ("greedy",)
    cases = ((both, 1e12), (both, 0.0), (alone, 1e12))
    near, far, one = ({n for _, n in _begun(4.0, 0.002, names=names, bound_ps=floor)} for names, floor in cases)
    assert near & {48, 64, 96, 128} == {64, 128}
    assert far >= {48, 64, 96}
    assert one >= {48, 64, 96}


def test_a_slower_computer_tries_the_same_but_less_of_it() -> None:
    slower, faster = _begun(2.0, 0.003), _begun(2.0, 0.001)
    assert _same(slower, faster) >= 0.8 * len(slower)
    assert len(faster) > len(slower)


def test_a_computer_with_moods_tries_the_same() -> None:
    steady, moody = _begun(2.0, 0.002), _begun(2.0, 0.002, moods=(0.5, 2.0, 1.0, 0.7))
    assert _same(steady, moody) >= 0.8 * min(len(steady), len(moody))


def _same(some: list[tuple[str, int]], others: list[tuple[str, int]]) -> int:
    """How many of them begin alike."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(some, others, strict=False))))


def _begun(
    limit_s: float,
    cost_s: float,
    moods: tuple[float, ...] = (1.0,),
    names: tuple[str, ...] = ("greedy", "other"),
    bound_ps: float = 0.0,
) -> list[tuple[str, int]]:
    """Which searches make steps, if a step takes so long for each chunk, longer or shorter by the computer's mood."""
    context, begun = _Told(limit_s, bound_ps=bound_ps), list[tuple[str, int]]()

    def method_of(name: str, slower: float) -> Method:
        def steps(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
            demand = problem.demand
            while True:
                begun.append((name, demand.pieces))
                mood = moods[len(begun) % len(moods)]
                context.UNKNOWN_now += mood * slower * cost_s * demand.pieces  # type: ignore[attr-defined]
                yield _greedy(demand.pieces)

        return steps

    methods = {name: method_of(name, slower) for name, slower in zip(names, (1.0, 1.3), strict=False)}
    run = Chunking(read_machine("ring:4"), lambda n: collective("broadcast", 4, 10**6, n), methods, context, workers=1)
    assert list(run.run())
    return begun


def _greedy(count: int) -> Schedule | None:
    return next(
        load_method("greedy")(
            Problem(read_machine("ring:4"), collective("broadcast", 4, 10**6, count)), SearchContext.with_limit(60.0)
        )
    )


def _slowed(schedule: Schedule | None) -> Schedule | None:
    """The same, ten times as late."""
    if schedule is None:
        return None
    return replace(schedule, start_ps=schedule.start_ps + 9 * schedule.finish_ps)


def test_a_demand_that_loses_bytes_in_more_chunks_is_refused() -> None:
    """99,999 bytes in 2 chunks of 49,999: the floor of the one would not hold for the other."""

    def loses(count: int) -> Demand:
        rows = [Chunk(bytes=99_999 // count, sources=(0,), destinations=(2,)) for _ in range(count)]
        return Demand.from_chunks("custom", 4, rows, pieces=count)

    words = "custom: in [0-9]+ chunks per block it has [0-9]+ bytes, in 1 it has 99999; all must have the same"
    with pytest.raises(DemandError, match=words):
        synthesize(read_machine("ring:4"), loses, steps=200, time_limit_s=60.0, gap=0.0)
