"""Regular machines: sizes, adjacency, the order of links, and messages for invalid sizes."""

from collections import Counter
from itertools import combinations

import pytest

from flowccl.errors import TopologyError
from flowccl.topology.builders import (
    dragonfly,
    fat_tree,
    full,
    hypercube,
    line,
    mesh,
    rail,
    ring,
    star,
    torus,
)
from flowccl.topology.machines import machine
from flowccl.topology.topology import Topology

EXAMPLES = [
    # machine, gpus, nodes, links
    (ring(2), 2, 2, 2),
    (ring(8), 8, 8, 16),
    (line(2), 2, 2, 2),
    (line(8), 8, 8, 14),
    (full(2), 2, 2, 2),
    (full(8), 8, 8, 56),
    (star(2), 2, 3, 4),
    (star(8), 8, 9, 16),
    (mesh(1, 2), 2, 2, 2),
    (mesh(4, 5), 20, 20, 2 * (3 * 5 + 4 * 4)),
    (mesh(2, 3, 4), 24, 24, 2 * (1 * 12 + 2 * 8 + 3 * 6)),
    (torus(4, 5), 20, 20, 80),
    (torus(3, 4, 5), 60, 60, 360),
    (hypercube(1), 2, 2, 2),
    (hypercube(4), 16, 16, 64),
    (fat_tree(2), 2, 7, 12),
    (fat_tree(4), 16, 36, 96),
    (dragonfly(1, 1, 1), 2, 4, 6),
    (dragonfly(4, 2, 2), 72, 108, 2 * (72 + 9 * 6 + 36)),
    (rail(4, 8), 32, 44, 128),
    (rail(1, 8), 8, 9, 16),
    (rail(3, 1), 3, 4, 6),
]


def names(topology: Topology) -> list[str]:
    return [topology.link_name(k) for k in range(len(topology.links))]


def pairs(topology: Topology) -> list[tuple[int, int]]:
    return [(link.src, link.dst) for link in topology.links]


def reached(topology: Topology) -> set[int]:
    """Nodes reachable from GPU 0."""
    seen, todo = {0}, [0]
    while todo:
        node = todo.pop()
        new = {link.dst for link in topology.links if link.src == node} - seen
        seen |= new
        todo += new
    return seen


@pytest.mark.parametrize(("topology", "gpus", "nodes", "links"), EXAMPLES, ids=lambda value: str(value))
def test_every_machine_has_the_right_size_and_is_connected(topology, gpus, nodes, links):
    assert (topology.num_gpus, len(topology.nodes), len(topology.links)) == (gpus, nodes, links)
    assert [node.name for node in topology.nodes[:gpus]] == [f"gpu{i}" for i in range(gpus)]
    assert reached(topology) == set(range(nodes))


@pytest.mark.parametrize("topology", [row[0] for row in EXAMPLES], ids=lambda topology: topology.name)
def test_links_come_in_pairs_without_duplicates(topology):
    ends = pairs(topology)
    assert [(b, a) for a, b in ends[::2]] == ends[1::2]
    assert max(Counter(ends).values()) == 1


@pytest.mark.parametrize("topology", [row[0] for row in EXAMPLES], ids=lambda topology: topology.name)
def test_the_name_builds_the_same_machine(topology):
    assert machine(topology.name) == topology


def test_names_contain_the_options_that_are_not_the_default():
    assert ring(8, bandwidth_GBps=50).name == "ring:8:bandwidth=50GB/s"
    changed = star(3, latency_us=0.1, copies=True, crossing="store-and-forward")
    assert changed.name == "star:3:latency=0.1us:copies=true:crossing=store-and-forward"
    assert machine(changed.name) == changed


def test_one_default_for_bandwidth_and_latency():
    for topology, *_ in EXAMPLES:
        if not topology.name.startswith("rail"):
            assert {(k.bandwidth_GBps, k.latency_us) for k in topology.links} == {(25.0, 0.7)}


