"""The named problems of tests/cases.py: what each method reaches, against pencil and paper."""

from itertools import islice, pairwise

import pytest

from flowccl.bounds.lower_bound import lower_bound
from flowccl.demand.collectives import collective
from flowccl.errors import DemandError
from flowccl.methods.registry import load_method, methods_where
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.synthesis import synthesize
from flowccl.topology.topology import Node, Topology
from flowccl.units import us_to_ps
from flowccl.verifier.verify import verify
from tests.cases import CASES, Case, gpus, link, memory_not_mandatory, memory_star, memory_used, send
from tests.slow_replay import slow_replay

RUNS = 10


def by_greedy(case: Case) -> Schedule | None:
    """The best of a few runs of greedy."""
    found = islice(load_method("greedy")(Problem(case.topology, case.demand), SearchContext.with_limit(60.0)), RUNS)
    return min((schedule for schedule in found if schedule is not None), key=lambda s: s.finish_ps, default=None)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_greedy_meets_the_pencil(case):
    schedule = by_greedy(case)
    if case.greedy_us == "nothing":
        assert schedule is None
        return
    assert verify(schedule) == []
    assert slow_replay(schedule).kinds == set()
    assert schedule.finish_ps == us_to_ps(case.greedy_us or case.best_us), case.why


@pytest.mark.parametrize("case", [case for case in CASES if case.greedy_us != "nothing"], ids=str)
def test_synthesize_takes_the_demand_as_it_is_and_proves_its_finish(case):
    result = synthesize(case.topology, case.demand, method="greedy", steps=RUNS, gap=0.0)
    assert result.schedule.finish_ps == us_to_ps(case.greedy_us or case.best_us)
    assert result.schedule.demand == case.demand
    assert result.bound == lower_bound(case.topology, case.demand)
    optimal = case.bound_us is not None and us_to_ps(case.bound_us) == result.schedule.finish_ps
    assert result.status == ("optimal" if optimal else "feasible")


@pytest.mark.parametrize("method", methods_where(lambda info: info.baseline))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_classics_are_valid_and_never_better_than_the_best(case, method):
    steps = load_method(method)(Problem(case.topology, case.demand), SearchContext.with_limit(60.0))
    if method == "recursive-doubling" and case.demand.num_gpus == 3:
        with pytest.raises(DemandError, match="recursive-doubling needs a power of two of gpus, got 3"):
            next(steps)
        return
    if case.greedy_us == "nothing":
        with pytest.raises(DemandError, match=f"{method} knows no buffer limits: gpu1 holds 20 KB for others"):
            next(steps)
        return
    schedule = next(steps)
    assert verify(schedule) == []
    assert schedule.finish_ps >= us_to_ps(case.best_us)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_floor_is_the_pencil_floor_and_below_the_best(case):
    bound = lower_bound(case.topology, case.demand)
    assert 0 < bound.ps <= us_to_ps(case.best_us)
    if case.bound_us is not None:
        assert bound.ps == us_to_ps(case.bound_us)


def test_a_memory_is_visited_where_it_helps_and_only_there():
    used, unused = by_greedy(memory_used()), by_greedy(memory_not_mandatory())
    memory = len(used.topology.nodes) - 1
    assert sorted(used.timing.end_node.tolist()) == [1, 2, memory]
    assert sorted(unused.timing.end_node.tolist()) == [1]


def test_a_memory_that_cannot_reduce_still_passes_a_reduction_on():
    """A memory may hold a contribution, but not add to it: one after the other through the only way there is."""
    topology = memory_star(3)
    for method in ("direct", "ring", "tree"):
        result = synthesize(topology, "reduce", 10_000, method=method, chunks=1)
        memory = result.schedule.timing.end_node == 3
        assert not result.schedule.reduce[result.schedule.timing.end_transfer[memory]].any()


def test_classics_cross_a_long_row_of_store_and_forward_switches():
    """Twenty switches in a row take longer than a guess from one link would allow for."""
    row = [Node(name=f"switch{i}", kind="switch", crossing="store-and-forward") for i in range(20)]
    there = [0, *range(2, 22), 1]
    links = [link(a, b) for way in (there, there[::-1]) for a, b in pairwise(way)]
    topology = Topology("row", (*gpus(2), *row), tuple(links))
    demand = collective("allgather", 2, 20_000, 2)
    for method in methods_where(lambda info: info.baseline):
        schedule = next(load_method(method)(Problem(topology, demand), SearchContext.with_limit(60.0)))
        assert verify(schedule) == []
        assert schedule.finish_us == pytest.approx(21 * 0.5 + 21 * 0.5 + 0.5)


def test_classics_let_transfers_that_fit_share_a_limit():
    case = next(case for case in CASES if case.name == "a limit of 20 over two links of 10")
    schedule = next(load_method("direct")(Problem(case.topology, case.demand), SearchContext.with_limit(60.0)))
    assert schedule.start_ps.tolist() == [0, 0]


def test_auto_leaves_out_what_would_break_a_buffer_limit():
    """Through gpu1 it would be faster, but gpu1 has no room; the slow link beside it must do."""
    nodes = (Node(name="gpu0"), Node(name="gpu1", buffer_bytes=0), Node(name="gpu2"))
    links = (link(0, 1, latency_us=0), link(1, 2, latency_us=0), link(0, 2, GBps=1, latency_us=0))
    topology, demand = Topology("detour", nodes, links), send((10_000, 0, (2,)), gpus=3)
    result = synthesize(topology, demand, steps=5)
    assert result.schedule.finish_us == 10.0
    assert result.schedule.timing.end_node.tolist() == [2]
