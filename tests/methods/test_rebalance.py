from itertools import islice

import numpy as np
import pytest

from flowccl.bounds.lower_bound import lower_bound
from flowccl.demand.collectives import collective
from flowccl.errors import DemandError
from flowccl.methods.rebalance.balance import ParentTables, TreeBalance
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.faults import with_faults
from flowccl.topology.machines import machine
from flowccl.topology.topology import Topology
from flowccl.verifier.verify import verify

TORUS = machine("torus:4x4")
FAULTY = with_faults(TORUS, without=["gpu0 <-> gpu1", "gpu6 -> gpu10"])


def best(method: str, topology: Topology, name: str, chunks: int) -> Schedule:
    problem = Problem(topology, collective(name, topology.num_gpus, 64_000_000, chunks))
    found = islice(load_method(method)(problem, SearchContext.with_limit(60.0)), 8)
    return [schedule for schedule in found if schedule is not None][-1]


@pytest.mark.parametrize("name", ["allreduce", "allgather", "reduce_scatter"])
def test_valid_and_near_the_bound(name: str) -> None:
    schedule = best("rebalance", FAULTY, name, 8)
    assert not verify(schedule)
    assert schedule.finish_ps <= 1.12 * lower_bound(FAULTY, schedule.demand).ps


def test_slow_link() -> None:
    slow = with_faults(TORUS, slow=["gpu0 <-> gpu1=50Gb/s"])
    schedule = best("rebalance", slow, "allreduce", 4)
    assert not verify(schedule)
    assert schedule.finish_ps <= 1.15 * lower_bound(slow, schedule.demand).ps


def test_loads_become_equal() -> None:
    schedule = best("symmetric", TORUS, "allreduce", 4)
    trees = ParentTables.of(schedule)
    assert trees is not None
    balance = TreeBalance(FAULTY, trees, schedule.demand.chunk_bytes)
    assert len(balance.lost)
    assert balance.run()
    tree, child = np.nonzero(trees.parent >= 0)
    assert (balance._links_of(tree, child) < len(FAULTY.links)).all()
    assert (np.count_nonzero(trees.parent < 0, axis=1) == 1).all()
    assert balance.load_ps.max() <= 1.06 * balance.load_ps.mean()


def test_a_machine_without_faults_is_refused() -> None:
    problem = Problem(TORUS, collective("allreduce", 16, 64_000_000, 1))
    with pytest.raises(DemandError, match="method rebalance needs a machine that is regular but for a few faults"):
        next(load_method("rebalance")(problem, SearchContext.with_limit(60.0)))