def test_options_reach_every_link():
    for build, sizes in (
        (ring, (4,)),
        (line, (4,)),
        (full, (4,)),
        (star, (4,)),
        (mesh, (2, 3)),
        (torus, (3, 3)),
        (hypercube, (3,)),
        (fat_tree, (4,)),
        (dragonfly, (2, 1, 1)),
    ):
        topology = build(*sizes, bandwidth_GBps=7, latency_us=2)
        assert {(k.bandwidth_GBps, k.latency_us) for k in topology.links} == {(7.0, 2.0)}


def test_order_of_links():
    assert names(ring(3)) == [f"gpu{a} -> gpu{b}" for a, b in ((0, 1), (1, 0), (1, 2), (2, 1), (2, 0), (0, 2))]
    assert pairs(full(3))[::2] == [(0, 1), (0, 2), (1, 2)]
    assert pairs(mesh(2, 2))[::2] == [(0, 2), (0, 1), (1, 3), (2, 3)]
    assert pairs(torus(1, 3))[::2] == [(0, 1), (1, 2), (2, 0)]
    assert pairs(hypercube(2))[::2] == [(0, 1), (0, 2), (1, 3), (2, 3)]
    assert names(rail(2, 2))[::2] == [
        "gpu0 -> switch0",
        "gpu1 -> switch0",
        "gpu2 -> switch1",
        "gpu3 -> switch1",
        "gpu0 -> rail0",
        "gpu2 -> rail0",
        "gpu1 -> rail1",
        "gpu3 -> rail1",
    ]


def test_torus_links_neighbours_in_every_dimension():
    topology = torus(4, 5)
    for rank in range(20):
        a, b = divmod(rank, 5)
        around = {(a + 1) % 4 * 5 + b, (a - 1) % 4 * 5 + b, a * 5 + (b + 1) % 5, a * 5 + (b - 1) % 5}
        assert {link.dst for link in topology.links if link.src == rank} == around


def test_torus_dimension_of_two_has_single_links():
    assert pairs(torus(2, 2)) == pairs(mesh(2, 2))
    assert set(pairs(torus(2, 2, 2))) == set(pairs(hypercube(3)))
    assert {k.bandwidth_GBps for k in torus(2, 5).links} == {25.0}


def test_torus_dimension_of_one_adds_nothing():
    assert pairs(torus(1, 8)) == pairs(torus(8, 1)) == pairs(ring(8))


def test_star_switch_has_the_given_abilities():
    switch = star(4).nodes[4]
    assert (switch.kind, switch.stores, switch.copies, switch.reduces) == ("switch", False, False, False)
    switch = star(4, copies=True, reduces=True, crossing="store-and-forward").nodes[4]
    assert (switch.copies, switch.reduces, switch.crossing) == (True, True, "store-and-forward")


def test_fat_tree_uses_every_port():
    topology = fat_tree(4)
    out = Counter(link.src for link in topology.links)
    assert {out[gpu] for gpu in range(16)} == {1}
    assert {out[switch] for switch in range(16, 36)} == {4}
    assert [node.name for node in topology.nodes[16:18]] == ["leaf0.0", "leaf0.1"]
    cores = {k.src for k in topology.links if topology.nodes[k.dst].name == "core3"}
    assert {topology.nodes[k].name for k in cores} == {f"aggregation{pod}.1" for pod in range(4)}


