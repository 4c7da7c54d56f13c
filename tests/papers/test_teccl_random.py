"""Any machine: switches of all kinds, limits, memories; every schedule is verified."""

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from flowccl.demand.collectives import collective
from flowccl.errors import NothingFoundError
from flowccl.topology.topology import Topology
from tests.papers.teccl_cases import run
from tests.strategies import topologies

CASES = [("milp", "allgather"), ("milp", "alltoall"), ("lp", "alltoall"), ("astar", "allgather")]


def check(method: str, name: str, topology: Topology, start: bool) -> None:
    demand = collective(name, topology.num_gpus, 1_000_000 * topology.num_gpus)
    try:
        schedule, notes = run(method, topology, demand, 2.0, epoch="slow", warm_start=start)
    except NothingFoundError:
        reject()
    assert notes["epochs"] >= notes["epochs_bound"]
    assert schedule.finish_us <= notes["plan_finish_us"] * (1 + 1e-9)


@pytest.mark.parametrize(("method", "name"), CASES)
def test_all_kinds_of_machines(method: str, name: str) -> None:
    @settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(topologies(max_gpus=3, max_switches=1, changes=False), st.booleans())
    def some(topology: Topology, start: bool) -> None:
        check(method, name, topology, start)

    some()


@pytest.mark.slow
@pytest.mark.parametrize(("method", "name"), CASES)
def test_many_kinds_of_machines(method: str, name: str) -> None:
    @settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(topologies(max_gpus=4, max_switches=2, changes=False), st.booleans())
    def many(topology: Topology, start: bool) -> None:
        check(method, name, topology, start)

    many()
