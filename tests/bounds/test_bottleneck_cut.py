import numpy as np
import pytest

from flowccl.topology.machines import machine
from flowccl.topology.topology import Link, Node, Topology
from tests.bottleneck_cut import bottleneck_cut


def random_machine(random: np.random.Generator) -> Topology:
    """Up to 9 nodes with switches: a cycle through all nodes and random links."""
    gpus = int(random.integers(2, 7))
    count = gpus + int(random.integers(0, 10 - gpus))
    nodes = [Node(name=f"node{i}", kind="gpu" if i < gpus else "switch") for i in range(count)]
    cycle = random.permutation(count)
    pairs = list(zip(cycle.tolist(), np.roll(cycle, 1).tolist(), strict=True))
    pairs += [tuple(random.choice(count, 2, replace=False).tolist()) for _ in range(int(random.integers(0, 2 * count)))]
    some = [1.0, 2.0, 5.0, 12.5, 25.0, 50.0, 300.0, float(random.uniform(0.1, 100))]
    links = [Link(src=a, dst=b, bandwidth_GBps=float(random.choice(some))) for a, b in pairs]
    return Topology("random", tuple(nodes), tuple(links))


def brute_force(topology: Topology) -> float:
    """The best of all cuts with GPUs on both sides."""
    count, gpus = len(topology.nodes), topology.num_gpus
    far = (np.arange(1, 2**count - 1)[:, None] >> np.arange(count) & 1).astype(np.bool_)
    far = far[far[:, :gpus].any(axis=1) & ~far[:, :gpus].all(axis=1)]
    GBps = (~far[:, topology.link_src] & far[:, topology.link_dst]) @ topology.link_GBps
    return float(((~far[:, :gpus]).sum(axis=1) / GBps).max())


@pytest.mark.parametrize(("seed", "machines"), [(1, 50), pytest.param(5, 500, marks=pytest.mark.slow)])
def test_the_bottleneck_cut_is_the_best_of_all_cuts_on_random_machines(seed: int, machines: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(machines):
        topology = random_machine(random)
        found = bottleneck_cut(topology)
        assert found.seconds_per_GB == pytest.approx(brute_force(topology), rel=1e-9)
        GBps = topology.link_GBps[found.cut.links].sum()
        assert found.seconds_per_GB == pytest.approx(found.blocks / GBps)


@pytest.mark.parametrize(
    ("name", "GBps"), [("ndv2:2", 25.0), ("ndv2:4", 16.6667), ("dgx2:2", 129.0323), ("mi250:2", 32 / 0.0923077)]
)
def test_published_allgather_bandwidths(name: str, GBps: float) -> None:
    topology = machine(name)
    assert topology.num_gpus / bottleneck_cut(topology).seconds_per_GB == pytest.approx(GBps, rel=1e-5)


def test_one_sink_per_symmetry_class_is_enough() -> None:
    topology = machine("dgx_a100:4")
    assert bottleneck_cut(topology, np.array([0])).seconds_per_GB == pytest.approx(0.12)
