"""Any machine: switches of all kinds, limits, memories, bandwidths that change; every schedule is verified."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowccl.demand.collectives import collective
from flowccl.errors import NothingFoundError
from tests.methods.teccl_cases import run
from tests.strategies import topologies

few = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize(
    ("method", "name"), [("milp", "allgather"), ("milp", "alltoall"), ("lp", "alltoall"), ("astar", "allgather")]
)
@given(data=st.data())
@few
def test_all_kinds_of_machines(method, name, data):
    topology = data.draw(topologies(min_gpus=2, max_gpus=4, max_switches=2))
    demand = collective(name, topology.num_gpus, 1_000_000 * topology.num_gpus)
    start = data.draw(st.booleans())
    try:
        schedule, notes = run(method, topology, demand, 3.0, epoch="slow", warm_start=start)
    except NothingFoundError:
        return
    assert notes["epochs"] >= notes["epochs_floor"]
    assert schedule.finish_us <= notes["plan_finish_us"] * (1 + 1e-9)
