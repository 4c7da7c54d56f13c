"""Routes between storing nodes: the best routes come first, and their number is bounded."""

from flowccl.topology.builders import fat_tree, star
from flowccl.topology.neighbours import ROUTES_PER_PAIR, neighbours
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
