"""Which piece of a block is on the full link."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowccl import synthesize
from flowccl.auto.balance import can_level, level
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


def _two_ways() -> Topology:
    """From gpu0 to gpu1 by gpu2 or by gpu3: 1 GB/s, 1 us each."""
    pairs = ((0, 2), (2, 1), (0, 3), (3, 1))
    links = [Link(src=a, dst=b, bandwidth_GBps=1.0, latency_us=1.0) for a, b in pairs]
    return Topology("two ways", tuple(Node(name=f"gpu{i}") for i in range(4)), tuple(links))


def _lopsided() -> Schedule:
    """Pieces of 3, 2, 3 and 2 bytes: both long ones on the first way."""
    demand = Demand.from_chunks("custom", 4, [Chunk(bytes=n, sources=(0,), destinations=(1,)) for n in (3, 2, 3, 2)])
    ways = Routes.from_lists([[0], [1], [2], [3]])
    chunk, route = np.array([0, 0, 2, 2, 1, 1, 3, 3]), np.array([0, 1, 0, 1, 2, 3, 2, 3])
    held, kept = np.array([3, 2]) * 1000, 1_000_000
    starts = [[first, first + hold + kept] for hold in held for first in (0, hold)]
    none = np.zeros(8, dtype=np.bool_)
    return Schedule(_two_ways(), demand, ways, chunk, route, np.concatenate(starts), none, "by hand")


def test_two_long_pieces_on_one_way_change_places_with_short_ones() -> None:
    """On two hops 3 and then 3 bytes take 2 us and 3 + 3 + 3 ns; 2 and then 3, with the order as it was, 2 + 3 + 3."""
    before = _lopsided()
    assert verify(before) == []
    after = level(before, SearchContext.with_limit(60.0))
    assert after is not None
    assert verify(after) == []
    assert (before.finish_ps, after.finish_ps) == (2_009_000, 2_008_000)
    assert sorted(after.demand.chunk_bytes[after.chunk[after.route == 0]]) == [2, 3]


def test_without_time_nothing_is_exchanged() -> None:
    assert level(_lopsided(), SearchContext.with_limit(0.0)) is None


def test_what_is_level_stays_as_it_is() -> None:
    once = level(_lopsided(), SearchContext.with_limit(60.0))
    assert once is not None
    assert level(once, SearchContext.with_limit(60.0)) is None


@pytest.mark.parametrize("size", [10**6, 64 * 10**6, 10**9])
def test_the_last_bytes_of_an_alltoall(size: int) -> None:
    """In 3 chunks on a DGX1 the ways are as good as the floor, but for bytes that do not divide by 3."""
    topology, demand = read_machine("dgx1"), collective("alltoall", 8, size, 3)
    before = next(load_method("reroute")(Problem(topology, demand), SearchContext.with_limit(60.0)))
    assert before is not None
    after = level(before, SearchContext.with_limit(60.0))
    assert after is not None
    assert verify(after) == []
    bound_ps = lower_bound(topology, demand).ps
    assert bound_ps < after.finish_ps < before.finish_ps
    assert after.finish_ps <= bound_ps + 20  # a byte takes 20 ps on the fastest links


def test_auto_takes_care_of_the_last_bytes() -> None:
    found = synthesize(read_machine("dgx1"), "alltoall", 10**6, steps=120, gap=0.0)
    assert found.schedule.finish_ps <= found.bound.ps + 20


def test_nothing_to_exchange() -> None:
    topology, context = read_machine("ring:4"), SearchContext.with_limit(60.0)
    even, odd = (collective("alltoall", 4, size, 2) for size in (4 * 1000, 4 * 1001))
    sums = collective("reduce_scatter", 4, 4 * 1001, 2)
    found = [next(load_method("greedy")(Problem(topology, demand), context)) for demand in (even, odd, sums)]
    assert [one is not None and can_level(one) for one in found] == [False, True, False]
    assert found[1] is not None
    assert not can_level(
        replace(found[1], chunk=np.zeros(0), route=np.zeros(0), start_ps=np.zeros(0), reduce=np.zeros(0))
    )


@given(topologies(), st.sampled_from(["allgather", "alltoall"]), st.integers(7, 5000), st.integers(2, 4))
@settings(max_examples=40, deadline=None)
def test_on_random_machines_it_is_earlier_or_nothing(topology: Topology, name: str, size: int, count: int) -> None:
    demand = collective(name, topology.num_gpus, size * topology.num_gpus, count)
    before = next(load_method("greedy")(Problem(topology, demand), SearchContext.with_limit(60.0)))
    assert before is not None
    if not can_level(before):
        return
    after = level(before, SearchContext.with_limit(60.0))
    if after is not None:
        assert verify(after) == []
        assert after.finish_ps < before.finish_ps
