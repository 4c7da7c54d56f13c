"""Predictions of runs by pencil: levels one after the other, what flows at once shares evenly."""

import numpy as np
import pytest

from flowccl.demand.collectives import allgather, broadcast
from flowccl.profile.flows import fair_rates, flow_s
from flowccl.profile.predict import predict_us
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Limit, Link, Node, Topology


def ring_schedule(limit_GBps: float | None = None) -> Schedule:
    """Four ranks, 1 GB/s and 2 us one way round; perhaps all links share a limit. Block b is at b + s + 1 in step s."""
    links = tuple(Link(src=rank, dst=(rank + 1) % 4, bandwidth_GBps=1.0, latency_us=2.0) for rank in range(4))
    limits = () if limit_GBps is None else (Limit(name="all", links=(0, 1, 2, 3), bandwidth_GBps=limit_GBps),)
    topology = Topology("ring", tuple(Node(name=f"gpu{rank}") for rank in range(4)), links, limits)
    rows = [((rank - step) % 4, (rank,), (step * 4 + rank) * 10_000_000) for step in range(3) for rank in range(4)]
    return Schedule.from_transfers(topology, allgather(4, 4_000), rows)


def test_a_ring_is_three_levels():
    """A block of 1,000 bytes takes 1 us and 2 us of latency, three times."""
    assert predict_us(ring_schedule(), 4_000) == pytest.approx(9.0)
    assert predict_us(ring_schedule(), 4_000_000) == pytest.approx(3 * 1002.0)


def test_a_limit_is_shared_by_what_flows_at_once():
    """Four blocks at once share 2 GB/s: each takes 2 us, and 2 us of latency; the schedule itself goes one by one."""
    schedule = ring_schedule(2.0)
    assert predict_us(schedule, 4_000) == pytest.approx(12.0)
    assert schedule.finish_us == pytest.approx(113.0)


def test_a_process_waits_for_all_of_a_level():
    """Rank 0 sends to 1, which sends on; and to 2 over a slow link, so the mean counts who ends when."""
    links = (
        Link(src=0, dst=1, bandwidth_GBps=1.0),
        Link(src=0, dst=2, bandwidth_GBps=0.25),
        Link(src=1, dst=3, bandwidth_GBps=1.0),
    )
    topology = Topology("tree", tuple(Node(name=f"gpu{rank}") for rank in range(4)), links)
    rows = [(0, (0,), 0), (0, (1,), 0), (0, (2,), 1_000_000)]
    schedule = Schedule.from_transfers(topology, broadcast(4, 1_000), rows)
    assert predict_us(schedule, 1_000) == pytest.approx((4 + 2 + 4 + 2) / 4)


def test_a_process_sets_its_messages_up_one_after_the_other():
    """Three of 1,000 bytes out and three in at every rank, 5 us each, then 1 us of bytes and 2 us of latency."""
    ends = [(a, b) for a in range(4) for b in range(4) if a != b]
    links = tuple(Link(src=a, dst=b, bandwidth_GBps=1.0, latency_us=2.0, overhead_us=5.0) for a, b in ends)
    topology = Topology("full", tuple(Node(name=f"gpu{rank}") for rank in range(4)), links)
    rows = [(a, (link,), 0) for link, (a, _) in enumerate(ends)]
    schedule = Schedule.from_transfers(topology, allgather(4, 4_000), rows)
    assert predict_us(schedule, 4_000) == pytest.approx(6 * 5 + 1 + 2)
    assert schedule.finish_us == pytest.approx(5 + 1 + 2)  # a schedule's sends on different links have their own setups


def test_a_message_waits_for_the_end_that_is_ready_last():
    """Rank 0 sends to 1 and 2, 5 us each; 2 is ready after 5 us, but its message flows after 10, as does that of 1."""
    links = tuple(Link(src=0, dst=rank, bandwidth_GBps=1.0, overhead_us=5.0) for rank in (1, 2))
    topology = Topology("star", tuple(Node(name=f"gpu{rank}") for rank in range(3)), links)
    schedule = Schedule.from_transfers(topology, broadcast(3, 1_000), [(0, (0,), 0), (0, (1,), 0)])
    assert predict_us(schedule, 1_000) == pytest.approx(10 + 1)


def test_rates_are_fair():
    """Two flows share 6, one of them also needs a thing of 2: it gets 2, the other 4."""
    uses = np.array([[True, True], [True, False]])
    assert fair_rates(uses, np.array([6.0, 2.0])) == pytest.approx([2.0, 4.0])


def test_flows_leave_their_share_to_others():
    """Two flows of 6 and 2 bytes share 2 per second: both have 1 until 2 s, then the first has 2 for its other 4."""
    uses = np.array([[True], [True]])
    assert flow_s(uses, np.array([2.0]), np.array([6.0, 2.0])) == pytest.approx([4.0, 2.0])
    assert flow_s(uses, np.array([2.0]), np.array([0.0, 2.0])) == pytest.approx([0.0, 1.0])
