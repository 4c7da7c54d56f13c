from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from flowccl.demand.collectives import collective
from flowccl.errors import DemandError
from flowccl.methods.registry import load_method
from flowccl.papers.fluid import fluid_optimum
from flowccl.papers.fluid.method import fluid, source_paths
from flowccl.problem import Problem
from flowccl.search.context import SearchContext
from flowccl.topology.machines import machine
from flowccl.topology.symmetry.permutations import symmetry, verified
from flowccl.topology.topology import Limit, Topology
from flowccl.verifier.verify import verify


def slowed(name: str) -> Topology:
    """A machine with one link at half its bandwidth."""
    topology = machine(name)
    links = list(topology.links)
    links[3] = replace(links[3], bandwidth_GBps=links[3].bandwidth_GBps / 2)
    return replace(topology, links=tuple(links))


@pytest.mark.parametrize(
    ("topology", "kind", "chunks", "gap"),
    [
        (machine("ndv2:2"), "alltoall", 1, 0.001),
        (machine("dgx_a100:2"), "alltoall", 1, 0.001),
        (machine("torus:3x4"), "alltoall", 8, 0.02),
        (machine("mesh:3x3"), "alltoall", 8, 0.02),
        (slowed("torus:3x3"), "alltoall", 16, 0.05),
        (machine("dgx_a100:2"), "allgather", 4, 0.02),
        (slowed("torus:3x3"), "allgather", 32, 0.1),
        (machine("torus:3x4"), "reduce_scatter", 32, 0.02),
        (machine("ring:5"), "broadcast", 64, 0.1),
    ],
    ids=str,
)
def test_verified_and_near_the_optimum(topology: Topology, kind: str, chunks: int, gap: float) -> None:
    context = SearchContext.with_limit(60.0)
    demand = collective(kind, topology.num_gpus, 10**9, chunks)
    schedule = [s for s in islice(load_method("fluid")(Problem(topology, demand), context), 8) if s is not None][-1]
    assert verify(schedule) == []
    assert 1 - 1e-6 <= schedule.finish_us / float(str(context.notes["optimum_us"])) <= 1 + gap


@pytest.mark.parametrize("kind", ["allgather", "alltoall"])
def test_limits_are_respected(kind: str) -> None:
    plain = machine("full:4")
    inward = [Limit(name=f"in{i}", links=_into(plain, i), bandwidth_GBps=50.0) for i in range(4)]
    topology = replace(plain, limits=tuple(inward))
    demand = collective(kind, 4, 10**9, 6)
    context = SearchContext.with_limit(60.0)
    schedule = [s for s in islice(fluid(Problem(topology, demand), context), 4) if s is not None][-1]
    assert verify(schedule) == []
    assert context.notes["optimum_us"] == pytest.approx(0.75e9 / 50e3)
    assert schedule.finish_us <= 0.75e9 / 50e3 * 1.3


def _into(topology: Topology, node: int) -> tuple[int, ...]:
    return tuple(np.flatnonzero(topology.link_dst == node).tolist())


@pytest.mark.parametrize("name", ["torus:3x3", "dgx_a100:2", "ndv2:1"])
def test_paths_carry_the_flow(name: str) -> None:
    topology = machine(name)
    optimum = fluid_optimum(topology, "alltoall")
    load, share = np.zeros(len(topology.links)), np.eye(topology.num_gpus)
    for source, path in source_paths(optimum):
        load[list(path.arcs)] += path.amount
        share[source, path.end] += path.amount
    assert share == pytest.approx(1.0, abs=1e-5)
    time = (load / topology.link_GBps).max()
    assert time == pytest.approx(optimum.seconds_per_GB, rel=1e-5)


def test_flows_summed_over_destinations_have_the_same_optimum_with_and_without_symmetry() -> None:
    topology = machine("torus:2x4")
    small, whole = (fluid_optimum(topology, "alltoall", group=g) for g in (symmetry(topology), verified(topology, [])))
    assert small.seconds_per_GB == pytest.approx(whole.seconds_per_GB, rel=1e-6)


def test_unsupported_demands() -> None:
    ring = machine("ring:4")
    with pytest.raises(DemandError, match="method fluid needs chunks that go to all ranks"):
        next(fluid(Problem(ring, collective("scatter", 4, 1000)), SearchContext.with_limit(1.0)))
