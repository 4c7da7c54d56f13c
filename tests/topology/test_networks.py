"""Networks between hosts: rails, rails below a spine, leaves below a spine; and the machines of today."""

import pytest

from flowccl import Topology, machine
from flowccl.bounds.lower_bound import lower_bound
from flowccl.demand.collectives import collective
from flowccl.errors import TopologyError


def trunks(topology: Topology) -> dict[str, float]:
    """GB/s of each link to the spine, by its leaf or rail."""
    spine = topology.index["spine"]
    return {topology.nodes[k.src].name: k.bandwidth_GBps for k in topology.links if k.dst == spine}


def test_a_fat_tree_with_two_leaves() -> None:
    topology = machine("dgx_h100:4:network=fat-tree:leaf_hosts=2:oversubscription=2")
    assert trunks(topology) == {"leaf0": 400.0, "leaf1": 400.0}
    leaf = [
        {topology.nodes[k.dst].name for k in topology.links if k.src == gpu} - {f"nvswitch{gpu // 8}"}
        for gpu in range(32)
    ]
    assert leaf == [{"leaf0"}] * 16 + [{"leaf1"}] * 16
    assert len(topology.links) == 2 * (32 + 32 + 2)
    assert set(topology.link_kinds) == {"nvlink", "nic"}
    assert [kind for kind, k in zip(topology.link_kinds, topology.links, strict=True) if k.latency_us == 0.3] == [
        "nic"
    ] * 4


def test_an_uneven_fat_tree_and_one_leaf() -> None:
    assert trunks(machine("hgx_b200:5:network=fat-tree")) == {"leaf0": 32 * 50.0, "leaf1": 8 * 50.0}
    one = machine("mi300x:4:network=fat-tree")
    assert [node.name for node in one.nodes if node.kind == "switch"] == ["leaf0"]


def test_leaves_below_several_spines_divide_their_bandwidth() -> None:
    topology = machine("dgx_h100:4:network=fat-tree:leaf_hosts=2:oversubscription=2:spines=4")
    names = [node.name for node in topology.nodes]
    up = {(names[k.src], names[k.dst]): k.bandwidth_GBps for k in topology.links if names[k.dst].startswith("spine")}
    assert up == {(f"leaf{leaf}", f"spine{spine}"): 100.0 for leaf in range(2) for spine in range(4)}
    with pytest.raises(TopologyError, match="spines needs network=rail-optimized or fat-tree"):
        machine("dgx_h100:4:spines=2")


def test_rails_below_a_spine() -> None:
    topology = machine("dgx_a100:4:network=rail-optimized:oversubscription=4")
    assert trunks(topology) == {f"rail{i}": 4 * 25.0 / 4 for i in range(8)}
    assert topology.links[: len(topology.links) - 16] == machine("dgx_a100:4").links


def test_the_oversubscribed_spine_is_the_bottleneck_of_alltoall() -> None:
    """Half of the data of each GPU crosses the 400 GB/s of its leaf: 16 x 32 MB in 1.28 ms."""
    topology = machine("dgx_h100:4:network=fat-tree:leaf_hosts=2:oversubscription=2")
    bound = lower_bound(topology, collective("alltoall", 32, 64_000_000))
    assert bound.us == pytest.approx(16 * 32e6 / 400e3, rel=0.01)


@pytest.mark.parametrize(
    ("name", "inside_GBps", "model"),
    [("dgx_h200:2", 450.0, "H200"), ("hgx_b200:2", 900.0, "B200"), ("mi300x:2", 7 * 64.0, "MI300X")],
)
def test_machines_of_today(name: str, inside_GBps: float, model: str) -> None:
    topology = machine(name)
    out = [sum(k.bandwidth_GBps for k in topology.links if k.src == gpu) for gpu in range(16)]
    assert out == [inside_GBps + 50.0] * 16
    assert {node.model for node in topology.nodes[:16]} == {model}
    assert topology.hosts == ("host0", "host1")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dgx_h100:2:network=ring", "dgx_h100: network must be rail-only, rail-optimized or fat-tree, got 'ring'"),
        (
            "dgx_h100:2:leaf_hosts=2",
            "dgx_h100: leaf_hosts needs network=fat-tree; a network rail-only has no such leaves",
        ),
        ("mi300x:2:network=fat-tree:leaf_hosts=0", "mi300x: leaf_hosts must be at least 1, got 0"),
        ("mi300x:2:network=fat-tree:leaf_hosts=1.5", "mi300x: leaf_hosts must be a whole number, got 1.5"),
        (
            "hgx_b200:2:oversubscription=2",
            "hgx_b200: oversubscription needs network=rail-optimized or fat-tree; rail-only has no spine",
        ),
        ("hgx_b200:2:network=fat-tree:oversubscription=0.5", "hgx_b200: oversubscription must be at least 1, got 0.5"),
        (
            "mi300x:2:network=fat-tree:oversubscription=half",
            'machine "mi300x:2:network=fat-tree:oversubscription=half": oversubscription must be a number, got "half"',
        ),
    ],
)
def test_bad_networks(name: str, message: str) -> None:
    with pytest.raises(TopologyError) as error:
        machine(name)
    assert str(error.value) == message
