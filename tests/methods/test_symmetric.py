from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from flowccl.bounds.lower_bound import lower_bound
from flowccl.demand.collectives import collective
from flowccl.errors import DemandError
from flowccl.methods.registry import load_method
from flowccl.methods.symmetric import symmetric, symmetric_routes
from flowccl.methods.symmetric.one_source import OneSource, deliver_one, spread_one
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.machines import machine
from flowccl.topology.topology import Topology
from flowccl.verifier.compact import verify_compact
from flowccl.verifier.verify import verify

NEVER = 2**60


def best(topology: Topology, name: str, size_bytes: int, chunks: int, runs: int = 10) -> Schedule:
    demand = collective(name, topology.num_gpus, size_bytes, chunks)
    found = islice(load_method("symmetric")(Problem(topology, demand), SearchContext.with_limit(60.0)), runs)
    return [schedule for schedule in found if schedule is not None][-1]


def one_source(topology: Topology, block_bytes: int, pieces: int, *, copies: bool = True) -> OneSource:
    source_routes = symmetric_routes(topology)
    assert source_routes is not None
    kinds, random = source_routes.kinds(-(-block_bytes // pieces)), np.random.default_rng(0)
    if not copies:
        return deliver_one(source_routes, kinds, pieces, random)
    found = spread_one(source_routes, kinds, pieces, random, NEVER)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "collective_name", "chunks", "gap"),
    [
        ("ring:5", "allgather", 2, 0.001),
        ("torus:4x4", "allgather", 4, 0.001),
        ("torus:3x5", "allgather", 4, 0.05),
        ("full:6", "allgather", 1, 0.001),
        ("hypercube:4", "allgather", 4, 0.05),
        ("dgx_a100:2", "allgather", 8, 0.01),
        ("dgx_h100:3", "allgather", 16, 0.05),
        ("torus:4x4", "reduce_scatter", 4, 0.001),
        ("torus:4x4", "allreduce", 4, 0.01),
        ("dgx_a100:4", "alltoall", 1, 0.001),
        ("hypercube:4", "alltoall", 2, 0.001),
        ("torus:4x4", "alltoall", 4, 0.01),
        ("star:5", "alltoall", 1, 0.001),
    ],
)
def test_schedules_are_valid_and_near_the_lower_bound(name: str, collective_name: str, chunks: int, gap: float) -> None:
    topology = machine(name)
    runs = 5 if collective_name == "alltoall" else 30
    schedule = best(topology, collective_name, 10**9 + 7, chunks, runs)  # blocks of unequal size
    assert verify(schedule) == []
    assert schedule.finish_ps <= lower_bound(topology, schedule.demand).ps * (1 + gap)


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("name", ["ring:5", "torus:3x4", "dgx_a100:2", "hypercube:3"])
def test_compact_and_expanded_verification_agree(name: str, copies: bool) -> None:
    topology = machine(name)
    one = one_source(topology, 10**6, 2, copies=copies)
    compact = one.compact(10**6)
    assert verify_compact(compact, one.source_routes.group) == []
    count = topology.num_gpus
    demand = collective("allgather" if copies else "alltoall", count, 10**6 * count, 2)
    whole = one.expanded(demand, "symmetric")
    assert verify(whole) == []
    assert whole.finish_ps == compact.finish_ps == one.finish_ps
    assert len(whole) == count * len(compact)


@pytest.mark.parametrize("name", ["torus:3x4", "dgx_a100:2"])
def test_compact_verification_detects_conflicts_between_sources(name: str) -> None:
    """A transfer that starts too early may be valid alone but conflict with other sources; both verifiers agree."""
    topology = machine(name)
    one = one_source(topology, 10**6, 1)
    demand = collective("allgather", topology.num_gpus, 10**6 * topology.num_gpus)
    wrong = 0
    for i in range(len(one)):
        start = one.start_ps.copy()
        start[i] = max(start[i] - 1000, 0)
        moved = replace(one, start_ps=start)
        compact = verify_compact(moved.compact(10**6), one.source_routes.group)
        assert bool(compact) == bool(verify(moved.expanded(demand, "symmetric")))
        wrong += bool(compact)
    assert wrong > 0


def test_compact_verification_checks_the_group() -> None:
    topology = machine("torus:3x4")
    one = one_source(topology, 10**6, 1)
    compact, group = one.compact(10**6), one.source_routes.group
    links = list(topology.links)
    links[3] = replace(links[3], bandwidth_GBps=100.0)
    other = replace(compact, topology=replace(topology, links=tuple(links)))
    assert any(v.kind == "machine" for v in verify_compact(other, group))
    shuffled = replace(group, order=group.order[::-1])
    assert any(v.kind == "machine" for v in verify_compact(compact, shuffled))


def test_unsupported_demands_and_machines_raise() -> None:
    ring = machine("ring:4")
    with pytest.raises(DemandError, match="allgather and alltoall"):
        next(symmetric(Problem(ring, collective("broadcast", 4, 1000)), SearchContext.with_limit(1.0)))
    with pytest.raises(DemandError, match="looks the same from every GPU"):
        next(symmetric(Problem(machine("line:4"), collective("allgather", 4, 1000)), SearchContext.with_limit(1.0)))


@pytest.mark.slow
def test_a_torus_of_40000_gpus_in_compact_form() -> None:
    one = one_source(machine("torus:200x200"), 25_000, 1)
    compact = one.compact(25_000)
    assert verify_compact(compact, one.source_routes.group) == []
    assert compact.finish_us <= 39_999 * 25_000 / 100 / 1000 * 1.001


@pytest.mark.slow
@pytest.mark.parametrize("name", ["allgather", "alltoall"])
def test_1024_gpus_expanded(name: str) -> None:
    topology = machine("dgx_a100:128")
    schedule = best(topology, name, 10**9, 1, 1)
    assert verify(schedule) == []
    blocks = 127 if name == "allgather" else 127 * 8
    assert schedule.finish_us <= blocks * 10**9 / 1024 / 25 / 1000 * 1.02


@pytest.mark.parametrize("seed", range(4))
def test_no_orbit_of_links_is_idle_in_an_alltoall_on_a_torus(seed):
    """By pencil: each GPU sends 256 blocks of 1 MB over 8 hops on average, on 4 links of 25 GB/s: 20,480 us."""
    source_routes = symmetric_routes(machine("torus:16x16"))
    assert source_routes is not None
    found = deliver_one(source_routes, source_routes.kinds(10**6), 1, np.random.default_rng(seed))
    assert found.finish_ps / 1e6 == pytest.approx(20480, rel=1e-4)
