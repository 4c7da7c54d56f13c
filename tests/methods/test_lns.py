"""Method lns: valid on random machines, improving step by step, deterministic per seed, and optimal on known cases."""

from itertools import islice
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowccl.bounds.lower_bound import lower_bound
from flowccl.demand.collectives import collective
from flowccl.errors import DemandError
from flowccl.methods.lns import LnsSearch, timetable_kernels
from flowccl.methods.lns.insertion_kernels import _is_connected
from flowccl.methods.lns.timetable_kernels import Timetable
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.search.context import SearchContext
from flowccl.synthesis import synthesize
from flowccl.topology.builders import dragonfly, ring, star
from flowccl.topology.machines import machine
from flowccl.units import us_to_ps
from flowccl.verifier.verify import verify
from tests.cases import CASES
from tests.strategies import demands, topologies


def plain(topology):
    """Whether lns supports everything that the machine has."""
    through = [node for node in topology.nodes if not node.stores and node.crossing == "store-and-forward"]
    small = [node for node in topology.nodes if node.buffer_bytes is not None]
    return not (topology.limits or topology.changes or through or small)


@st.composite
def problems(draw):
    topology = draw(topologies(max_switches=2, limits=False, changes=False).filter(plain))
    return topology, draw(demands(topology.num_gpus, reductions=False))


@given(problems())
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
def test_every_schedule_is_valid_and_better_than_all_before(problem):
    topology, demand = problem
    search = LnsSearch(topology, demand, seed=1)
    last = float("inf")
    for _ in range(8):
        found = search.step()
        if found is not None:
            assert verify(found) == []
            assert lower_bound(topology, demand).ps <= found.finish_ps <= search.best_ps
            assert search.best_ps < last
            last = search.best_ps
    assert last < float("inf")


KNOWN = [case for case in CASES if plain(case.topology) and not case.demand.reduces and "multicast" not in case.name]


@pytest.mark.parametrize("case", KNOWN, ids=str)
def test_lns_finds_the_known_optimum(case):
    found = [
        s
        for s in islice(load_method("lns")(Problem(case.topology, case.demand), SearchContext.with_limit(60.0)), 20)
        if s is not None
    ]
    assert found[-1].finish_ps == us_to_ps(case.best_us)


def test_the_same_seed_gives_the_same_schedules():
    topology, demand = machine("mi250:1"), collective("allgather", 16, 64_000, 1)
    runs = [LnsSearch(topology, demand, seed=3) for _ in range(2)]
    for _ in range(8):
        assert runs[0].step() == runs[1].step()
    assert runs[0].best_ps == runs[1].best_ps


def test_short_chunks_use_idle_slots_between_bookings():
    """A list scheduler that only appends to the bookings of a link needs 14 us here."""
    topology = dragonfly(4, 2, 1)
    demand = collective("allgather", topology.num_gpus, 1_000, 1)
    found = LnsSearch(topology, demand, seed=0).step()
    assert found.finish_ps <= 1.03 * lower_bound(topology, demand).ps


def test_reductions_raise_a_demand_error():
    demand = collective("allreduce", 4, 1_000, 1)
    from flowccl.methods.lns import lns

    with pytest.raises(DemandError, match="method lns needs chunks with one source each; allreduce reduces several"):
        next(lns(Problem(ring(4), demand), SearchContext.with_limit(1.0)))


def test_auto_skips_it_where_it_does_not_apply():
    topology = star(4, bandwidth_GBps=10, crossing="store-and-forward")
    assert synthesize(topology, "allgather", 4_000, steps=12).schedule.method != "lns"


def test_the_target_is_never_below_the_lower_bound():
    search = LnsSearch(ring(4), collective("allgather", 4, 4000), seed=0)
    search.state_ps, search.bound_ps = 1_000_100, 1_000_000.0
    for search.target_drop in (0.001, 0.03, 0.1):
        assert 1_000_000 <= search._target_ps() <= 1_000_100
    search.bound_ps = 900_000.0  # far from the bound, the drop is relative to the completion time
    assert search._target_ps() == 900_090


def uncompiled(function):
    return getattr(function, "py_func", function)


def test_a_path_that_closed_a_cycle_is_not_booked():
    """Nodes 1 -> 2 -> 3 -> 1 feed each other, 4 hangs on them, 5 has lost its route, 6 begins in the tree at 0."""
    net = SimpleNamespace(start=np.array([0, 1, 2, 3, 3, 0]))
    trees = SimpleNamespace(route=np.array([[-1, 3, 1, 2, 4, -1, 5]]))
    scratch = SimpleNamespace(member=np.arange(7) == 0)
    assert [node for node in range(7) if uncompiled(_is_connected)(net, trees, scratch, 0, node)] == [0, 6]


@pytest.mark.parametrize(
    ("begin", "until"), [([0, 0, 30], [10, 20, 34]), ([0, 5, 30], [10, 20, 34]), ([0, 2, 2], [20, 4, 10])]
)
def test_the_search_for_slots_ends_where_bookings_overlap(begin, until):
    """The only link is busy up to 20 ps; a search that goes back to earlier bookings would never end."""
    table = Timetable(np.array([3]), np.array([begin]), np.array([until]), np.zeros((1, 3), dtype=np.int32))
    net = SimpleNamespace(hop_ptr=np.array([0, 1]), hop_link=np.array([0]), hop_offset_ps=np.array([0]))
    with patch.object(timetable_kernels, "first_after", uncompiled(timetable_kernels.first_after)):
        assert uncompiled(timetable_kernels.earliest)(net, table, 0, 5, 0, np.inf) == 20
