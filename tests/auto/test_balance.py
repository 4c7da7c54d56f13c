"""Balancing: which chunk of a block uses the bottleneck link."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowccl import synthesize
from flowccl.auto.balance import balance, can_balance
from flowccl.bounds.lower_bound import lower_bound
from flowccl.demand.collectives import collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.files import read_machine
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Link, Node, Topology
from flowccl.verifier.verify import verify
from tests.strategies import topologies


def _two_paths() -> Topology:
    """From gpu0 to gpu1 through gpu2 or gpu3: 1 GB/s, 1 us each."""
    pairs = ((0, 2), (2, 1), (0, 3), (3, 1))
    links = [Link(src=a, dst=b, bandwidth_GBps=1.0, latency_us=1.0) for a, b in pairs]
    return Topology("two paths", tuple(Node(name=f"gpu{i}") for i in range(4)), tuple(links))


def _unbalanced() -> Schedule:
    """Chunks of 3, 2, 3 and 2 bytes: both large chunks are on the first path."""
    demand = Demand.from_chunks("custom", 4, [Chunk(bytes=n, sources=(0,), destinations=(1,)) for n in (3, 2, 3, 2)])
    routes = Routes.from_lists([[0], [1], [2], [3]])
    chunk, route = np.array([0, 0, 2, 2, 1, 1, 3, 3]), np.array([0, 1, 0, 1, 2, 3, 2, 3])
    busy_ps, latency_ps = np.array([3, 2]) * 1000, 1_000_000
    starts = [[first, first + busy + latency_ps] for busy in busy_ps for first in (0, busy)]
    none = np.zeros(8, dtype=np.bool_)
    return Schedule(_two_paths(), demand, routes, chunk, route, np.concatenate(starts), none, "manual")


def test_a_large_chunk_on_the_bottleneck_path_is_swapped_with_a_small_one() -> None:
    """On two hops, 3 and then 3 bytes take 2 us and 3 + 3 + 3 ns; 2 and then 3 bytes, in the same order, 2 + 3 + 3."""
    before = _unbalanced()
    assert verify(before) == []
    after = balance(before, SearchContext.with_limit(60.0))
    assert after is not None
    assert verify(after) == []
    assert (before.finish_ps, after.finish_ps) == (2_009_000, 2_008_000)
    assert sorted(after.demand.chunk_bytes[after.chunk[after.route == 0]]) == [2, 3]


def test_without_time_nothing_is_swapped() -> None:
    assert balance(_unbalanced(), SearchContext.with_limit(0.0)) is None


def test_a_balanced_schedule_is_not_changed() -> None:
    once = balance(_unbalanced(), SearchContext.with_limit(60.0))
    assert once is not None
    assert balance(once, SearchContext.with_limit(60.0)) is None


@pytest.mark.parametrize("size", [10**6, 64 * 10**6, 10**9])
def test_the_last_bytes_of_an_alltoall(size: int) -> None:
    """With 3 chunks on a DGX1 the paths reach the lower bound, except for sizes that are not a multiple of 3."""
    topology, demand = read_machine("dgx1"), collective("alltoall", 8, size, 3)
    before = next(load_method("reroute")(Problem(topology, demand), SearchContext.with_limit(60.0)))
    assert before is not None
    after = balance(before, SearchContext.with_limit(60.0))
    assert after is not None
    assert verify(after) == []
    bound_ps = lower_bound(topology, demand).ps
    assert bound_ps < after.finish_ps < before.finish_ps
    assert after.finish_ps <= bound_ps + 20  # a byte takes 20 ps on the fastest links


def test_auto_balances_the_last_bytes() -> None:
    found = synthesize(read_machine("dgx1"), "alltoall", 10**6, steps=120, gap=0.0)
    assert found.schedule.finish_ps <= found.bound.ps + 20


def test_nothing_to_swap() -> None:
    topology, context = read_machine("ring:4"), SearchContext.with_limit(60.0)
    even, odd = (collective("alltoall", 4, size, 2) for size in (4 * 1000, 4 * 1001))
    reduction = collective("reduce_scatter", 4, 4 * 1001, 2)
    found = [next(load_method("greedy")(Problem(topology, demand), context)) for demand in (even, odd, reduction)]
    assert [one is not None and can_balance(one) for one in found] == [False, True, False]
    assert found[1] is not None
    assert not can_balance(
        replace(found[1], chunk=np.zeros(0), route=np.zeros(0), start_ps=np.zeros(0), reduce=np.zeros(0))
    )


@given(topologies(), st.sampled_from(["allgather", "alltoall"]), st.integers(7, 5000), st.integers(2, 4))
@settings(max_examples=40, deadline=None)
def test_on_random_machines_the_result_is_earlier_or_none(topology: Topology, name: str, size: int, count: int) -> None:
    demand = collective(name, topology.num_gpus, size * topology.num_gpus, count)
    before = next(load_method("greedy")(Problem(topology, demand), SearchContext.with_limit(60.0)))
    assert before is not None
    if not can_balance(before):
        return
    after = balance(before, SearchContext.with_limit(60.0))
    if after is not None:
        assert verify(after) == []
        assert after.finish_ps < before.finish_ps
