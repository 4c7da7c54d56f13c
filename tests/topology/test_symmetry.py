"""Symmetry from rank patterns: orbits of known machines, stabilizers and regular groups."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from flowccl.topology.machines import machine
from flowccl.topology.symmetry.permutations import Symmetry, orbits, symmetry, verified
from flowccl.topology.symmetry.regular_groups import regular_group
from flowccl.topology.topology import Limit, Link, Node, Topology
from tests.strategies import topologies


def counts(group: Symmetry) -> tuple[int, int]:
    return int(group.node_orbits[: group.topology.num_gpus].max()) + 1, int(group.link_orbits.max()) + 1


def slowed(topology: Topology, link: int) -> Topology:
    links = list(topology.links)
    links[link] = replace(links[link], bandwidth_GBps=links[link].bandwidth_GBps / 2)
    return replace(topology, links=tuple(links))


def check(group: Symmetry) -> None:
    """Check every generator link by link and limit by limit, without `AutomorphismChecker`."""
    topology = group.topology
    limits = {(frozenset(limit.links), limit.bandwidth_GBps) for limit in topology.limits}
    for nodes, links in zip(group.nodes.tolist(), group.links.tolist(), strict=True):
        assert sorted(nodes) == list(range(len(topology.nodes)))
        assert sorted(links) == list(range(len(topology.links)))
        for node, image in enumerate(nodes):
            a, b = topology.nodes[node], topology.nodes[image]
            assert replace(a, name="x", host="") == replace(b, name="x", host="")
        for link, image in enumerate(links):
            a, b = topology.links[link], topology.links[image]
            assert b == replace(a, src=nodes[a.src], dst=nodes[a.dst])
        moved = {(frozenset(links[k] for k in limit.links), limit.bandwidth_GBps) for limit in topology.limits}
        assert moved == limits


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ring:8", (1, 1)),
        ("line:5", (3, 4)),
        ("full:6", (1, 1)),
        ("torus:4x6", (1, 2)),
        ("torus:8x8", (1, 1)),
        ("mesh:4x4", (3, 6)),
        ("hypercube:4", (1, 1)),
        ("dgx_a100:1", (1, 2)),
        ("dgx_a100:4", (1, 4)),
        ("dgx_a100:2:no-nvlink", (1, 8)),
        ("dgx_a100:3:all", (1, 10)),
        ("ndv2:2", (8, 33)),
        ("dgx2:2", (2, 5)),
    ],
)
def test_orbits_of_known_machines(name: str, expected: tuple[int, int]) -> None:
    group = symmetry(machine(name))
    assert counts(group) == expected
    check(group)


def test_the_stabilizer_of_a_gpu_in_a_rail_cluster_has_three_other_orbits() -> None:
    around = symmetry(machine("dgx_a100:16")).stabilizer(0)
    check(around)
    assert np.all(around.nodes[:, 0] == 0)
    assert len(np.unique(around.node_orbits[1:128])) == 3  # same host, same rail, all others


@pytest.mark.parametrize("link", [0, 1, 40])
def test_one_slow_link_breaks_part_of_the_symmetry(link: int) -> None:
    group = symmetry(slowed(machine("dgx_a100:2"), link))
    check(group)
    assert counts(group)[0] == 4  # the GPU itself, its host, its rail, all others
    assert counts(symmetry(machine("dgx_a100:2")))[0] == 1


def test_a_changed_node_or_limit_breaks_symmetry() -> None:
    ring = machine("ring:4")
    odd = (replace(ring.nodes[0], buffer_bytes=1000), *ring.nodes[1:])
    assert counts(symmetry(replace(ring, nodes=odd)))[0] == 3
    limited = replace(ring, limits=(Limit(name="a", links=(0, 1), bandwidth_GBps=30.0),))
    group = symmetry(limited)
    check(group)
    assert counts(group)[0] == 2


def test_given_permutations_are_checked() -> None:
    ring = machine("ring:4")
    assert len(verified(ring, [np.array([1, 2, 3, 0]), np.array([1, 0, 2, 3])])) == 1
    assert len(verified(ring, [np.array([0, 0, 0, 0])])) == 0


def test_orbits_of_pairs_of_source_and_link() -> None:
    pairs = symmetry(machine("ring:6")).pair_orbits([0])
    assert len(np.unique(pairs[0])) == 6  # the reflection through gpu 0 maps the links of one side to the other


def test_orbits_are_numbered_by_first_appearance() -> None:
    assert orbits(np.array([[0, 2, 1, 3]], dtype=np.int32), 4).tolist() == [0, 1, 1, 2]
    assert orbits(np.zeros((0, 3), dtype=np.int32), 3).tolist() == [0, 1, 2]


@settings(max_examples=30, deadline=None)
@given(topologies(buffers=True))
def test_symmetry_of_random_machines_is_correct(topology: Topology) -> None:
    group = symmetry(topology)
    check(group)
    check(group.stabilizer(0))


def test_gpus_behind_a_switch_are_one_orbit() -> None:
    nodes = [*(Node(name=f"gpu{i}") for i in range(3)), Node(name="switch", kind="switch")]
    links = [Link(src=a, dst=b, bandwidth_GBps=10.0) for i in range(3) for a, b in ((i, 3), (3, i))]
    assert counts(symmetry(Topology("star", tuple(nodes), tuple(links)))) == (1, 2)


@pytest.mark.parametrize("name", ["ring:5", "torus:3x4", "hypercube:3", "dgx_a100:2", "dgx_h100:3", "full:4"])
def test_regular_groups_map_gpu_0_to_every_gpu_once(name: str) -> None:
    topology = machine(name)
    group = regular_group(topology)
    assert group is not None
    assert group.free_links.all()
    every = np.arange(len(group))
    table = group.image(every[None, :], every[:, None])
    assert table[:, 0].tolist() == every.tolist()
    assert all(len(set(row)) == len(group) for row in table.T.tolist())
    links = np.arange(len(topology.links))
    for element in every.tolist():
        moved = group.moved_links(links, np.full(len(links), element))
        for link, image in enumerate(moved.tolist()):
            a, b = topology.links[link], topology.links[image]
            if a.src < len(group):
                assert b.src == table[element, a.src]
            if a.dst < len(group):
                assert b.dst == table[element, a.dst]


def test_no_regular_group_on_machines_with_special_gpus() -> None:
    assert regular_group(machine("ndv2:2")) is None
    assert regular_group(slowed(machine("ring:5"), 0)) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dgx_a100:128", "torus:200x200", "dgx_h100:512"])
def test_large_machines(name: str) -> None:
    assert counts(symmetry(machine(name)))[0] == 1
    assert regular_group(machine(name)) is not None
