"""Partitions whose first and last arrivals carry the data of few GPUs: known values, reached by a schedule."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowccl.bounds.commodities import Commodities
from flowccl.bounds.lower_bound import bounds, lower_bound
from flowccl.bounds.partitions import partition_bounds
from flowccl.bounds.representatives import arrival_tables
from flowccl.demand.collectives import collective
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.topology import Link, Node, Topology
from flowccl.verifier.verify import verify

KB = 1000


def hosts(count: int, gpus: int = 2) -> Topology:
    """Hosts of some GPUs with fast links of 1 us, and rails with links of 10 GB/s and 1 us between all hosts."""
    nodes = tuple(Node(name=f"gpu{i}", host=f"host{i // gpus}") for i in range(count * gpus))
    links = []
    for a in range(len(nodes)):
        for b in range(len(nodes)):
            inside, rail = a // gpus == b // gpus, a % gpus == b % gpus
            if a != b and (inside or rail):
                links.append(Link(src=a, dst=b, bandwidth_GBps=1e6 if inside else 10, latency_us=1.0))
    return Topology("hosts", nodes, tuple(links))


def partition_us(topology: Topology, size: int) -> float:
    found = bounds(topology, collective("allreduce", topology.num_gpus, size))
    return max(bound.us for bound in found if bound.kind == "partition")


def test_a_schedule_reaches_the_bound() -> None:
    """A quarter of the data crosses raw at first, a quarter goes to all GPUs at last, half needs one rail each way.

    In the first and the last microsecond, a rail counts half: 2 x 40 KB in (T - 2 us) x 40 GB/s.
    """
    topology = hosts(2)
    place = {(link.src, link.dst): k for k, link in enumerate(topology.links)}
    inside, rails = [(0, 1), (1, 0), (2, 3), (3, 2)], [(0, 2), (2, 0), (1, 3), (3, 1)]
    rows = [(0, *ends, 0, True) for ends in rails] + [(0, *ends, 2_000_000, True) for ends in inside]
    for chunk, owners in ((1, (0, 2)), (2, (1, 3))):
        for owner in owners:
            rows += [
                (chunk, owner ^ 1, owner, 0, True),
                (chunk, owner, owner ^ 2, 1_000_010, True),
                (chunk, owner, owner ^ 1, 3_000_010, False),
            ]
    rows += [(3, *ends, 10, True) for ends in inside] + [(3, *ends, 2_000_010, True) for ends in rails]
    demand = collective("allreduce", 4, 40 * KB)
    transfers = [(chunk, [place[a, b]], start, reduce) for chunk, a, b, start, reduce in rows]
    schedule = Schedule.from_transfers(topology, demand, transfers)
    assert not verify(schedule)
    bound = lower_bound(topology, demand)
    assert bound.us == pytest.approx(4.0)
    assert bound.ps <= schedule.finish_ps <= bound.ps + 20


def test_gpus_on_the_same_rail_stand_for_their_hosts_together() -> None:
    """Three hosts: 4 x 60 KB into hosts at 120 GB/s, and 2 us for the first and the last microsecond, and a link."""
    assert partition_us(hosts(3), 60 * KB) == pytest.approx(4.0)
    assert partition_us(hosts(3, gpus=1), 60 * KB) == pytest.approx(1 + 4 * 60 / 60)  # single GPUs: the link's latency


def test_parts_of_one_gpu_have_no_tables() -> None:
    topology = hosts(3, gpus=1)
    commodities = Commodities.of(collective("allreduce", 3, KB), topology)
    assert arrival_tables(commodities, np.arange(6), np.arange(3), inward=True) is None
    assert len(partition_bounds(commodities)) > 0


@settings(max_examples=20, deadline=None)
@given(count=st.integers(2, 3), gpus=st.integers(2, 3), size=st.integers(100, 300 * KB), slow=st.integers(0, 41))
def test_no_schedule_beats_it(count: int, gpus: int, size: int, slow: int) -> None:
    plain = hosts(count, gpus)
    links = list(plain.links)
    at = slow % len(links)
    links[at] = Link(src=links[at].src, dst=links[at].dst, bandwidth_GBps=2, latency_us=0.3)
    topology = Topology("uneven", plain.nodes, tuple(links))
    demand = collective("allreduce", topology.num_gpus, size, 2)
    least = partition_us(topology, demand.size_bytes)
    for name in ("one-shot", "greedy", "reroute"):
        steps = load_method(name)(Problem(topology, demand), SearchContext.with_limit(1.0))
        for _, schedule in zip(range(4), steps, strict=False):
            assert schedule is None or schedule.finish_us >= least
