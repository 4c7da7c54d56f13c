"""Routes between storing nodes: the best routes come first, and their number is bounded."""

import time

import numpy as np
import pytest

from flowccl.topology.builders import fat_tree, star
from flowccl.topology.machines import machine
from flowccl.topology.neighbours import ROUTES_PER_PAIR, neighbours, routes_from
from flowccl.topology.topology import Node, Topology
from tests.cases import gpus, link


def routes(topology: Topology, src: int, end: int, most: int = ROUTES_PER_PAIR) -> list[tuple[int, ...]]:
    near = neighbours(topology, most)
    pairs = list(zip(near.src.tolist(), near.end.tolist(), strict=True))
    at = pairs.index((src, end))
    return [near.routes.links(r) for r in range(int(near.pair_ptr[at]), int(near.pair_ptr[at + 1]))]


def test_the_fastest_of_parallel_links_comes_first():
    topology = Topology("parallel", tuple(gpus(2)), tuple(link(0, 1, GBps) for GBps in (5, 20, 1, 10)))
    assert routes(topology, 0, 1) == [(1,), (3,), (0,), (2,)]
    assert routes(topology, 0, 1, most=1) == [(1,)]


def test_latency_counts_before_bandwidth_and_bandwidth_before_hops():
    nodes = (*gpus(2), Node(name="switch", kind="switch"))
    links = (link(0, 1, 5, 0.0), link(0, 2, 20, 0.0), link(2, 1, 20, 0.0), link(0, 1, 100, 0.1))
    assert routes(Topology("routes", nodes, links), 0, 1) == [(1, 2), (0,), (3,)]


def test_routes_end_at_the_first_storing_node_and_never_return():
    near = neighbours(star(3))
    pairs = sorted(zip(near.src.tolist(), near.end.tolist(), strict=True))
    assert pairs == [(a, b) for a in range(3) for b in range(3) if a != b]
    assert {len(near.routes.links(r)) for r in range(len(near.routes))} == {2}


def test_the_number_of_routes_on_a_fat_tree_is_bounded():
    near = neighbours(fat_tree(8))
    assert len(near.src) == 128 * 127
    assert len(near.routes) <= ROUTES_PER_PAIR * len(near.src)


def _all_paths(topology: Topology, path: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All paths through switches that begin with these links, to the next storing node, and visit no node twice."""
    passed = {topology.links[path[0]].src, *(topology.links[link].dst for link in path)}
    if topology.stores[topology.links[path[-1]].dst]:
        return [path]
    further = [n for n, one in enumerate(topology.links) if one.src == topology.links[path[-1]].dst]
    return [
        found
        for one in further
        if topology.links[one].dst not in passed
        for found in _all_paths(topology, (*path, one))
    ]


@pytest.mark.parametrize("seed", range(4))
def test_the_best_of_all_paths_are_found(seed: int):
    generator = np.random.default_rng(seed)
    nodes = (*gpus(4), *(Node(name=f"switch{n}", kind="switch") for n in range(3)))
    ends = [(a, b) for a in range(7) for b in range(7) if a != b and generator.random() < 0.6]
    links = tuple(link(a, b, float(generator.integers(1, 4)), float(generator.integers(1, 4))) for a, b in ends)
    topology = Topology("random", nodes, links)

    def cost(path: tuple[int, ...]) -> tuple[float, float, int]:
        rates = [topology.links[one].bandwidth_GBps for one in path]
        return sum(topology.links[one].latency_us for one in path), -min(rates), len(path)

    for src in range(4):
        begins = [(n,) for n, one in enumerate(links) if one.src == src]
        every = [path for begin in begins for path in _all_paths(topology, begin)]
        for end, found in routes_from(topology, src, 100).items():
            paths = [path for path in every if links[path[-1]].dst == end]
            assert sorted(found) == sorted(paths)
            assert [cost(path) for path in found] == sorted(map(cost, paths))
        assert set(routes_from(topology, src, 1)) == {links[path[-1]].dst for path in every}


def test_a_million_routes_take_seconds():
    topology = machine("dgx_h100:64:network=fat-tree:oversubscription=2:spines=4")
    neighbours(star(3))  # loads the compiled search
    began = time.process_time()
    near = neighbours(topology)
    assert len(near.src) == 512 * 511
    assert time.process_time() - began < 10
