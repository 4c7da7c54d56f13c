"""The floor of the fluid in time: never above a schedule that exists, and above all other floors where it should be."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowccl.bounds.commodities import Commodities
from flowccl.bounds.lower_bound import Bound, lower_bound, tightened
from flowccl.bounds.time_expanded import time_expanded_bound_ps
from flowccl.demand.collectives import collective
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine
from flowccl.units import us_to_ps
from tests.cases import CASES
from tests.strategies import topologies


def timed_ps(topology, demand, most_ps):
    """The floor where nothing is known but that it lies below `most_ps`."""
    return time_expanded_bound_ps(Commodities.of(demand, topology), 1e-3 * most_ps, most_ps, 60.0)


@given(
    topologies(max_switches=2, limits=False, changes=False),
    st.sampled_from([2_000, 60_000, 900_000]),
    st.sampled_from(["allgather", "alltoall"]),
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_schedule_is_earlier(topology, size, name):
    found = synthesize(topology, name, size, method="greedy", chunks=2, steps=3, time_limit_s=100)
    demand = collective(name, topology.num_gpus, size, 1)
    assert timed_ps(topology, demand, 2.0 * found.schedule.finish_ps) <= found.schedule.finish_ps


KNOWN = ("allgather", "alltoall")
PENCIL = [case for case in CASES if case.demand.collective in KNOWN and not case.topology.limits]


@pytest.mark.parametrize("case", PENCIL, ids=str)
def test_the_pencil_is_not_below_it(case):
    assert timed_ps(case.topology, case.demand, 3.0 * us_to_ps(case.best_us)) <= us_to_ps(case.best_us)


def test_two_epochs_of_a_ring_by_pencil():
    """Three GPUs in a ring of 1 GB/s, 1 us, 1 KB each: both neighbours get it directly, 2 us."""
    ring, demand = machine("ring:3:bandwidth=1:latency=1"), collective("allgather", 3, 3_000, 1)
    assert timed_ps(ring, demand, us_to_ps(10.0)) == pytest.approx(us_to_ps(2.0), rel=0.01)


def test_an_alltoall_on_a_line_by_pencil():
    """Three GPUs in a line of 1 GB/s, 1 us, 1 KB for each other: 2 KB over every link, and 1 us for the last byte."""
    line, demand = machine("line:3:bandwidth=1:latency=1"), collective("alltoall", 3, 3_000, 1)
    assert timed_ps(line, demand, us_to_ps(10.0)) == pytest.approx(us_to_ps(3.0), rel=0.01)


def test_an_alltoall_on_a_dgx1_that_cuts_do_not_explain():
    """Cuts see 1.56 us, the best schedule known takes 1.725 us."""
    topology, demand = machine("dgx1"), collective("alltoall", 8, 64_000, 1)
    known = lower_bound(topology, demand)
    assert known.us == pytest.approx(1.56)
    assert 1.71 < tightened(topology, demand, known, us_to_ps(1.9), 60.0).us <= 1.725


def test_blocks_that_differ_by_a_byte_count_as_the_least():
    topology, demand = machine("dgx1"), collective("alltoall", 8, 64_003, 1)
    assert tightened(topology, demand, lower_bound(topology, demand), us_to_ps(1.9), 60.0).us > 1.71


def test_a_dragonfly_that_cuts_do_not_explain():
    """Cuts see 4.72 us. Direct ways alone would hold the links between groups too long, relays alone cost latency."""
    topology, demand = machine("dragonfly:4:2:1"), collective("allgather", 40, 64_000, 1)
    known = lower_bound(topology, demand)
    assert known.us == pytest.approx(4.72)
    found = tightened(topology, demand, known, us_to_ps(7.0), 60.0)
    assert 5.3 < found.us < 5.5
    assert found.kind == "timed"


def test_what_is_known_stays_where_there_is_nothing_better():
    ring, demand = machine("ring:4"), collective("allgather", 4, 4_000_000, 1)
    known = lower_bound(ring, demand)
    assert tightened(ring, demand, known, 1.5 * known.ps, 60.0) is known
    other = collective("scatter", 4, 4_000_000, 1)
    assert tightened(ring, other, Bound(5, "cut", ""), 1e9, 60.0) == Bound(5, "cut", "")
