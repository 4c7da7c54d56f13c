"""Partition bounds: known values, and never above a schedule."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowccl.bounds.lower_bound import bounds, lower_bound
from flowccl.demand.collectives import collective
from flowccl.demand.groups import group_collective, with_late
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.search.context import SearchContext
from flowccl.topology.files import read_machine
from flowccl.topology.topology import Link, Node, Topology
from tests.strategies import demands, topologies

GB = 10**9


@pytest.mark.parametrize(
    ("machine", "known_us"),
    [
        ("ring:8", 2 * 7 / 8 * 1e9 / 50e3),  # two links of 25 GB/s into every GPU
        ("dgx_a100:4", 2 * 3 / 4 * 1e9 / 200e3),  # eight NICs of 25 GB/s into every host
        ("torus:4x4", 2 * 15 / 16 * 1e9 / 100e3),
    ],
)
def test_allreduce_moves_every_byte_twice(machine: str, known_us: float) -> None:
    topology = read_machine(machine)
    bound = lower_bound(topology, collective("allreduce", topology.num_gpus, GB))
    assert bound.kind == "partition"
    assert known_us <= bound.us <= known_us * 1.001
    assert "to reduce and to distribute" in bound.witness


def test_a_switch_that_reduces_and_copies_saves_half() -> None:
    topology = read_machine("dgx_h100:1")
    bound = lower_bound(topology, collective("allreduce", 8, GB))
    assert bound.us == pytest.approx(1e9 / 450e3, rel=0.001)


def test_reduce_scatter_is_theorem_16() -> None:
    topology = read_machine("ring:8")
    bound = lower_bound(topology, collective("reduce_scatter", 8, GB))
    assert bound.us == pytest.approx(7 / 8 * 1e9 / 50e3, rel=0.001)


def test_release_times_are_part_of_the_bound() -> None:
    topology = read_machine("ring:8")
    for name in ("allgather", "reduce", "allreduce"):
        demand = collective(name, 8, 1000)
        late = with_late(demand, {3: 20_000_000})
        assert lower_bound(topology, late).us >= 20
        assert lower_bound(topology, late).ps > lower_bound(topology, demand).ps
    kinds = {bound.kind for bound in bounds(topology, late)}
    assert "release time" in kinds


def test_a_group_without_relays_has_fewer_links() -> None:
    topology = read_machine("torus:4x4")
    free = group_collective("allgather", GB, range(8), 16)
    alone = group_collective("allgather", GB, range(8), 16, relays=())
    assert lower_bound(topology, alone).ps > lower_bound(topology, free).ps


def test_the_weakest_partition_is_found() -> None:
    """Two triangles of fast links and one slow link between them: two parts, not single GPUs."""
    nodes = tuple(Node(name=f"gpu{i}") for i in (3, 0, 4, 1, 5, 2))
    wide = [(0, 2), (2, 4), (4, 0), (1, 3), (3, 5), (5, 1)]
    sides = [(a, b, 100.0) for a, b in wide] + [(0, 1, 10.0)]
    links = [Link(src=s, dst=d, bandwidth_GBps=w) for a, b, w in sides for s, d in ((a, b), (b, a))]
    found = bounds(Topology("triangles", nodes, tuple(links)), collective("allreduce", 6, GB))
    best = max((bound for bound in found if bound.kind == "partition"), key=lambda bound: bound.ps)
    assert best.us == pytest.approx(2 * 1e9 / 20e3, rel=1e-3)
    assert "each of 2 well-connected parts" in best.witness


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_no_schedule_beats_the_bound(data: st.DataObject) -> None:
    topology = data.draw(topologies(limits=False, changes=False))
    demand = data.draw(demands(topology.num_gpus, reductions=True))
    late = data.draw(st.dictionaries(st.integers(0, topology.num_gpus - 1), st.integers(0, 30_000_000), max_size=2))
    demand = with_late(demand, late)
    schedule = next(load_method("greedy")(Problem(topology, demand), SearchContext.with_limit(1.0)))
    if schedule is not None:
        bound = lower_bound(topology, demand)
        assert schedule.finish_ps >= bound.ps, bound.witness


@pytest.mark.parametrize("name", ["allgather", "alltoall", "broadcast"])
def test_witnesses_speak_of_reductions_only_where_there_are_some(name: str) -> None:
    for machine in ("ring:8", "dgx_a100:2"):
        topology = read_machine(machine)
        found = bounds(topology, collective(name, topology.num_gpus, GB))
        assert not any("reduc" in bound.witness for bound in found)
