"""Phase insertion: one phase is inserted into the idle times of the other."""

from itertools import islice

import pytest

from flowccl.auto.portfolio import portfolio
from flowccl.bounds.lower_bound import lower_bound
from flowccl.demand.collectives import collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.errors import DemandError
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.search.context import SearchContext
from flowccl.topology.builders import line
from flowccl.topology.files import read_machine
from flowccl.verifier.verify import verify


def beside(gpus: int, size_bytes: int, chunks: int) -> Demand:
    """A broadcast from the first rank, and a reduce to the last rank."""
    every = tuple(range(gpus))
    rows = [Chunk(bytes=size_bytes, sources=(0,), destinations=every[1:]) for _ in range(chunks)]
    rows += [Chunk(bytes=size_bytes, sources=every, destinations=(gpus - 1,)) for _ in range(chunks)]
    return Demand.from_chunks("custom", gpus, rows, pieces=chunks)


@pytest.mark.parametrize("machine", ["ring:5", "dgx1", "dgx_a100:2"])
def test_both_orders_of_the_phases_are_valid(machine: str) -> None:
    topology = read_machine(machine)
    for demand in (
        beside(topology.num_gpus, 10_000, 3),
        collective("allreduce", topology.num_gpus, 100_000),
    ):
        found = [
            one
            for one in islice(
                load_method("phase-insertion")(Problem(topology, demand), SearchContext.with_limit(60.0)), 6
            )
            if one is not None
        ]
        assert found
        assert [verify(one) for one in found] == [[]] * len(found)


def test_the_inserted_phase_uses_idle_links() -> None:
    """On a line of three, the broadcast uses the idle times of the reduction; only the last link is shared."""
    topology, demand = line(3, bandwidth_GBps=10, latency_us=0), beside(3, 10_000, 1)
    found = [
        one
        for one in islice(load_method("phase-insertion")(Problem(topology, demand), SearchContext.with_limit(60.0)), 8)
        if one is not None
    ]
    assert found[-1].finish_us == pytest.approx(3)
    assert lower_bound(topology, demand).us <= 3


def test_it_needs_a_reduction_and_a_distribution() -> None:
    topology = read_machine("dgx1")
    assert "phase-insertion" in portfolio(Problem(topology, beside(8, 100_000, 1)))
    assert "phase-insertion" not in portfolio(Problem(topology, beside(8, 10**9, 1)))  # latency does not matter
    assert "phase-insertion" not in portfolio(Problem(topology, collective("allreduce", 8, 10**6)))
    with pytest.raises(DemandError, match="method phase-insertion is for reductions with several destinations"):
        next(
            load_method("phase-insertion")(
                Problem(topology, collective("allgather", 8, 1000)), SearchContext.with_limit(1.0)
            )
        )
