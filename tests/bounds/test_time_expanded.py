"""The time-expanded LP bound: never above a schedule, and better than all other bounds in known cases."""

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


def bound_ps(topology, demand, most_ps):
    """The bound, given only that it is below `most_ps`."""
    return time_expanded_bound_ps(Commodities.of(demand, topology), 1e-3 * most_ps, most_ps, 60.0)


@given(
    topologies(max_switches=2, limits=False, changes=False),
    st.sampled_from([2_000, 60_000, 900_000]),
    st.sampled_from(["allgather", "alltoall"]),
)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_schedule_is_earlier(topology, size, name):
    found = synthesize(topology, name, size, method="greedy", chunks=2, steps=3, time_limit_s=100)
    demand = collective(name, topology.num_gpus, size, 1)
    assert bound_ps(topology, demand, 2.0 * found.schedule.finish_ps) <= found.schedule.finish_ps


KNOWN = ("allgather", "alltoall")
SOLVED = [case for case in CASES if case.demand.collective in KNOWN and not case.topology.limits]


@pytest.mark.parametrize("case", SOLVED, ids=str)
def test_the_known_optimum_is_not_below_the_bound(case):
    assert bound_ps(case.topology, case.demand, 3.0 * us_to_ps(case.best_us)) <= us_to_ps(case.best_us)


def test_a_ring_with_a_known_bound():
    """Three GPUs in a ring of 1 GB/s, 1 us, 1 KB each: both neighbours get each block directly, in 2 us."""
    ring, demand = machine("ring:3:bandwidth=1:latency=1"), collective("allgather", 3, 3_000, 1)
    assert bound_ps(ring, demand, us_to_ps(10.0)) == pytest.approx(us_to_ps(2.0), rel=0.01)


def test_an_alltoall_on_a_line_with_a_known_bound():
    """Three GPUs in a line of 1 GB/s, 1 us, 1 KB for each other: 2 KB over every link, and 1 us for the last byte."""
    line, demand = machine("line:3:bandwidth=1:latency=1"), collective("alltoall", 3, 3_000, 1)
    assert bound_ps(line, demand, us_to_ps(10.0)) == pytest.approx(us_to_ps(3.0), rel=0.01)


def test_an_alltoall_on_a_dgx1_that_is_better_than_cuts():
    """Cuts give 1.56 us, the best known schedule takes 1.725 us."""
    topology, demand = machine("dgx1"), collective("alltoall", 8, 64_000, 1)
    known = lower_bound(topology, demand)
    assert known.us == pytest.approx(1.56)
    assert 1.71 < tightened(topology, demand, known, us_to_ps(1.9), 60.0).us <= 1.725


def test_blocks_that_differ_by_a_byte_count_as_the_smallest():
    topology, demand = machine("dgx1"), collective("alltoall", 8, 64_003, 1)
    assert tightened(topology, demand, lower_bound(topology, demand), us_to_ps(1.9), 60.0).us > 1.71


def test_a_dragonfly_that_is_better_than_cuts():
    """Cuts give 4.72 us. Direct paths alone overload the links between groups, relays alone cost latency."""
    topology, demand = machine("dragonfly:4:2:1"), collective("allgather", 40, 64_000, 1)
    known = lower_bound(topology, demand)
    assert known.us == pytest.approx(4.72)
    found = tightened(topology, demand, known, us_to_ps(7.0), 60.0)
    assert 5.3 < found.us < 5.5
    assert found.kind == "time-expanded LP"


def test_the_known_bound_stays_if_none_is_better():
    ring, demand = machine("ring:4"), collective("allgather", 4, 4_000_000, 1)
    known = lower_bound(ring, demand)
    assert tightened(ring, demand, known, 1.5 * known.ps, 60.0) is known
    other = collective("scatter", 4, 4_000_000, 1)
    assert tightened(ring, other, Bound(5, "cut", ""), 1e9, 60.0) == Bound(5, "cut", "")
