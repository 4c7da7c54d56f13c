"""Symmetry found by search: compared with brute force on random machines, and independent of the rank order."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings

from flowccl.topology.machines import machine
from flowccl.topology.symmetry.automorphisms import automorphisms, known_symmetry, twin_numbers
from flowccl.topology.symmetry.free_groups import free_groups
from flowccl.topology.symmetry.permutations import AutomorphismChecker, orbits, symmetry
from flowccl.topology.topology import Link, Topology
from tests.strategies import topologies
from tests.topology.test_symmetry import check, counts, slowed


def shuffled(topology: Topology, seed: int) -> Topology:
    """The machine with GPUs and switches in a random order."""
    random = np.random.default_rng(seed)
    gpus, total = topology.num_gpus, len(topology.nodes)
    to = np.concatenate((random.permutation(gpus), gpus + random.permutation(total - gpus)))
    nodes = [topology.nodes[int(np.flatnonzero(to == k)[0])] for k in range(total)]
    links = [replace(link, src=int(to[link.src]), dst=int(to[link.dst])) for link in topology.links]
    return Topology(topology.name, tuple(nodes), tuple(links[k] for k in random.permutation(len(links))))


def brute_force(topology: Topology) -> np.ndarray:
    """The orbits of nodes under all automorphisms."""
    machine_, count = AutomorphismChecker(topology), len(topology.nodes)
    rows = [np.array(p, dtype=np.int32) for p in permutations(range(count))]
    right = [row for row in rows if machine_.link_permutation(row) is not None]
    return orbits(np.stack(right), count)


@given(topologies(max_gpus=4, max_switches=2))
@settings(max_examples=60, deadline=None)
def test_orbits_equal_those_of_brute_force(topology: Topology) -> None:
    found = automorphisms(topology)
    check(found)
    assert np.array_equal(found.node_orbits, brute_force(topology))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("torus:4x4", (1, 1)),
        ("hypercube:4", (1, 1)),
        ("dragonfly:4:2:1", (1, 4)),
        ("mi250:2", (4, 26)),
        ("dgx1", (2, 8)),
    ],
)
def test_the_order_of_ranks_does_not_matter(name: str, expected: tuple[int, int]) -> None:
    for topology in (machine(name), shuffled(machine(name), 1)):
        found = automorphisms(topology)
        check(found)
        assert counts(found) == expected
    assert counts(symmetry(shuffled(machine("torus:4x4"), 1))) != (1, 1)  # rank patterns do not find it


def test_the_search_supplements_the_rank_patterns() -> None:
    assert counts(known_symmetry(shuffled(machine("torus:4x4"), 1))) == (1, 1)
    assert counts(known_symmetry(machine("ring:8"))) == (1, 1)


def test_one_slow_link_breaks_the_symmetry() -> None:
    assert counts(automorphisms(slowed(machine("ring:8"), 0))) == (8, 16)


def test_nodes_of_different_colours_are_not_exchanged() -> None:
    star = machine("star:4")
    assert counts(automorphisms(star)) == (1, 2)
    assert twin_numbers(star).tolist() == [0, 1, 2, 3, 0]
    assert counts(automorphisms(star, twin_numbers(star))) == (4, 8)


@pytest.mark.parametrize(
    ("name", "sizes"), [("ring:6", 6), ("torus:4x4x4", 64), ("dragonfly:4:2:1", 20), ("mi250:2", 8), ("dgx_a100:4", 32)]
)
def test_free_groups_have_no_fixed_points(name: str, sizes: int) -> None:
    topology = machine(name)
    groups = free_groups(topology)
    assert len(groups[0]) == sizes
    for group in groups:
        check(group)
        assert np.array_equal(group.links[0], np.arange(len(topology.links)))
        rows = {row.tobytes() for row in group.links}
        assert len(rows) == len(group)
        for nodes, links in zip(group.nodes[1:], group.links[1:], strict=True):
            assert not np.any(nodes[: topology.num_gpus] == np.arange(topology.num_gpus))
            assert not np.any(links == np.arange(len(links)))
            assert {links[row].astype(np.int32).tobytes() for row in group.links} == rows
        assert np.all(np.bincount(group.link_orbits) == len(group))


def test_no_free_group_without_symmetry() -> None:
    line = machine("line:3")
    uneven = replace(line, links=(*line.links, Link(src=0, dst=2, bandwidth_GBps=3.0)))
    assert free_groups(uneven) == ()
