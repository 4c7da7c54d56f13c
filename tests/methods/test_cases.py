"""The named problems of tests/cases.py: completion times of the methods against known values."""

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
    """The best schedule of a few runs of greedy."""
    found = islice(load_method("greedy")(Problem(case.topology, case.demand), SearchContext.with_limit(60.0)), RUNS)
    return min((schedule for schedule in found if schedule is not None), key=lambda s: s.finish_ps, default=None)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_greedy_reaches_the_expected_completion_time(case):
    schedule = by_greedy(case)
    if case.greedy_us == "nothing":
        assert schedule is None
        return
    assert verify(schedule) == []
    assert schedule.rate_GBps.any() or slow_replay(schedule).kinds == set()
    assert schedule.finish_ps == us_to_ps(case.greedy_us or case.best_us), case.why


@pytest.mark.parametrize("case", [case for case in CASES if case.greedy_us != "nothing"], ids=str)
def test_synthesize_keeps_the_demand_and_proves_its_bound(case):
    result = synthesize(case.topology, case.demand, method="greedy", steps=RUNS, gap=0.0)
    assert result.schedule.finish_ps == us_to_ps(case.greedy_us or case.best_us)
    assert result.schedule.demand == case.demand
    assert result.bound == lower_bound(case.topology, case.demand)
    optimal = case.bound_us is not None and us_to_ps(case.bound_us) == result.schedule.finish_ps
    assert result.status == ("optimal" if optimal else "feasible")


@pytest.mark.parametrize("method", methods_where(lambda info: info.baseline))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_baselines_are_valid_and_never_beat_the_optimum(case, method):
    steps = load_method(method)(Problem(case.topology, case.demand), SearchContext.with_limit(60.0))
    if method == "recursive-doubling" and case.demand.num_gpus == 3:
        with pytest.raises(
            DemandError, match="method recursive-doubling needs a power of two as the number of GPUs; got 3"
        ):
            next(steps)
        return
    if case.greedy_us == "nothing":
        with pytest.raises(
            DemandError, match=f"method {method} exceeds a buffer limit: gpu1 buffers 20 KB for other GPUs"
        ):
            next(steps)
        return
    schedule = next(steps)
    assert verify(schedule) == []
    assert schedule.finish_ps >= us_to_ps(case.best_us)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_lower_bound_is_the_expected_one_and_at_most_the_optimum(case):
    bound = lower_bound(case.topology, case.demand)
    assert 0 < bound.ps <= us_to_ps(case.best_us)
    if case.bound_us is not None:
        assert bound.ps == us_to_ps(case.bound_us)


def test_a_memory_is_used_only_where_it_helps():
    used, unused = by_greedy(memory_used()), by_greedy(memory_not_mandatory())
    memory = len(used.topology.nodes) - 1
    assert sorted(used.timing.end_node.tolist()) == [1, 2, memory]
    assert sorted(unused.timing.end_node.tolist()) == [1]


def test_a_memory_that_cannot_reduce_still_relays_contributions():
    """A memory may store a contribution but not reduce it: the contributions pass the only path one by one."""
    topology = memory_star(3)
    for method in ("direct", "ring", "tree"):
        result = synthesize(topology, "reduce", 10_000, method=method, chunks=1)
        memory = result.schedule.timing.end_node == 3
        assert not result.schedule.reduce[result.schedule.timing.end_transfer[memory]].any()


def test_baselines_cross_a_long_row_of_store_and_forward_switches():
    """Twenty switches in a row take longer than an estimate from one link."""
    row = [Node(name=f"switch{i}", kind="switch", crossing="store-and-forward") for i in range(20)]
    there = [0, *range(2, 22), 1]
    links = [link(a, b) for path in (there, there[::-1]) for a, b in pairwise(path)]
    topology = Topology("row", (*gpus(2), *row), tuple(links))
    demand = collective("allgather", 2, 20_000, 2)
    for method in methods_where(lambda info: info.baseline):
        schedule = next(load_method(method)(Problem(topology, demand), SearchContext.with_limit(60.0)))
        assert verify(schedule) == []
        assert schedule.finish_us == pytest.approx(21 * 0.5 + 21 * 0.5 + 0.5)


def test_baselines_let_transfers_share_a_limit():
    case = next(case for case in CASES if case.name == "a limit of 20 over two links of 10")
    schedule = next(load_method("direct")(Problem(case.topology, case.demand), SearchContext.with_limit(60.0)))
    assert schedule.start_ps.tolist() == [0, 0]


def test_auto_skips_methods_that_exceed_a_buffer_limit():
    """The path through gpu1 is faster, but gpu1 has no buffer space; the slow direct link must be used."""
    nodes = (Node(name="gpu0"), Node(name="gpu1", buffer_bytes=0), Node(name="gpu2"))
    links = (link(0, 1, latency_us=0), link(1, 2, latency_us=0), link(0, 2, GBps=1, latency_us=0))
    topology, demand = Topology("detour", nodes, links), send((10_000, 0, (2,)), gpus=3)
    result = synthesize(topology, demand, steps=5)
    assert result.schedule.finish_us == 10.0
    assert result.schedule.timing.end_node.tolist() == [2]