def test_dragonfly_links_every_two_groups_once():
    switches, gpus, global_links = 4, 2, 2
    topology = dragonfly(switches, gpus, global_links)
    out = Counter(link.src for link in topology.links)
    assert {out[node] for node in range(72, 108)} == {gpus + switches - 1 + global_links}
    group = {i: (i - 72) // switches if i >= 72 else i // (switches * gpus) for i in range(108)}
    between = Counter((group[k.src], group[k.dst]) for k in topology.links if group[k.src] != group[k.dst])
    assert between == {pair: 1 for a, b in combinations(range(9), 2) for pair in ((a, b), (b, a))}


def test_rail_has_hosts_and_two_speeds():
    topology = rail(2, 4)
    assert topology.hosts == ("host0", "host1")
    assert [node.host for node in topology.nodes[:8]] == ["host0"] * 4 + ["host1"] * 4
    inside = [k for k in topology.links if topology.nodes[k.dst].name.startswith("switch")]
    network = [k for k in topology.links if topology.nodes[k.dst].name.startswith("rail")]
    assert {(k.bandwidth_GBps, k.latency_us) for k in inside} == {(25.0, 0.7)}
    assert {(k.bandwidth_GBps, k.latency_us) for k in network} == {(12.5, 1.3)}
    assert {topology.nodes[k.dst].name: k.src % 4 for k in network} == {f"rail{i}": i for i in range(4)}


def test_rail_of_one_host_or_of_single_gpus_omits_unneeded_switches():
    assert [node.name for node in rail(1, 2).nodes] == ["gpu0", "gpu1", "switch0"]
    assert [node.name for node in rail(2, 1).nodes] == ["gpu0", "gpu1", "rail0"]


@pytest.mark.parametrize(
    ("build", "sizes", "message"),
    [
        (ring, (1,), "ring: gpus must be at least 2, got 1"),
        (ring, (-5,), "ring: gpus must be at least 2, got -5"),
        (ring, (2.5,), "ring: gpus must be a whole number, got 2.5"),
        (ring, (True,), "ring: gpus must be a whole number, got True"),
        (ring, (1_000_001,), "ring: gpus must be at most 1,000,000, got 1,000,001"),
        (line, (1,), "line: gpus must be at least 2, got 1"),
        (full, (1,), "full: gpus must be at least 2, got 1"),
        (full, (4000,), "full: at most 10,000,000 links can be built, this would be 15,996,000"),
        (star, (1,), "star: gpus must be at least 2, got 1"),
        (mesh, (4,), "mesh: needs 2 or 3 sizes such as 4x4 or 4x4x4, got 1"),
        (mesh, (2, 2, 2, 2), "mesh: needs 2 or 3 sizes such as 4x4 or 4x4x4, got 4"),
        (mesh, (1, 1), "mesh: needs at least 2 gpus, got 1x1"),
        (torus, (4, 0), "torus: every size must be at least 1, got 0"),
        (torus, (2000, 2000), "torus: at most 1,000,000 gpus can be built, this would be 4,000,000"),
        (hypercube, (0,), "hypercube: dimensions must be at least 1, got 0"),
        (hypercube, (20,), "hypercube: dimensions must be at most 19 (524,288 gpus), got 20"),
        (fat_tree, (0,), "fat_tree: ports must be at least 2, got 0"),
        (fat_tree, (5,), "fat_tree: ports must be even, got 5; try 6"),
        (fat_tree, (1000,), "fat_tree: at most 1,000,000 gpus can be built, this would be 250,000,000"),
        (dragonfly, (0, 1, 1), "dragonfly: switches must be at least 1, got 0"),
        (dragonfly, (1, 0, 1), "dragonfly: gpus must be at least 1, got 0"),
        (dragonfly, (1, 1, 0), "dragonfly: global_links must be at least 1, got 0"),
        (dragonfly, (1000, 1, 1), "dragonfly: at most 1,000,000 gpus can be built, this would be 1,001,000"),
        (dragonfly, (1, 1, 9999), "dragonfly: at most 10,000,000 links can be built, this would be 100,010,000"),
        (rail, (0, 8), "rail: hosts must be at least 1, got 0"),
        (rail, (8, 0), "rail: gpus must be at least 1, got 0"),
        (rail, (1, 1), "rail: needs at least 2 gpus in total, got 1 host with 1 gpu; try rail:2x1 or rail:1x2"),
        (rail, (2000, 1000), "rail: at most 1,000,000 gpus can be built, this would be 2,000,000"),
    ],
)
def test_refuses_invalid_sizes(build, sizes, message):
    with pytest.raises(TopologyError) as error:
        build(*sizes)
    assert str(error.value) == message


def test_refuses_a_bandwidth_of_zero():
    with pytest.raises(TopologyError, match=r"link 0 \(gpu0 -> gpu1\): bandwidth_GBps must be > 0, got 0"):
        ring(4, bandwidth_GBps=0)
