"""Reductions: every contribution exactly once, checked by the verifier and with real data."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from flowccl.adapters.reduction import owners_on_direct_links
from flowccl.demand.collectives import collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.demand.groups import with_late
from flowccl.errors import DemandError
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.run.element_layout import make_layout
from flowccl.run.reference import execute_into
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.synthesis import synthesize
from flowccl.topology.faults import with_faults
from flowccl.topology.files import read_machine
from flowccl.topology.topology import Link, Node, Topology
from flowccl.verifier.verify import verify
from tests.strategies import demands, topologies


def _assert_exact_sums(schedule: Schedule, count: int) -> None:
    """Assert that every destination ends with the exact sum over all sources."""
    demand = schedule.demand
    layout = make_layout(demand, count)
    random = np.random.default_rng(0)
    inputs = [random.integers(0, 1000, size).astype(np.float64) for size in layout.input_count]
    outputs = [np.zeros(size) for size in layout.output_count]
    execute_into(schedule, layout, inputs, outputs)
    for chunk in range(len(demand)):
        total = sum(inputs[s][layout.taken[s, chunk]] for s in demand.sources(chunk).tolist())
        for d in demand.destinations(chunk).tolist():
            np.testing.assert_array_equal(outputs[d][layout.placed[d, chunk]], total)


def _random_machine(random: np.random.Generator) -> Topology:
    """Three to five GPUs on a ring and some other links, sometimes with a switch that reduces and copies."""
    gpus = int(random.integers(3, 6))
    nodes = [Node(name=f"gpu{i}") for i in range(gpus)]
    pairs = [(i, (i + 1) % gpus) for i in range(gpus)]
    pairs += [tuple(random.choice(gpus, 2, replace=False).tolist()) for _ in range(int(random.integers(0, 4)))]
    if random.random() < 0.5:
        skills = bool(random.random() < 0.7)
        nodes.append(Node(name="switch", kind="switch", copies=skills, reduces=skills))
        pairs += [(i, gpus) for i in range(gpus)]
    links = [
        Link(src=s, dst=d, bandwidth_GBps=float(random.choice([5, 25])), latency_us=float(random.choice([0, 0.7])))
        for a, b in pairs
        for s, d in ((a, b), (b, a))
    ]
    return Topology("random", tuple(nodes), tuple(links))


def _random_reduction(random: np.random.Generator, gpus: int) -> Demand:
    """A named reduction, or a few reductions from some ranks to some ranks; sometimes with a late GPU."""
    name = str(random.choice(["reduce", "reduce_scatter", "allreduce", "custom"]))
    if name == "custom":
        ranks = [random.permutation(gpus)[: random.integers(2, gpus + 1)].tolist() for _ in range(6)]
        rows = [
            Chunk(bytes=7000, sources=tuple(a), destinations=tuple(b))
            for a, b in zip(ranks[:3], ranks[3:], strict=True)
        ]
        demand = Demand.from_chunks("custom", gpus, rows)
    else:
        demand = collective(name, gpus, int(random.choice([1000, 10**6])), int(random.integers(1, 3)))
    return with_late(demand, {int(random.integers(gpus)): 3_000_000}) if random.random() < 0.3 else demand


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["greedy", "reroute", "direct"]))
def test_three_hundred_reductions(seed: int, method: str) -> None:
    random = np.random.default_rng(seed)
    topology = _random_machine(random)
    demand = _random_reduction(random, topology.num_gpus)
    schedule = next(load_method(method)(Problem(topology, demand), SearchContext.with_limit(1.0, seed=seed)))
    assert schedule is not None
    assert verify(schedule) == []
    _assert_exact_sums(schedule, 60)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_every_contribution_once(data: st.DataObject) -> None:
    topology = data.draw(topologies(max_gpus=5))
    demand = data.draw(demands(topology.num_gpus, reductions=True, max_chunks=2))
    assume(demand.reduces)
    late = data.draw(st.dictionaries(st.integers(0, topology.num_gpus - 1), st.integers(0, 9_000_000), max_size=1))
    demand = with_late(demand, late)
    schedule = next(load_method("greedy")(Problem(topology, demand), SearchContext.with_limit(1.0)))
    assume(schedule is not None)
    assert verify(schedule) == []
    _assert_exact_sums(schedule, 60)


@pytest.mark.parametrize("machine", ["dgx1", "torus:4x4", "mi250:1", "dgx_a100:2", "ring:8", "ndv2:2"])
@pytest.mark.parametrize("size", [1000, 10**6])
def test_staged_exchange(machine: str, size: int) -> None:
    topology = read_machine(machine)
    demand = collective("allreduce", topology.num_gpus, size)
    steps = load_method("staged-exchange")(Problem(topology, demand), SearchContext.with_limit(9.0))
    found = list(islice((schedule for schedule in steps if schedule is not None), 4))
    for schedule in found[-1:]:
        assert verify(schedule) == []
        _assert_exact_sums(schedule, 64)
    assert found


@pytest.mark.parametrize(("machine", "expected_us"), [("dgx1", 2 * 0.7), ("torus:4x4", 4 * 0.7), ("dgx_h100:1", 0.7)])
def test_staged_exchange_takes_the_latency_of_the_farthest_rank(machine: str, expected_us: float) -> None:
    topology = read_machine(machine)
    demand = collective("allreduce", topology.num_gpus, 1000)
    best = min(
        s.finish_us
        for s in load_method("staged-exchange")(Problem(topology, demand), SearchContext.with_limit(9.0))
        if s is not None
    )
    assert expected_us <= best <= 1.05 * expected_us


def test_chunks_of_a_staged_exchange_start_with_different_stages() -> None:
    """A square, four chunks of 0.4 us, two stages: in each stage, both links of a GPU carry two chunks.

    The second stage of the last chunk begins at 0.7 + 2 x 0.4 us. If all chunks started with the same stage, one link
    would carry all four, and it would begin at 0.7 + 4 x 0.4 us.
    """
    topology, demand = read_machine("hypercube:2"), collective("allreduce", 4, 40_000)
    best = min(
        s.finish_us
        for s in load_method("staged-exchange")(Problem(topology, demand), SearchContext.with_limit(9.0))
        if s is not None
    )
    assert best == pytest.approx((0.7 + 2 * 0.4) + (0.7 + 0.4))


@pytest.mark.parametrize(("machine", "hops"), [("ring:5", 2), ("line:4", 3), ("torus:3x3", 2)])
def test_one_shot_takes_the_latency_of_the_farthest_rank(machine: str, hops: int) -> None:
    """Where no staged exchange is possible: every destination reduces for itself and waits for no partial result."""
    topology = read_machine(machine)
    demand = collective("allreduce", topology.num_gpus, 100)
    schedule = next(load_method("one-shot")(Problem(topology, demand), SearchContext.with_limit(9.0)))
    assert verify(schedule) == []
    assert hops * 0.7 < schedule.finish_us < hops * 0.7 + 0.1
    layout = make_layout(schedule.demand, 64)
    inputs = [np.arange(64.0) * (rank + 1) for rank in range(topology.num_gpus)]
    outputs = [np.zeros(64) for _ in inputs]
    execute_into(schedule, layout, inputs, outputs)
    for output in outputs:
        np.testing.assert_array_equal(output, sum(inputs))


def test_one_shot_has_a_demand_of_its_own() -> None:
    demand = collective("allreduce", 3, 600, 2)
    one_shot = demand.per_destination
    assert len(one_shot) == 3 * len(demand)
    assert one_shot.destination_rank.tolist() == [0, 0, 1, 1, 2, 2] * 3
    assert set(np.diff(one_shot.source_ptr).tolist()) == {3}
    with pytest.raises(
        DemandError, match="method one-shot is for reductions with several destinations, such as allreduce; got reduce"
    ):
        next(
            load_method("one-shot")(
                Problem(read_machine("ring:3"), collective("reduce", 3, 600)), SearchContext.with_limit(1.0)
            )
        )


def test_staged_exchange_is_for_allreduce_only() -> None:
    with pytest.raises(
        DemandError, match="staged-exchange is for allreduce, where all contributing ranks want the result; got reduce"
    ):
        next(
            load_method("staged-exchange")(
                Problem(read_machine("ring:4"), collective("reduce", 4, 100)), SearchContext.with_limit(1.0)
            )
        )


def test_in_network_reduction_halves_the_traffic() -> None:
    """Every GPU sends and receives every byte once: bytes / bandwidth; without the switch 2(n-1)/n of that."""
    topology = read_machine("dgx_h100:1")
    schedule = next(
        load_method("in-network")(
            Problem(topology, collective("allreduce", 8, 10**9, 8)), SearchContext.with_limit(1.0)
        )
    )
    assert schedule is not None
    assert verify(schedule) == []
    _assert_exact_sums(schedule, 640)
    assert schedule.finish_us == pytest.approx(1e9 / 450e3, rel=0.02)


def test_nvls_saves_the_expected_traffic() -> None:
    found = [
        synthesize(read_machine(name), "allreduce", 10**9, gap=0.01).schedule.finish_us
        for name in ("dgx_h100:1", "dgx_h100:1:nvls=false")
    ]
    assert found[1] / found[0] == pytest.approx(2 * 7 / 8, rel=0.01)  # 2 (n-1)/n of the bytes instead of each byte once


def test_in_network_needs_a_switch_that_reduces() -> None:
    words = (
        "method in-network needs an allreduce whose ranks share a switch that reduces and copies, or an allreduce, "
        "allgather or reduce_scatter of hosts with such a switch each; ring:4 has none for this allreduce"
    )
    with pytest.raises(DemandError, match=words):
        next(
            load_method("in-network")(
                Problem(read_machine("ring:4"), collective("allreduce", 4, 100)), SearchContext.with_limit(1.0)
            )
        )


def test_owners() -> None:
    topology = read_machine("mesh:3x3")
    demand = collective("allreduce", 9, 10**6, 2)
    schedule = next(
        s for s in load_method("greedy")(Problem(topology, demand), SearchContext.with_limit(5.0)) if s is not None
    )
    assert verify(schedule) == []
    _assert_exact_sums(schedule, 90)


def test_halves_at_any_owner() -> None:
    demand: Demand = collective("allreduce", 4, 4000)
    (reduction, first), (distribution, second) = demand.halves_at(np.full(4, 2, dtype=np.int32))
    assert reduction.destination_rank.tolist() == distribution.source_rank.tolist() == [2] * 4
    assert first.tolist() == second.tolist() == [0, 1, 2, 3]


def test_gpus_with_few_links_own_more() -> None:
    """Each GPU sends its contribution to what it does not own: with 5 of 6 links, it should own more."""
    whole = read_machine("torus:4x4x4")
    dead = with_faults(whole, without=["gpu0 <-> gpu1"])
    demand = collective("allreduce", 64, 64_000_000, 4)
    owners = owners_on_direct_links(Problem(dead, demand))
    assert owners is not None
    owned = np.bincount(owners, minlength=64)
    assert owned[:2].tolist() == [40, 40]  # (256 - 40) / 5 links of gpu0: about as many as (256 - 3) / 6 of the others
    assert set(owned[2:].tolist()) <= {2, 3}
    assert owners_on_direct_links(Problem(whole, demand)) is None
    hosts = read_machine("dgx_h100:2")
    assert owners_on_direct_links(Problem(hosts, collective("allreduce", 16, 1_000_000))) is None


def test_latency_limits_what_a_gpu_with_few_links_owns() -> None:
    """It must copy all that it owns to the farthest GPU: at 1 MB there is time for a few blocks only."""
    dead = with_faults(read_machine("torus:4x4x4"), without=["gpu0 <-> gpu1"])
    owners = owners_on_direct_links(Problem(dead, collective("allreduce", 64, 1_000_000, 2)))
    assert owners is not None
    assert 3 <= np.bincount(owners)[0] / 2 <= 6
