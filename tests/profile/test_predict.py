"""Predictions of small runs with known results: levels run in sequence, concurrent messages share links fairly."""

import numpy as np
import pytest

from flowccl.demand.collectives import allgather, broadcast
from flowccl.profile.flows import fair_rates, flow_s
from flowccl.profile.predict import predict_us
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Limit, Link, Node, Topology


def ring_schedule(limit_GBps: float | None = None) -> Schedule:
    """Unidirectional ring of four ranks, 1 GB/s and 2 us, optionally with a limit over all links."""
    links = tuple(Link(src=rank, dst=(rank + 1) % 4, bandwidth_GBps=1.0, latency_us=2.0) for rank in range(4))
    limits = () if limit_GBps is None else (Limit(name="all", links=(0, 1, 2, 3), bandwidth_GBps=limit_GBps),)
    topology = Topology("ring", tuple(Node(name=f"gpu{rank}") for rank in range(4)), links, limits)
    rows = [((rank - step) % 4, (rank,), (step * 4 + rank) * 10_000_000) for step in range(3) for rank in range(4)]
    return Schedule.from_transfers(topology, allgather(4, 4_000), rows)


def test_a_ring_is_three_levels():
    """A block of 1,000 bytes takes 1 us and 2 us of latency, three times."""
    assert predict_us(ring_schedule(), 4_000) == pytest.approx(9.0)
    assert predict_us(ring_schedule(), 4_000_000) == pytest.approx(3 * 1002.0)


def test_concurrent_messages_share_a_limit():
    """Four concurrent blocks share 2 GB/s: each takes 2 us plus 2 us of latency; the schedule itself is sequential."""
    schedule = ring_schedule(2.0)
    assert predict_us(schedule, 4_000) == pytest.approx(12.0)
    assert schedule.finish_us == pytest.approx(113.0)


def test_a_process_waits_for_all_messages_of_a_level():
    """Rank 0 sends to rank 1, which forwards, and to rank 2 over a slow link; the ranks end at different times."""
    links = (
        Link(src=0, dst=1, bandwidth_GBps=1.0),
        Link(src=0, dst=2, bandwidth_GBps=0.25),
        Link(src=1, dst=3, bandwidth_GBps=1.0),
    )
    topology = Topology("tree", tuple(Node(name=f"gpu{rank}") for rank in range(4)), links)
    rows = [(0, (0,), 0), (0, (1,), 0), (0, (2,), 1_000_000)]
    schedule = Schedule.from_transfers(topology, broadcast(4, 1_000), rows)
    assert predict_us(schedule, 1_000) == pytest.approx((4 + 2 + 4 + 2) / 4)


def test_message_overheads_of_a_process_are_sequential():
    """Every rank sends and receives three messages of 1,000 bytes: 5 us overhead each, 1 us of bytes, 2 us latency."""
    ends = [(a, b) for a in range(4) for b in range(4) if a != b]
    links = tuple(Link(src=a, dst=b, bandwidth_GBps=1.0, latency_us=2.0, overhead_us=5.0) for a, b in ends)
    topology = Topology("full", tuple(Node(name=f"gpu{rank}") for rank in range(4)), links)
    rows = [(a, (link,), 0) for link, (a, _) in enumerate(ends)]
    schedule = Schedule.from_transfers(topology, allgather(4, 4_000), rows)
    assert predict_us(schedule, 4_000) == pytest.approx(6 * 5 + 1 + 2)
    assert schedule.finish_us == pytest.approx(5 + 1 + 2)  # in a schedule, overheads on different links overlap


def test_a_message_waits_for_the_later_of_its_ends():
    """Rank 0 sends to ranks 1 and 2, 5 us each; rank 2 is ready after 5 us, but both messages flow after 10 us."""
    links = tuple(Link(src=0, dst=rank, bandwidth_GBps=1.0, overhead_us=5.0) for rank in (1, 2))
    topology = Topology("star", tuple(Node(name=f"gpu{rank}") for rank in range(3)), links)
    schedule = Schedule.from_transfers(topology, broadcast(3, 1_000), [(0, (0,), 0), (0, (1,), 0)])
    assert predict_us(schedule, 1_000) == pytest.approx(10 + 1)


def test_rates_are_fair():
    """Two flows share a capacity of 6, one of them also uses a capacity of 2: it gets 2, the other 4."""
    uses = np.array([[True, True], [True, False]])
    assert fair_rates(uses, np.array([6.0, 2.0])) == pytest.approx([2.0, 4.0])


def test_completed_flows_release_their_share():
    """Flows of 6 and 2 bytes share 2 bytes/s: both get 1 until 2 s, then the first gets 2 for its remaining 4."""
    uses = np.array([[True], [True]])
    assert flow_s(uses, np.array([2.0]), np.array([6.0, 2.0])) == pytest.approx([4.0, 2.0])
    assert flow_s(uses, np.array([2.0]), np.array([0.0, 2.0])) == pytest.approx([0.0, 1.0])
