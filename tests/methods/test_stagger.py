import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st

from flowccl.bounds.bottleneck_cut import bottleneck_cut
from flowccl.demand.collectives import collective
from flowccl.errors import DemandError
from flowccl.methods.trees.along import jobs_along, rounds_of_chunks
from flowccl.methods.trees.amount import trees_and_rounds
from flowccl.methods.trees.packing import pack_trees
from flowccl.methods.trees.period_kernels import edge_coloring
from flowccl.methods.trees.stagger import StaggeredPlan, plan_stagger
from flowccl.topology.machines import machine
from flowccl.topology.topology import Link, Node, Topology
from flowccl.verifier.verify import verify
from tests.strategies import topologies

CHUNK = 10**6


@st.composite
def machines(draw: st.DrawFn, most_switches: int = 3, latency: bool = True) -> Topology:
    """GPUs on switches, each with one bandwidth and latency for all its links, and links between GPUs of any kind.

    All links are bidirectional at whole GB/s, so that trees pack to the cut optimum (see test_trees).
    """
    gpus, switches = draw(st.integers(2, 6)), draw(st.integers(min(1, most_switches), most_switches))
    GBps, late = st.sampled_from((1.0, 2.0, 3.0, 5.0)), st.sampled_from((0.0, 0.7, 900.0) if latency else (0.0,))
    nodes = [Node(name=f"gpu{i}") for i in range(gpus)]
    pairs = [(i, (i + 1) % gpus, draw(GBps), draw(late)) for i in range(gpus if not switches else 0)]
    for i in range(switches):
        crossing = draw(st.sampled_from(("cut-through", "store-and-forward")))
        nodes.append(Node(name=f"switch{i}", kind="switch", crossing=crossing))
        on = range(gpus) if i == 0 else draw(st.sets(st.integers(0, gpus - 1), min_size=2))
        speed, delay = draw(GBps), draw(late)
        pairs += [(gpu, gpus + i, speed, delay) for gpu in sorted(on)]
    ends = st.tuples(st.integers(0, gpus - 1), st.integers(0, gpus - 1)).filter(lambda pair: pair[0] != pair[1])
    pairs += [(a, b, draw(GBps), draw(late)) for a, b in draw(st.lists(ends, max_size=gpus))]
    links = [Link(src=x, dst=y, bandwidth_GBps=w, latency_us=l) for a, b, w, l in pairs for x, y in ((a, b), (b, a))]
    return Topology("random", tuple(nodes), tuple(links))


def plan_of(topology: Topology, base: int, rounds: int, extra_bytes: int = 0, chunk: int = CHUNK) -> StaggeredPlan:
    chunks, gpus = base * rounds, topology.num_gpus
    demand = collective("allgather", gpus, gpus * (chunks * chunk + extra_bytes), chunks)
    roots = np.zeros(len(topology.nodes), dtype=np.int64)
    roots[:gpus] = base
    packing = pack_trees(topology, roots, np.arange(gpus), int(demand.chunk_bytes.max()))
    return plan_stagger(jobs_along(topology, demand, packing, rounds), *rounds_of_chunks(demand, rounds))


def check_bound(found: StaggeredPlan) -> int:
    """Return the completion time, after checking the formula of the docs: (k - 1) P + (D - 1) ceil(M / P) P + M."""
    schedule = found.schedule()
    assert schedule is not None
    assert verify(schedule) == []
    period, span = found.period_ps, found.span_ps
    assert schedule.finish_ps <= found.bound_ps
    assert found.bound_ps <= (found.rounds - 1) * period + (found.depth - 1) * -(-span // period) * period + span
    return schedule.finish_ps


def bottleneck_ps(found: StaggeredPlan) -> int:
    """Work of the busiest link in one round."""
    schedule = found.schedule()
    assert schedule is not None
    timing = schedule.timing
    return int(np.bincount(timing.hop_link, timing.hop_to_ps - timing.hop_from_ps).max()) // found.rounds


@settings(deadline=None)
@given(machines(), st.integers(1, 3), st.integers(2, 6))
def test_a_period_is_the_work_of_the_busiest_link_if_routes_cross_at_most_one_switch(
    topology: Topology, base: int, rounds: int
) -> None:
    found = plan_of(topology, base, rounds)
    check_bound(found)
    assert found.period_ps == bottleneck_ps(found)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(machines(), st.integers(2, 5))
def test_schedules_reach_the_cut_optimum_within_the_pipeline_loss(topology: Topology, rounds: int) -> None:
    """With as many chunks as the bandwidth of the best cut, T is the optimum: the rest is the loss of the pipeline."""
    best = bottleneck_cut(topology)
    base = round(float(topology.link_GBps[best.cut.links].sum()))
    assume(base * rounds <= 60)
    found = plan_of(topology, base, rounds)
    optimum_ps = best.seconds_per_GB * 1e3 * base * rounds * CHUNK
    assert found.period_ps * rounds == pytest.approx(optimum_ps, rel=1e-6)
    fill = (found.depth - 1) * -(-found.span_ps // found.period_ps) * found.period_ps
    assert check_bound(found) <= optimum_ps * (1 + 1e-6) + fill + found.span_ps - found.period_ps


@settings(deadline=None)
@given(machines(most_switches=0, latency=False), st.integers(1, 3), st.integers(2, 8))
def test_without_switches_and_latency_the_loss_is_depth_less_one_over_rounds(
    topology: Topology, base: int, rounds: int
) -> None:
    found = plan_of(topology, base, rounds)
    time = bottleneck_ps(found) * rounds
    assert check_bound(found) <= time * (1 + (found.depth - 1) / rounds)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(topologies(limits=False, changes=False), st.integers(1, 2), st.integers(2, 4), st.sampled_from((0, 1)))
def test_the_bound_holds_on_any_machine(topology: Topology, base: int, rounds: int, extra_bytes: int) -> None:
    try:
        found = plan_of(topology, base, rounds, extra_bytes)
    except DemandError:
        reject()  # no trees: bandwidth into and out of switches differs
    schedule = found.schedule()
    if schedule is None:  # chunks of unequal size, on store-and-forward switches
        assert extra_bytes
        return
    assert bottleneck_ps(found) <= found.period_ps
    check_bound(found)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(5, 9)), min_size=1, max_size=40))
def test_the_number_of_colors_is_the_largest_degree(pairs: list[tuple[int, int]]) -> None:
    first, second = np.array(pairs, dtype=np.int64).T.copy()
    most = int(np.bincount(np.concatenate((first, second))).max())
    color = edge_coloring(first, second, 10, most)
    assert color.min() >= 0
    assert color.max() < most
    for link in (first, second):
        assert len(set(zip(link.tolist(), color.tolist(), strict=True))) == len(pairs)


@pytest.mark.parametrize("gap", [0.5, 0.2])
@pytest.mark.parametrize("name", ["ring:4", "dgx1", "star:4", "rail:2x3"])
def test_the_number_of_chunks_of_the_formula_meets_the_gap(name: str, gap: float) -> None:
    """The bound of the staggered plan, without further search, on machines with small latency."""
    topology, block = machine(name), 2**27
    demand = collective("allgather", topology.num_gpus, topology.num_gpus * block)
    base, rounds = trees_and_rounds(topology, demand, gap, {})
    chunk = block // (base * rounds)
    found = plan_of(topology, base, rounds, chunk=chunk)
    assert found.bound_ps <= bottleneck_cut(topology).seconds_per_GB * 1000 * base * rounds * chunk * (1 + gap)
    assert base * rounds <= np.prod(trees_and_rounds(topology, demand, gap / 2, {}))
