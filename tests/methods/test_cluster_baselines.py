"""Multi-rail rings and double binary trees: their shapes, and completion times known by hand."""

from collections import Counter

import pytest

from flowccl import machine, synthesize, with_faults
from flowccl.analysis.compare import HALVES, compare, halves_us
from flowccl.methods.cluster_baselines import _rail_rings, hosts_of, two_trees
from flowccl.topology.neighbours import neighbours


@pytest.mark.parametrize("count", [*range(1, 20), 64, 100])
def test_two_trees_reach_every_node_once_and_share_the_inner_nodes(count: int) -> None:
    trees = two_trees(count)
    children = [Counter(parent for parent, _ in tree) for tree in trees]
    for tree, sons in zip(trees, children, strict=True):
        assert sorted(child for _, child in tree) == list(range(1, count))
        reached = {0}
        for parent, child in tree:  # a parent comes before its children
            assert parent in reached
            reached.add(child)
        assert all(sons[node] <= (1 if node == 0 else 2) for node in range(count))
    both = [node for node in range(1, count) if children[0][node] and children[1][node]]
    assert len(both) <= 1
    assert max((children[0] + children[1]).values(), default=0) <= 3


def test_rings_use_every_nic_once_in_each_direction() -> None:
    topology = machine("dgx_a100:4")
    hosts = hosts_of(topology, 32)
    rings = _rail_rings(neighbours(topology, 1), hosts)
    assert [sorted(ring) for ring in rings] == [list(range(32))] * 8
    hops = [hop for ring in rings for hop in zip(ring, [*ring[1:], ring[0]], strict=True)]
    between = [(a, b) for a, b in hops if a // 8 != b // 8]
    assert all(a % 8 == b % 8 for a, b in between)  # on one rail
    assert Counter(a for a, _ in between) == Counter(b for _, b in between) == dict.fromkeys(range(32), 1)


def test_a_ring_less_for_a_lost_nic() -> None:
    topology = with_faults(machine("dgx_a100:2"), without=["gpu3 <-> rail3"])
    rings = _rail_rings(neighbours(topology, 1), hosts_of(topology, 16))
    assert len(rings) == 7
    ends = {(a, b) for ring in rings for a, b in zip(ring, [*ring[1:], ring[0]], strict=True) if a // 8 != b // 8}
    assert not {3, 11} & {rank for pair in ends for rank in pair}


def test_completion_time_of_the_rings_by_hand() -> None:
    """15/16 of the data crosses between two hosts on 8 NICs of 25 GB/s, twice for an allreduce."""
    topology = machine("dgx_a100:2:nic_latency=0us:nvlink_latency=0us")
    once = 320e6 * 15 / 16 / 8 / 25e3
    for collective, times in (("allgather", 1), ("allreduce", 2)):
        result = synthesize(topology, collective, 320_000_000, method="multi-ring", chunks=16, time_limit_s=5)
        assert times * once <= result.schedule.finish_us < 1.1 * times * once


def test_one_way_around_a_ring_machine() -> None:
    """On a ring of 4 GPUs, each link carries 3/8 of the data in each direction."""
    result = synthesize(machine("ring:4:latency=0us"), "allgather", 8_000_000, method="multi-ring", time_limit_s=2)
    assert result.schedule.finish_us == pytest.approx(3e6 / 25e3, rel=0.05)


def test_completion_time_of_the_tree_by_hand() -> None:
    """16 us to the root of the tree, then 16 us to each of its two children; 1 us for every link."""
    result = synthesize(machine("star:4:latency=1us"), "broadcast", 400_000, method="double-binary-tree", chunks=1)
    assert result.schedule.finish_us == pytest.approx(3 * 16 + 4)


def test_reduce_scatter_and_allgather_as_a_column() -> None:
    topology = machine("ring:4")
    assert halves_us(topology, "allgather", 1_000_000, time_limit_s=1) is None
    (row,) = compare(topology, "allreduce", [1_000_000], ["auto", HALVES], time_limit_s=1)
    parts = [
        synthesize(topology, part, 1_000_000, time_limit_s=0.5).schedule.finish_us
        for part in ("reduce_scatter", "allgather")
    ]
    assert row.finish_us[HALVES] == pytest.approx(sum(parts), rel=0.05)
    (row,) = compare(topology, "allgather", [1_000_000], ["auto", HALVES], time_limit_s=1)
    assert row.finish_us[HALVES] is None
