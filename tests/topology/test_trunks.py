"""Trunks: fast links between switches that carry several transfers at once."""

from dataclasses import replace

import numpy as np
import pytest

from flowccl import synthesize
from flowccl.adapters.trunks import on_lanes
from flowccl.demand.collectives import alltoall, collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.schedule.generation.serial import fits
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift
from flowccl.topology.builders import ring
from flowccl.topology.machines import machine
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Link, Node, Topology
from flowccl.topology.trunks import merge_lanes, peak_rates_GBps, split_trunks
from flowccl.verifier.verify import verify


def dumbbell(gpus: int = 4, trunk_GBps: float = 100.0, lanes: int = 1, port_GBps: float = 50.0) -> Topology:
    """Half of the GPUs on each of two switches, which one trunk joins in each direction, written as some links."""
    half = gpus // 2
    nodes = [Node(name=f"gpu{i}") for i in range(gpus)]
    nodes += [Node(name=name, kind="switch") for name in ("left", "right")]
    links = []
    for rank in range(gpus):
        leaf = gpus + rank // half
        links += [Link(src=a, dst=b, bandwidth_GBps=port_GBps) for a, b in ((rank, leaf), (leaf, rank))]
    for a, b in ((gpus, gpus + 1), (gpus + 1, gpus)):
        links += [Link(src=a, dst=b, bandwidth_GBps=trunk_GBps / lanes, latency_us=1.0)] * lanes
    return Topology("dumbbell", tuple(nodes), tuple(links))


def crossing(topology: Topology, starts: list[int]) -> Schedule:
    """Chunks of 50 KB from gpu 0, 1, ... to gpu 2, 3, ..., each 1 us long at 50 GB/s, all over the trunk."""
    half, trunk = topology.num_gpus // 2, 2 * topology.num_gpus
    rows = [Chunk(bytes=50_000, sources=(rank,), destinations=(rank + half,)) for rank in range(len(starts))]
    demand = Demand.from_chunks("custom", topology.num_gpus, rows)
    routes = Routes.from_lists([[2 * rank, trunk, 2 * (rank + half) + 1] for rank in range(len(starts))])
    numbers = np.arange(len(starts))
    return Schedule(topology, demand, routes, numbers, numbers, np.array(starts), np.zeros(len(starts), dtype=bool))


def test_two_transfers_of_half_the_rate_share_a_trunk():
    both = crossing(dumbbell(), [0, 0])
    assert verify(both) == []
    assert fits(both)
    assert both.finish_us == pytest.approx(2.0)  # 1 us of bytes, 1 us of latency


def test_a_third_transfer_is_too_much():
    topology = dumbbell(gpus=6)
    violations = verify(crossing(topology, [0, 0, 0]))
    assert [violation.kind for violation in violations] == ["link"]
    assert "link 12 (left -> right), 100 GB/s, carries 150 GB/s at 0 us, by transfers 0, 1, 2" in str(violations[0])
    assert not fits(crossing(topology, [0, 0, 0]))
    assert verify(crossing(topology, [0, 0, 1_000_000])) == []


def test_a_trunk_of_less_than_twice_the_rate_carries_one_transfer_at_a_time():
    assert verify(crossing(dumbbell(trunk_GBps=99.0), [0, 0])) != []
    assert split_trunks(dumbbell(trunk_GBps=99.0)) is None


def test_left_shift_keeps_what_shares_a_trunk_side_by_side():
    late = crossing(dumbbell(gpus=6), [5_000_000, 5_000_000, 6_000_000])
    early = left_shift(late)
    assert early.start_ps.tolist() == [0, 0, 1_000_000]
    assert verify(early) == []


def test_the_peak_rate_of_a_trunk_is_that_of_the_widest_route():
    assert peak_rates_GBps(dumbbell(trunk_GBps=400.0)).tolist() == [50.0] * 10
    assert peak_rates_GBps(dumbbell(trunk_GBps=10.0)).tolist() == [50.0] * 8 + [10.0] * 2


def test_a_trunk_is_split_into_as_many_lanes_as_transfers_fit():
    lanes = split_trunks(dumbbell(trunk_GBps=410.0))
    assert lanes is not None
    assert len(lanes.topology.links) == 8 + 2 * 8
    assert lanes.link.tolist() == [*range(8), *[8] * 8, *[9] * 8]
    assert lanes.topology.link_GBps[8:].sum() == pytest.approx(2 * 410.0)


@pytest.mark.parametrize("name", ["dgx1", "dgx2:2", "dgx_h100:2", "dgx_a100:2", "mi250:2", "torus:4x4", "ndv2:4"])
def test_machines_with_equal_links_on_their_routes_have_no_trunks(name):
    assert split_trunks(machine(name)) is None
    assert split_trunks(ring(4)) is None


@pytest.mark.parametrize("collective_name", ["alltoall", "allgather", "allreduce"])
def test_one_fast_link_is_as_good_as_many_slow_ones(collective_name):
    one, many = (
        synthesize(dumbbell(8, 200.0, lanes), collective_name, 8_000_000, steps=60, gap=0.0) for lanes in (1, 4)
    )
    assert one.schedule.topology == dumbbell(8, 200.0)
    assert verify(one.schedule) == []
    assert one.schedule.finish_ps <= 1.005 * many.schedule.finish_ps  # within `lean`, the fewest transfers win
    assert one.gap < 0.25


@pytest.mark.parametrize("lanes", [1, 16])
def test_sources_take_turns_on_links_side_by_side(lanes):
    """A hash put several sources on one of the links: the gap was 74 %."""
    found = synthesize(dumbbell(32, 800.0, lanes), "alltoall", 2**26, method="direct", chunks=1, steps=1)
    assert found.gap < 0.05


def test_every_method_accepts_trunks():
    from flowccl.methods.registry import load_method
    from flowccl.problem import Problem
    from flowccl.search.context import SearchContext

    topology = dumbbell(4, 100.0)
    problem = Problem(topology, alltoall(4, 400_000))
    for name in ("greedy", "reroute", "lns", "direct", "ring"):
        schedule = next(load_method(name)(problem, SearchContext.with_limit(10.0)))
        assert schedule is not None
        assert schedule.topology == topology
        assert verify(schedule) == []


def test_limits_hold_for_all_lanes_together():
    from flowccl.topology.topology import Limit

    topology = replace(dumbbell(4, 100.0), limits=(Limit(name="cable", links=(8, 9), bandwidth_GBps=50.0),))
    lanes = split_trunks(topology)
    assert lanes is not None
    assert lanes.topology.limits[0].links == (8, 9, 10, 11)
    result = synthesize(topology, collective("allgather", 4, 400_000), steps=10)
    assert verify(result.schedule) == []


@pytest.mark.parametrize(("starts", "fitting"), [([0, 0, 1_000_000], True), ([0, 0, 999_999], False)])
def test_transfers_on_a_trunk_take_lanes_that_are_free(starts: list[int], fitting: bool):
    lanes = merge_lanes(dumbbell(gpus=6, lanes=2))
    assert lanes is not None
    found = on_lanes(crossing(lanes.original, starts), lanes)
    assert (found is not None) == fitting
    if found is not None:
        assert verify(found) == []
        assert len(set(found.routes.link[1::3].tolist())) == 2
