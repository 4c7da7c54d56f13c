"""Predictions of runs by pencil: levels one after the other, what flows at once shares evenly."""

import numpy as np
import pytest

from flowccl.demand.collectives import allgather
from flowccl.profile.predict import fair_rates, predict_us
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
    from flowccl.demand.collectives import broadcast

    rows = [(0, (0,), 0), (0, (1,), 0), (0, (2,), 1_000_000)]
    schedule = Schedule.from_transfers(topology, broadcast(4, 1_000), rows)
    assert predict_us(schedule, 1_000) == pytest.approx((4 + 2 + 4 + 2) / 4)


def test_rates_are_fair():
    """Two flows share 6, one of them also needs a thing of 2: it gets 2, the other 4."""
    uses = np.array([[True, True], [True, False]])
    assert fair_rates(uses, np.array([6.0, 2.0])) == pytest.approx([2.0, 4.0])
