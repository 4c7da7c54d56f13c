import pytest

from flowccl.papers.fluid import fluid_optimum
from flowccl.topology.machines import machine
from flowccl.topology.topology import Link, Node, Topology
from tests.papers.thesis_exact import least_steps


def built(gpus: int, pairs: list[tuple[int, int]]) -> Topology:
    """GPUs with links of 1 GB/s."""
    links = tuple(Link(src=a, dst=b, bandwidth_GBps=1.0) for a, b in pairs)
    return Topology("small", tuple(Node(name=f"gpu{i}") for i in range(gpus)), links)


@pytest.mark.parametrize(
    ("topology", "chunks", "steps"),
    [
        (machine("full:3:bandwidth=1GB/s"), 1, 1),  # every GPU sends to all others
        (machine("ring:4:bandwidth=1GB/s"), 1, 2),  # three blocks arrive over two links
        (machine("ring:4:bandwidth=1GB/s"), 2, 3),  # six half blocks over two links
        (built(3, [(0, 1), (1, 2), (2, 0)]), 1, 2),  # a unidirectional ring
    ],
)
def test_steps_of_small_machines(topology: Topology, chunks: int, steps: int) -> None:
    assert least_steps(topology, chunks, 1 / chunks, 6) == steps


@pytest.mark.parametrize(
    "topology",
    [
        machine("ring:4:bandwidth=1GB/s"),
        machine("ring:3:bandwidth=1GB/s"),
        machine("line:3:bandwidth=1GB/s"),
        built(4, [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2), (0, 2)]),
    ],
    ids=["ring:4", "ring:3", "line:3", "uneven"],
)
def test_whole_chunks_take_at_least_as_long_as_the_flow_and_approach_it(topology: Topology) -> None:
    """CM1 >= CM2 >= fluid model; the difference is at most a step for each link of the longest path."""
    optimum = fluid_optimum(topology, "allgather").seconds_per_GB
    one, two = least_steps(topology, 1, 1.0, 8), least_steps(topology, 2, 0.5, 12) / 2
    assert optimum * (1 - 1e-9) <= two <= one
    assert two <= optimum + 0.5 * topology.num_gpus
