"""The portfolio search: what it promises whatever the methods do."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from flowccl import synthesize
from flowccl.auto.chunk_counts import ChunkCounts
from flowccl.auto.params import AutoParams
from flowccl.auto.portfolio import portfolio
from flowccl.auto.search import PortfolioSearch
from flowccl.demand.collectives import collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.errors import DemandError, InputError
from flowccl.methods.registry import REGISTRY, load_method
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.budget import Budget
from flowccl.search.context import Method, SearchContext
from flowccl.synthesis.choice import leanest
from flowccl.topology.builders import full, ring
from flowccl.topology.machines import machine
from flowccl.verifier.verify import verify
from tests.strategies import topologies


def search(
    methods: dict[str, Method], *, steps: int | None = None, workers: int = 2, seconds: float = 60.0
) -> PortfolioSearch:
    counts = ChunkCounts(lambda count: collective("allgather", 4, 64_000, count), 1000, 400_000)
    return PortfolioSearch(ring(4), counts, methods, SearchContext.with_limit(seconds, steps=steps), workers)


def refuses(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    raise DemandError("not for this machine")
    yield None


def lies(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    schedule = next(load_method("direct")(problem, context))
    assert schedule is not None
    yield replace(schedule, start_ps=schedule.start_ps * 0)


def test_every_schedule_is_better_than_the_one_before_and_valid():
    found = list(search({name: load_method(name) for name in ("direct", "ring", "greedy")}, steps=40).run())
    assert [verify(one) for one in found] == [[]] * len(found)
    assert all(b.finish_ps < a.finish_ps for a, b in pairwise(found))


@pytest.mark.parametrize("names", [("direct",), ("direct", "greedy")])
def test_the_first_schedule_is_varied_after_other_methods_had_their_first_step(names):
    searched = search({name: load_method(name) for name in names}, steps=10)
    begun = []

    def after_round(best_ps: float) -> tuple[Schedule, ...]:
        begun.append({arm.name for arm in searched.arms})
        return ()

    searched.after_round = after_round
    assert list(searched.run())
    assert begun[0] == set(names)


def test_a_method_that_refuses_the_problem_is_dropped():
    found = list(search({"refuses": refuses, "direct": load_method("direct")}).run())
    assert found
    assert all(one.method.startswith("direct") for one in found)


def test_methods_near_the_best_run_first():
    """The time may end within a round. After its first step alone, tree is later than direct, and stays behind it."""
    searched = search({name: load_method(name) for name in ("tree", "direct")}, steps=9)
    began: list[tuple[str, int]] = []
    advance = searched._advance
    searched._advance = lambda arm, steps: began.append((arm.name, arm.count)) or advance(arm, steps)
    list(searched.run())
    assert began[:2] == [("tree", 1), ("direct", 1)]
    assert began.index(("direct", 2)) < began.index(("tree", 2))


def test_no_arm_more_than_doubles_its_steps_in_a_round():
    """The others wait for their next chunk count while one works."""
    searched = search({name: load_method(name) for name in ("greedy", "direct", "lns")}, steps=200)
    steps_of: list[tuple[int, int]] = []
    advance = searched._advance
    searched._advance = lambda arm, steps: steps_of.append((arm.taken, steps)) or advance(arm, steps)
    list(searched.run())
    assert all(steps <= max(taken, 1) for taken, steps in steps_of)
    assert max(steps for _, steps in steps_of) > 1


def test_methods_from_the_structure_of_the_machine_begin_before_the_searches():
    counts = ChunkCounts(lambda count: collective("allreduce", 16, 2**26, count), 4000, 400_000)
    methods = {name: load_method(name) for name in ("ring", "greedy", "lns", "hierarchical", "hierarchical-halves")}
    context = SearchContext.with_limit(100.0, steps=8)
    searched = PortfolioSearch(machine("dgx_a100:2"), counts, methods, context, useful_chunks=lambda name: 8)
    began: list[str] = []
    advance = searched._advance
    searched._advance = lambda arm, steps: began.append(arm.name) or advance(arm, steps)
    list(searched.run())
    first = list(dict.fromkeys(began))
    assert first[0] == "ring"  # alone, so that there is an answer early
    assert set(first[1:3]) == {"hierarchical", "hierarchical-halves"}


def test_a_quick_method_begins_beside_a_single_one_that_solves_a_program():
    """Two seconds on a dragonfly of 40 GPUs were over after `packed-trees`, and direct is four times as early."""
    searched = search({name: load_method(name) for name in ("greedy", "lns", "direct", "packed-trees")}, steps=4)
    began: list[str] = []
    advance = searched._advance
    searched._advance = lambda arm, steps: began.append(arm.name) or advance(arm, steps)
    list(searched.run())
    assert set(began[1:3]) == {"direct", "packed-trees"}


def test_a_long_step_leaves_time_while_others_wait_for_their_second_chunk_count():
    searched = search({name: load_method(name) for name in ("greedy", "direct")}, seconds=10.0)
    for count, part in ((1, 0.4), (2, 1.0)):
        for name in searched.methods:
            arm = searched.open(name, count)
            arm.taken, arm.first_s, arm.best_ps = 1, 0.1, 1000.0
        searched.best_ps = 1000.0
        assert searched._part(1.0) == part


class LongSteps:
    """An allreduce of 16 GPUs by methods whose step with n chunks takes n times some seconds of the budget."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit_s: float, step_s: float) -> None:
        self.now_s, self.step_s, self.began = 0.0, step_s, list[tuple[str, int]]()
        monkeypatch.setattr("flowccl.search.budget.time.monotonic", lambda: self.now_s)
        monkeypatch.setattr("flowccl.auto.search.thread_time", lambda: self.now_s)
        deliveries = 2 * 16 * 16  # and contributions, of 16 blocks
        traits = replace(REGISTRY["hierarchical"].traits, delivery_s=step_s / deliveries)
        for module in ("search", "state", "next_counts"):
            monkeypatch.setattr(f"flowccl.auto.{module}.traits_of", lambda name: traits)
        counts = ChunkCounts(lambda count: collective("allreduce", 16, 2**26, count), 4000, 400_000)
        methods = {name: self._timed(name) for name in ("hierarchical", "hierarchical-halves")}
        context = SearchContext(Budget(limit_s, should_stop=lambda: len(self.began) > 1, started=0.0, began=0.0))
        self.search = PortfolioSearch(machine("dgx_a100:2"), counts, methods, context, 1, lambda name: 2)

    def _timed(self, name: str) -> Method:
        def run(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
            self.began.append((name, problem.demand.pieces))
            self.now_s += self.step_s * problem.demand.pieces
            yield from load_method(name)(problem, SearchContext.with_limit(1e9))

        return run


def test_where_there_is_time_for_one_step_it_has_two_chunks(monkeypatch):
    """With one chunk nothing is reduced while something else is copied: a step with one chunk would be lost."""
    steps = LongSteps(monkeypatch, limit_s=25.0, step_s=10.0)
    next(steps.search.run())
    assert steps.began == [("hierarchical", 2)]


def test_where_time_is_short_two_chunks_of_the_first_method_go_before_other_methods(monkeypatch):
    steps = LongSteps(monkeypatch, limit_s=60.0, step_s=10.0)
    list(steps.search.run())
    assert steps.began[:2] == [("hierarchical", 1), ("hierarchical", 2)]


def test_where_there_is_time_every_method_begins_with_one_chunk(monkeypatch):
    steps = LongSteps(monkeypatch, limit_s=200.0, step_s=10.0)
    list(steps.search.run())
    assert steps.began[:2] == [("hierarchical", 1), ("hierarchical-halves", 1)]


def test_a_method_that_crashes_is_dropped_and_said(caplog):
    def crashes(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
        raise ValueError("low is greater than high")
        yield None

    assert list(search({"crashes": crashes, "direct": load_method("direct")}).run())
    assert "crashes is dropped: ValueError('low is greater than high')" in caplog.text


def test_a_method_alone_raises_its_error():
    with pytest.raises(DemandError, match="not for this machine"):
        list(search({"refuses": refuses}).run())


def test_an_invalid_schedule_is_dropped(caplog):
    found = list(search({"lies": lies, "ring": load_method("ring")}).run())
    assert found
    assert all(verify(one) == [] for one in found)
    assert "made an invalid schedule" in caplog.text


@pytest.mark.parametrize("steps", [1, 7, 30])
def test_counted_steps_give_the_same_schedule_with_one_thread_and_with_two(steps):
    methods = {name: load_method(name) for name in ("greedy", "direct", "reroute")}
    one, two = (list(search(methods, steps=steps, workers=workers).run())[-1] for workers in (1, 2))
    assert one.finish_ps == two.finish_ps
    assert one.start_ps.tobytes() == two.start_ps.tobytes()


def test_more_steps_are_never_later():
    methods = {name: load_method(name) for name in ("greedy", "direct", "reroute")}
    finishes = [list(search(methods, steps=steps).run())[-1].finish_ps for steps in (1, 5, 20, 60)]
    assert finishes == sorted(finishes, reverse=True)


def test_of_schedules_that_are_as_fast_the_one_with_the_fewest_transfers_is_returned():
    problem = Problem(full(4), collective("allgather", 4, 64_000))
    coarse = next(load_method("direct")(problem, SearchContext.with_limit(1.0)))
    fine = next(
        load_method("direct")(Problem(full(4), collective("allgather", 4, 64_000, 4)), SearchContext.with_limit(1.0))
    )
    assert coarse is not None
    assert fine is not None
    assert coarse.finish_ps == fine.finish_ps  # direct on a full mesh: chunks gain nothing
    assert leanest([coarse, fine], fine, 0.005) is coarse
    assert leanest([fine], fine, 0.005) is fine


def test_an_invalid_lean_schedule_is_passed_over():
    problem = Problem(full(4), collective("allgather", 4, 64_000))
    good = next(load_method("direct")(problem, SearchContext.with_limit(1.0)))
    assert good is not None
    bad = replace(good, start_ps=good.start_ps - 1)
    assert leanest([bad, good], good, 0.005) is good


def test_by_default_no_chunk_is_below_four_kilobytes():
    result = synthesize(machine("ndv2:2"), "allgather", 256_000, steps=60)
    assert result.schedule.demand.chunk_bytes.min() >= 4000


def test_smaller_chunks_on_request():
    result = synthesize(ring(4), "broadcast", 64_000, min_chunk_bytes=500, lean=0, steps=150, gap=0)
    assert result.schedule.demand.chunk_bytes.min() < 4000


def test_a_least_chunk_above_the_block_is_an_error():
    with pytest.raises(InputError, match="the smallest block has 16000 bytes, below the least chunk of 20000"):
        synthesize(ring(4), "allgather", 64_000, min_chunk_bytes=20_000)


@pytest.mark.parametrize("name", ["first_steps", "patience", "max_deliveries"])
def test_parameters_are_checked(name):
    with pytest.raises(InputError, match=f"AutoParams: {name} must be above 0, got 0"):
        AutoParams(**{name: 0})


@st.composite
def odd_demands(draw: st.DrawFn, gpus: int) -> Demand:
    """Chunks with any sources and destinations: reductions of some ranks for others, of different counts."""
    ranks = st.lists(st.integers(0, gpus - 1), min_size=1, max_size=gpus, unique=True)
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        sources, ends = draw(ranks), draw(ranks)
        if len(sources) == 1:
            ends = [rank for rank in ends if rank != sources[0]] or [(sources[0] + 1) % gpus]
        rows.append(Chunk(bytes=draw(st.integers(1, 5000)), sources=tuple(sources), destinations=tuple(ends)))
    return Demand.from_chunks("custom", gpus, rows)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_portfolio_never_raises(data):
    topology = data.draw(topologies())
    demand = data.draw(odd_demands(topology.num_gpus))
    try:
        demand.check_fits(topology)
    except DemandError:
        reject()
    assert portfolio(Problem(topology, demand))


def test_reductions_with_unequal_numbers_of_sources_are_no_allreduce():
    rows = [
        Chunk(bytes=100, sources=(0, 1, 2), destinations=(0, 1)),
        Chunk(bytes=100, sources=(0, 1), destinations=(0, 1, 2)),
    ]
    problem = Problem(full(3), Demand.from_chunks("custom", 3, rows))
    assert problem.allreduce_ranks is None
    assert portfolio(problem)
    assert verify(synthesize(full(3), problem.demand, steps=10).schedule) == []


def test_a_method_whose_first_step_takes_longer_than_what_is_left_is_left_out_and_named(monkeypatch):
    monkeypatch.setattr(
        "flowccl.auto.state.step_work_s", lambda name, demand, first, times=1.0: 1000.0 if name == "slow" else 0.1
    )
    methods: dict[str, Method] = {"slow": load_method("direct"), "greedy": load_method("greedy")}
    late = search(methods, seconds=2.0)
    assert list(late.run())
    rows = {row["method"]: row for row in late.methods_tried()}
    assert rows["slow"]["steps"] == 0
    assert rows["slow"]["ended"] == "left out: a first step takes about 1000 s"
    counted = search(methods, steps=10)
    assert list(counted.run())
    assert all(row["steps"] for row in counted.methods_tried())


def test_a_large_machine_begins_with_what_has_a_good_schedule_soon():
    topology = machine("dgx_h100:16")
    expected = {"allreduce": "hierarchical", "allgather": "hierarchical", "alltoall": "hierarchical"}
    for name, first in expected.items():
        assert portfolio(Problem(topology, collective(name, 128, 1_280_000)))[0] == first
