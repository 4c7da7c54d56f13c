"""Rounds of transfers between groups: no port has two transfers in a round, and there are as few rounds as possible."""

import numpy as np
import pytest

from flowccl.demand.collectives import collective
from flowccl.methods.hierarchical.block_plans import schedule_of
from flowccl.methods.hierarchical.round_kernels import edge_colours, with_neighbours
from flowccl.methods.hierarchical.rounds import Crossings
from flowccl.methods.hierarchical.scheduling import PlanScheduler
from flowccl.methods.hierarchical.variants import TreeVariant
from flowccl.problem import Problem
from flowccl.topology.faults import with_faults
from flowccl.topology.machines import machine


@pytest.mark.parametrize("seed", range(20))
def test_as_many_colours_as_the_busiest_port_has_transfers(seed: int) -> None:
    random = np.random.default_rng(seed)
    ports, count = int(random.integers(1, 12)), int(random.integers(1, 300))
    out, into = random.integers(0, ports, (2, count))
    degree = max(np.bincount(out).max(), np.bincount(into).max())
    colour = edge_colours(out, into, ports, int(degree))
    assert colour.min() >= 0
    assert colour.max() < degree
    for port in (out, into):
        assert len(np.unique(port * degree + colour)) == count


def test_transfers_inside_groups_go_with_those_that_need_them_or_feed_them() -> None:
    ptr, after = np.array([0, 2, 2, 3, 3, 3]), np.array([1, 2, 3])  # 0 before 1 and 2, and 2 before 3; 4 is alone
    assert with_neighbours(np.array([-1, 7, 5, -1, -1]), ptr, after).tolist() == [5, 7, 5, 5, 0]


def test_longer_transfers_count_as_several() -> None:
    hop_ptr, link, takes = np.array([0, 2, 4]), np.array([0, 1, 2, 1]), np.array([100, 100, 400, 400])
    crossings = Crossings.of(np.array([True, True]), hop_ptr, link, takes, np.arange(4))
    assert crossings.units.tolist() == [1, 4]
    assert crossings.into.tolist() == [1, 1]
    rounds = crossings.rounds(np.array([1, 0]))
    assert rounds is not None
    assert rounds.tolist() == [4, 0]


def test_the_lanes_of_a_link_are_ports_in_turn() -> None:
    crossings = Crossings.of(
        np.ones(3, dtype=np.bool_), np.arange(4), np.zeros(3, dtype=np.int64), np.ones(3), np.array([0, 2])
    )
    assert crossings.out.tolist() == [0, 1, 0]
    rounds = crossings.rounds(np.zeros(3, dtype=np.int64))
    assert rounds is not None
    assert sorted(rounds.tolist()) == [0, 0, 1]


def test_what_a_busy_port_waits_for_starts_before_what_an_idle_port_can_send_later() -> None:
    """Port 0 sends to 1, 2 and 3, and port 4 sends to 1: that may wait while port 0 works."""
    link = np.array([0, 1, 0, 2, 0, 3, 4, 1])
    crossings = Crossings.of(np.ones(4, dtype=np.bool_), np.arange(0, 9, 2), link, np.full(8, 100), np.arange(6))
    assert crossings.latest_starts(np.arange(4)).tolist() == [0, 100, 200, 200]


def test_an_allreduce_with_a_lost_network_card_is_earlier_by_orders_of_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = with_faults(machine("dgx_h100:16"), without=["gpu3 <-> rail3"])
    problem = Problem(topology, collective("allreduce", 128, 64_000_000, 8))
    variant = TreeVariant((0,), "direct", rooted=True)
    found = schedule_of(problem, variant)
    monkeypatch.setattr(PlanScheduler, "_between_groups", lambda plan, *names, **options: iter(()))
    other = schedule_of(problem, variant)
    assert found is not None
    assert other is not None
    assert found.finish_ps < 0.97 * other.finish_ps
