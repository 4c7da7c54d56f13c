"""The hierarchy that is found on machines."""

from dataclasses import replace

import pytest

from flowccl.topology.faults import with_faults
from flowccl.topology.hierarchy import hierarchy
from flowccl.topology.machines import machine
from flowccl.topology.topology import Topology
from tests.methods.test_hierarchical import leaf_and_spine, rails, with_bandwidth


def without_hosts(topology: Topology) -> Topology:
    return replace(topology, nodes=tuple(replace(node, host="") for node in topology.nodes))


def sizes(topology: Topology) -> list[list[int]]:
    return [[len(group) for group in level] for level in hierarchy(topology).levels]


@pytest.mark.parametrize("name", ["dgx1", "torus:4x4", "ring:8", "full:6"])
def test_machines_with_one_level(name):
    assert hierarchy(machine(name)).levels == ()


@pytest.mark.parametrize(
    ("name", "expected"), [("dgx_h100:3", [[8, 8, 8]]), ("dgx_a100:2", [[8, 8]]), ("ndv2:2", [[8, 8]])]
)
def test_hosts_are_a_level_with_and_without_their_names(name, expected):
    assert sizes(machine(name)) == expected
    assert sizes(without_hosts(machine(name))) == expected


def test_three_levels():
    found = hierarchy(without_hosts(leaf_and_spine()))
    assert [[len(group) for group in level] for level in found.levels] == [[16, 16], [8, 8, 8, 8]]
    assert found.group_of(0).tolist() == [0] * 16 + [1] * 16


def test_a_slow_link_is_no_level():
    assert sizes(with_bandwidth(rails(2, 8), "gpu3", "rail3", 12.5)) == [[8, 8]]


def test_names_of_hosts_that_are_joined_as_well_as_each_other_are_no_level():
    full = machine("full:6")
    nodes = tuple(replace(node, host=f"host{rank // 3}") for rank, node in enumerate(full.nodes))
    assert hierarchy(replace(full, nodes=nodes)).levels == ()


@pytest.mark.parametrize(
    ("oversubscription", "expected"),
    [(1, [[8, 8, 8, 8]]), (2, [[16, 16], [8, 8, 8, 8]]), (4, [[16, 16], [8, 8, 8, 8]])],
)
def test_leaf_switches_are_a_level_where_the_spine_is_oversubscribed(oversubscription, expected):
    fat_tree = machine(f"dgx_h100:4:network=fat-tree:leaf_hosts=2:oversubscription={oversubscription}")
    assert sizes(fat_tree) == expected
    assert sizes(with_faults(fat_tree, without=["gpu3 <-> leaf0"])) == expected  # its data goes over the other cards


@pytest.mark.parametrize("without", [[], ["leaf0 <-> spine0"]])
def test_leaf_switches_are_a_level_below_several_spines(without):
    """Each pair of GPUs may use each spine, whichever its first route leads over."""
    fat_tree = machine("dgx_h100:16:network=fat-tree:oversubscription=2:spines=4")
    assert sizes(with_faults(fat_tree, without=without)) == [[32] * 4, [8] * 16]
