"""The slow verifier agrees on machines whose trunks carry several flows at a time."""

from dataclasses import replace

import numpy as np
import pytest

from flowccl.demand.collectives import collective
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.topology import Link, Node, Topology
from flowccl.verifier.verify import verify
from tests.slow_replay import slow_replay


def leaf_and_spine(random: np.random.Generator) -> Topology:
    """GPUs on two or three leaf switches, and faster links to a spine."""
    leaves, each = int(random.integers(2, 4)), int(random.integers(1, 4))
    gpus = leaves * each
    nodes = [Node(name=f"gpu{rank}") for rank in range(gpus)]
    nodes += [Node(name=f"leaf{leaf}", kind="switch") for leaf in range(leaves)]
    nodes.append(Node(name="spine", kind="switch"))
    pairs = [(rank, gpus + rank // each, (10, 20, 25), (0.5, 1.0)) for rank in range(gpus)]
    pairs += [(gpus + leaf, gpus + leaves, (20, 40, 75, 100), (1.0,)) for leaf in range(leaves)]
    links = []
    for a, b, rates, latencies in pairs:
        GBps, us = float(random.choice(rates)), float(random.choice(latencies))
        links += [Link(src=x, dst=y, bandwidth_GBps=GBps, latency_us=us) for x, y in ((a, b), (b, a))]
    return Topology("leaf and spine", tuple(nodes), tuple(links))


def agree(schedule: Schedule) -> bool:
    """Whether both verifiers find the same kinds of violations and the same finish; and whether there are any."""
    kinds, slow = {violation.kind for violation in verify(schedule)}, slow_replay(schedule)
    assert kinds == slow.kinds
    assert schedule.finish_ps == slow.finish_ps
    return not kinds


@pytest.mark.parametrize("machines", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_the_slow_verifier_agrees_on_random_machines_with_trunks(machines: int) -> None:
    random, damaged, checked = np.random.default_rng(0), 0, 0
    while checked < machines:
        topology = leaf_and_spine(random)
        gpus = topology.num_gpus
        name, size = str(random.choice(["alltoall", "allgather", "allreduce"])), int(random.integers(500, 3000))
        problem = Problem(topology, collective(name, gpus, gpus * gpus * size))
        schedule = next(filter(None, load_method("greedy")(problem, SearchContext.with_limit(60.0))))
        checked += bool(schedule.timing.shared_links(topology).any())  # else all links of the routes are alike
        assert agree(schedule)
        earlier = random.integers(0, 2, len(schedule)) * random.integers(0, 100_000, len(schedule))
        damaged += not agree(replace(schedule, start_ps=np.maximum(schedule.start_ps - earlier, 0)))
    assert damaged > machines / 2
