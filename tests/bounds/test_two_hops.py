"""The bound of an allreduce whose data is passed on: known values, and never above a schedule."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowccl.bounds.commodities import Commodities
from flowccl.bounds.lower_bound import lower_bound
from flowccl.bounds.two_hops import two_hops_bound_ps
from flowccl.demand.collectives import collective
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.search.context import SearchContext
from flowccl.topology.files import read_machine
from flowccl.verifier.verify import verify


def test_a_switch_that_reduces_takes_two_hops() -> None:
    topology = read_machine("gb200_nvl72:1")
    bound = lower_bound(topology, collective("allreduce", 72, 64_000))
    assert bound.kind == "two hops"
    assert bound.witness == (
        "what a GPU receives and passes on arrives after 1.4 us by latency, and most of 64 KB must still cross into"
        " every GPU then: all else is contributions of single GPUs"
    )
    assert 1.4 < bound.us < 1.4 + 64 / 900


def test_two_gpus_by_hand() -> None:
    """Each sends its contribution to the other: one hop is enough, and two links carry a byte in both directions."""
    topology = read_machine("full:2:bandwidth=10GB/s:latency=1us")
    found = two_hops_bound_ps(Commodities.of(collective("allreduce", 2, 40_000), topology))
    assert found is not None
    assert found[0] == pytest.approx(2e6)  # 40 KB to each of two, over links that count at both ends


def test_three_gpus_by_hand() -> None:
    """T solves 2 x 3 x (S - 20 (T - 2)) = 60 x 2 T, in KB and us, where S is 1 MB."""
    topology = read_machine("full:3:bandwidth=10GB/s:latency=1us")
    found = two_hops_bound_ps(Commodities.of(collective("allreduce", 3, 1_000_000), topology))
    assert found is not None
    assert found[0] == pytest.approx((6000 + 240) / 240 * 1e6)


def test_the_overhead_of_the_second_hop_may_be_hidden() -> None:
    """Links with an overhead of 3 us lead to a switch: a hop takes 5 us, then data enters after 2 us more."""
    star = read_machine("star:4:bandwidth=10GB/s:latency=1us")
    links = [replace(link, overhead_us=3.0) if star.stores[link.src] else link for link in star.links]
    demand = collective("allreduce", 4, 1_000_000)
    found = two_hops_bound_ps(Commodities.of(demand, replace(star, links=tuple(links))))
    assert found is not None
    assert found[1] == 7e6
    full = read_machine("full:4:bandwidth=10GB/s:latency=1us")
    links = [replace(link, overhead_us=3.0) for link in full.links]  # nothing can be slower behind the same link
    found = two_hops_bound_ps(Commodities.of(demand, replace(full, links=tuple(links))))
    assert found is not None
    assert found[1] == 8e6


@pytest.mark.parametrize("name", ["allgather", "reduce_scatter", "alltoall", "reduce"])
def test_other_collectives_have_no_such_bound(name: str) -> None:
    topology = read_machine("full:4")
    assert two_hops_bound_ps(Commodities.of(collective(name, 4, 1000), topology)) is None


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(["dgx_h100:1", "full:4", "star:5", "ring:4", "dgx1"]), st.integers(8, 300_000))
def test_no_schedule_is_earlier(name: str, size: int) -> None:
    topology = read_machine(name)
    demand = collective("allreduce", topology.num_gpus, size)
    found = two_hops_bound_ps(Commodities.of(demand, topology))
    assert found is not None
    problem = Problem(topology, demand)
    for method in ("greedy", "one-shot", "ring", "direct"):
        schedule = next(load_method(method)(problem, SearchContext.with_limit(60)), None)
        if schedule is not None:
            assert verify(schedule) == []
            assert schedule.finish_ps >= found[0] * (1 - 1e-9)
