"""Partial-reduction bounds: known values."""

import numpy as np
import pytest

from flowccl.bounds.commodities import Commodities
from flowccl.bounds.cuts import Cut
from flowccl.bounds.lower_bound import bounds
from flowccl.bounds.partial_reductions import partial_reduction_bound_ps
from flowccl.demand.collectives import collective
from flowccl.demand.demand import Demand
from flowccl.topology.builders import star
from flowccl.topology.files import read_machine
from flowccl.topology.topology import Topology

KB = 1000


def into_gpu0(topology: Topology, demand: Demand) -> float:
    commodities = Commodities.of(demand, topology)
    cut = Cut(topology, "into gpu0", np.arange(len(topology.nodes)) == 0)
    return partial_reduction_bound_ps(commodities, cut, commodities.crossing(cut.far)) / 1e6


def test_at_first_a_link_carries_one_of_three_contributions() -> None:
    """0.5 us to the switch, a third of the rate for 1 us, then the full rate, and 0.5 us to gpu0."""
    topology = star(4, bandwidth_GBps=10, latency_us=0.5)
    demand = collective("allreduce", 4, 10 * KB)
    assert into_gpu0(topology, demand) == pytest.approx(0.5 + 1 + (1 - 1 / 3) + 0.5)
    assert into_gpu0(topology, collective("allreduce", 4, 1 * KB)) == pytest.approx(0.5 + 3 * 0.1 + 0.5)  # one-shot


def test_a_switch_that_reduces_sends_all_contributions() -> None:
    topology = star(4, bandwidth_GBps=10, latency_us=0.5, reduces=True)
    assert into_gpu0(topology, collective("allreduce", 4, 10 * KB)) == pytest.approx(0.5 + 1 + 0.5)


def test_data_that_arrives_late_reaches_few_destinations() -> None:
    """The reversal: near the end, a copy out of gpu0 reaches one of three GPUs."""
    topology = star(4, bandwidth_GBps=10, latency_us=0.5)
    demand = collective("broadcast", 4, 10 * KB)
    commodities = Commodities.of(demand, topology)
    cut = Cut(topology, "out of gpu0", np.arange(len(topology.nodes)) != 0)
    us = partial_reduction_bound_ps(commodities, cut, commodities.crossing(cut.far)) / 1e6
    assert us == pytest.approx(0.5 + 1 + (1 - 1 / 3) + 0.5)


def test_the_hosts_of_an_allreduce_have_a_head_and_a_tail() -> None:
    """16 GPUs on two hosts: data that crosses in about the first 1.4 us is not yet the full reduction of a host."""
    topology = read_machine("dgx_a100:2")
    found = bounds(topology, collective("allreduce", 16, 10**6))
    best = {kind: max(bound.us for bound in found if bound.kind == kind) for kind in ("cut", "partial reductions")}
    assert best["partial reductions"] == pytest.approx(8.825, abs=1e-3)
    assert best["partial reductions"] > best["cut"] + 0.6
