from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from benchmarks.dantzig_wolfe import dantzig_wolfe
from benchmarks.thesis import measured, published_rows
from flowccl.bounds.lower_bound import lower_bound
from flowccl.demand.collectives import collective
from flowccl.errors import DemandError
from flowccl.papers.fluid import FluidOptimum, fluid_optimum, gpu_traffic
from flowccl.papers.fluid.arcs import duplicated_arcs, plain_arcs
from flowccl.papers.fluid.offending import offending
from flowccl.papers.fluid.optimum import _Task
from flowccl.papers.fluid.program import SourceTraffic
from flowccl.solver import SolverOptions
from flowccl.topology.machines import machine
from flowccl.topology.symmetry.permutations import symmetry, verified
from flowccl.topology.topology import Limit, Link, Node, Topology
from tests.bottleneck_cut import bottleneck_cut
from tests.bounds.test_bottleneck_cut import random_machine
from tests.strategies import topologies


def built(gpus: int, others: dict[str, str], pairs: list[tuple[int, int, float]], **limits: float) -> Topology:
    """GPUs, other nodes by kind, links (src, dst, GB/s); every limit is over all links of its node."""
    nodes = [Node(name=f"gpu{i}") for i in range(gpus)]
    nodes += [Node(name=name, kind=kind) for name, kind in others.items()]  # type: ignore[arg-type]
    links = tuple(Link(src=a, dst=b, bandwidth_GBps=GBps) for a, b, GBps in pairs)
    index = {node.name: i for i, node in enumerate(nodes)}
    shared = []
    for name, GBps in limits.items():
        at = tuple(k for k, link in enumerate(links) if index[name] in (link.src, link.dst))
        shared.append(Limit(name=name, links=at, bandwidth_GBps=GBps))
    return Topology("manual", tuple(nodes), links, tuple(shared))


def hub(kind: str, gpus: int, GBps: float, **limits: float) -> Topology:
    pairs = [(a, b, GBps) for i in range(gpus) for a, b in ((i, gpus), (gpus, i))]
    return built(gpus, {"hub": kind}, pairs, **limits)


# -- the thesis's figures -------------------------------------------------------------------------------------------


def test_figure_2_1_pipelining_fills_both_links() -> None:
    line = built(3, {}, [(0, 1, 10.0), (1, 2, 10.0)])
    assert fluid_optimum(line, "broadcast").seconds_per_GB == pytest.approx(0.1)


def test_figure_2_2_memory_copies_so_that_less_is_written() -> None:
    optimum = fluid_optimum(hub("memory", 3, 10.0), "broadcast")
    assert optimum.seconds_per_GB == pytest.approx(0.1)
    assert optimum.cost == pytest.approx(3)  # once out of the root, once into each other
    assert fluid_optimum(hub("switch", 3, 10.0), "broadcast").cost == pytest.approx(4)


@pytest.mark.parametrize("y", [20.0, 39.0, 60.0, 100.0])
def test_figure_2_3_bandwidth_of_the_memory(y: float) -> None:
    x = 10.0
    as_switch = fluid_optimum(hub("switch", 4, x, hub=y), "broadcast")
    assert as_switch.seconds_per_GB == pytest.approx(1 / min(x, y / 6))
    as_memory = fluid_optimum(hub("memory", 4, x, hub=y), "broadcast")
    assert as_memory.seconds_per_GB == pytest.approx(1 / min(x, y / 4))


@pytest.mark.parametrize("y", [20.0, 39.0, 60.0])
def test_figures_2_4_to_2_6_a_path_beside_the_memory(y: float) -> None:
    x = 10.0
    plain = hub("switch", 4, x, hub=y)
    beside = replace(plain, links=(*plain.links, Link(src=0, dst=1, bandwidth_GBps=x)))
    assert fluid_optimum(beside, "broadcast").seconds_per_GB == pytest.approx(1 / min(x, y / 4))


def test_figure_2_7_the_memory_is_not_needed() -> None:
    b = 10.0
    machine_27 = built(2, {"memory": "memory"}, [(0, 1, b), (0, 2, b), (2, 0, b)])
    out = Limit(name="out of gpu0", links=(0, 1), bandwidth_GBps=b)
    assert fluid_optimum(replace(machine_27, limits=(out,)), "broadcast").seconds_per_GB == pytest.approx(1 / b)


def test_duplicate_vertices_a_plain_switch_receives_one_copy_per_destination() -> None:
    fork = [(0, 3, 10.0), (3, 1, 10.0), (3, 2, 10.0)]
    assert fluid_optimum(built(3, {"s": "switch"}, fork), "broadcast").seconds_per_GB == pytest.approx(0.2)
    relay = [*fork, (1, 2, 10.0), (2, 1, 10.0)]  # each forwards half to the other
    assert fluid_optimum(built(3, {"s": "switch"}, relay), "broadcast").seconds_per_GB == pytest.approx(0.1)
    copying = replace(built(3, {"s": "switch"}, fork))
    copying = replace(copying, nodes=(*copying.nodes[:3], Node(name="s", kind="switch", copies=True)))
    assert fluid_optimum(copying, "broadcast").seconds_per_GB == pytest.approx(0.1)


# -- published numbers ----------------------------------------------------------------------------------------------

_BELOW_OUR_BOUND = {("allgather", "all", 32), ("allgather", "all", 64), ("allgather", "all", 128)}


def agrees(row: dict[str, object]) -> None:
    ours = measured(row)
    assert ours["proved"]
    assert ours["cost_proved"]
    if row["latency_s_per_GB"] is not None:
        assert ours["our_s_per_GB"] == pytest.approx(row["latency_s_per_GB"], rel=6e-3)
        if (row["collective"], row["links"], row["gpus"]) in _BELOW_OUR_BOUND:  # see docs/methods/fluid.md
            assert row["objective"] < ours["our_cost_bound"]
        else:
            assert ours["our_cost"] == pytest.approx(row["objective"], rel=6e-4)


@pytest.mark.parametrize("row", [row for row in published_rows() if row["gpus"] <= 16], ids=str)
def test_small_rows_of_the_thesis(row: dict[str, object]) -> None:
    agrees(row)


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in published_rows() if row["gpus"] > 16], ids=str)
def test_large_rows_of_the_thesis(row: dict[str, object]) -> None:
    agrees(row)


@pytest.mark.parametrize(
    ("name", "collective", "GBps"),
    [
        ("ndv2:2", "allgather", 25.0),
        ("dgx2:2", "allgather", 129.032),
        ("ndv2:2", "alltoall", 3.125),
        ("dgx2:2", "alltoall", 12.5),
        ("dgx_a100:2", "allgather", 16 / (15 / 325)),
    ],
)
def test_published_bandwidths(name: str, collective: str, GBps: float) -> None:
    topology = machine(name)
    optimum = fluid_optimum(topology, collective)
    assert optimum.proved
    assert topology.num_gpus / optimum.seconds_per_GB == pytest.approx(GBps, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "collective", "GBps"),
    [("ndv2:4", "allgather", 16.6667), ("ndv2:4", "alltoall", 2.08333), ("mi250:2", "allgather", 346.667)],
)
def test_published_bandwidths_of_larger_machines(name: str, collective: str, GBps: float) -> None:
    topology = machine(name)
    assert topology.num_gpus / fluid_optimum(topology, collective).seconds_per_GB == pytest.approx(GBps, rel=1e-4)


# -- symmetry changes the size of the program, not its value ----------------------------------------------------------


def same(a: FluidOptimum, b: FluidOptimum) -> None:
    assert a.seconds_per_GB == pytest.approx(b.seconds_per_GB, rel=1e-6)
    assert a.bound_s_per_GB == pytest.approx(b.bound_s_per_GB, rel=1e-6)
    assert a.cost == pytest.approx(b.cost, rel=1e-5)


@pytest.mark.parametrize("collective", ["allgather", "alltoall", "broadcast", "gather", "reduce_scatter", "allreduce"])
@pytest.mark.parametrize("name", ["ring:5", "rail:2x3", "star:4:copies=true", "torus:2x3"])
def test_the_quotient_has_the_optimum_of_the_whole_program(name: str, collective: str) -> None:
    topology = machine(name)
    group = symmetry(topology)
    assert len(group) > 0
    small = fluid_optimum(topology, collective, group=group)
    whole = fluid_optimum(topology, collective, group=verified(topology, []))
    same(small, whole)
    assert small.variables < whole.variables


@pytest.mark.parametrize("name", ["ring:4", "dgx_a100:1", "rail:2x2"])
def test_decompositions_find_the_same_optimum(name: str) -> None:
    topology = machine(name)
    bound = fluid_optimum(topology, "allgather").bound_s_per_GB
    for found in (dantzig_wolfe(topology), dantzig_wolfe(topology, symmetry(topology))):
        assert found.seconds_per_GB == pytest.approx(bound, rel=1e-6)
        assert found.bound_s_per_GB == pytest.approx(bound, rel=1e-6)


def test_one_slow_link_breaks_symmetry_and_the_optimum_is_still_proved() -> None:
    topology = machine("dgx_a100:2")
    links = list(topology.links)
    for k in (0, 1):  # both directions, so that the cut optimum is exact
        links[k] = replace(links[k], bandwidth_GBps=150.0)
    slow = replace(topology, links=tuple(links))
    assert int(symmetry(slow).node_orbits[:16].max()) == 3
    optimum = fluid_optimum(slow, "allgather")
    assert optimum.proved
    assert optimum.seconds_per_GB == pytest.approx(15 / 175)
    assert optimum.seconds_per_GB == pytest.approx(bottleneck_cut(slow).seconds_per_GB)


@pytest.mark.slow
def test_one_slow_link_among_128_gpus() -> None:
    topology = machine("dgx_a100:16")
    links = list(topology.links)
    links[0] = replace(links[0], bandwidth_GBps=150.0)
    slow = replace(topology, links=tuple(links))
    group = symmetry(slow)
    assert int(group.node_orbits[:128].max()) == 3
    optimum = fluid_optimum(slow, "allgather", group=group)
    assert optimum.proved
    assert optimum.seconds_per_GB == pytest.approx(0.6)  # the slow link is not what binds: the NICs are


@settings(max_examples=12, deadline=None)
@given(topologies(max_gpus=4, max_switches=2, changes=False))
def test_on_random_machines_bounds_are_in_order(topology: Topology) -> None:
    optimum = fluid_optimum(topology, "allgather")
    assert optimum.bound_s_per_GB <= optimum.seconds_per_GB * (1 + 1e-6)
    plain = np.all(~topology.copies[topology.num_gpus :])
    if plain:  # the cut bound does not hold for copying switches or memories
        assert optimum.bound_s_per_GB >= bottleneck_cut(topology).seconds_per_GB * (1 - 1e-6)
    demand = collective("allgather", topology.num_gpus, topology.num_gpus * 10**9)
    still = replace(topology, links=tuple(replace(link, latency_us=0.0) for link in topology.links))
    assert lower_bound(still, demand).us <= optimum.seconds_per_GB * 1e6 * (1 + 1e-6)


@pytest.mark.parametrize("name", ["dgx_a100:2:all", "dgx_a100:4:all", "rail:2x3", "dgx_a100:2:no-nvlink"])
def test_bounds_increase_from_relaxation_to_relaxation(name: str) -> None:
    """(3.13), duplicate vertices on all routes: in time, and in cost at the least time."""
    topology = machine(name)
    task = _Task(topology, "allgather", 0, symmetry(topology), gpu_traffic(topology), SolverOptions())
    weak = task.solved(plain_arcs)
    exact = task.solved(lambda one: duplicated_arcs(one, shortest=False))
    assert weak is not None
    assert exact is not None
    assert weak.time <= exact.time * (1 + 1e-7)
    if exact.time <= weak.time * (1 + 1e-7):
        assert weak.cost <= exact.cost * (1 + 1e-6)
    better = task.strengthened(weak)
    assert better is not None
    assert (better.time, better.cost) == pytest.approx((exact.time, exact.cost), rel=1e-6)
    if name == "dgx_a100:4:all":
        assert weak.cost < 0.9998 * exact.cost
    if name == "rail:2x3":  # no switch offends
        assert better is weak


@pytest.mark.parametrize("seed", range(3))
def test_duplicating_offending_switches_is_enough(seed: int) -> None:
    """On random machines the loop reaches the value of duplicating all switches."""
    random = np.random.default_rng(seed)
    fewer = 0
    for _ in range(8):
        topology = random_machine(random)
        task = _Task(topology, "allgather", 0, symmetry(topology), gpu_traffic(topology), SolverOptions())
        weak, exact = task.solved(plain_arcs), task.solved(lambda one: duplicated_arcs(one, shortest=False))
        assert weak is not None
        assert exact is not None
        better = task.strengthened(weak)
        assert better is not None
        assert (better.time, better.cost) == pytest.approx((exact.time, exact.cost), rel=1e-5)
        fewer += better.fluid.program.num_columns < exact.fluid.program.num_columns
    assert fewer


def test_a_switch_that_mixes_offends() -> None:
    """Data for two destinations enters a switch by separate links; one of the flows needs data from both."""
    topology = built(5, {"s": "switch"}, [(0, 1, 1.0), (0, 2, 1.0), (1, 5, 1.0), (2, 5, 1.0), (5, 3, 1.0), (5, 4, 1.0)])
    arcs = plain_arcs(topology)
    paths = np.array([[1, 0, 1, 0, 1, 0], [0, 1, 0, 1, 0, 1], [1, 0, 1, 0, 0, 1]], dtype=np.float64)
    use = np.ones(6)
    columns = np.arange(6, dtype=np.int32)
    alone = verified(topology, [])
    for chosen, mixed in (((0, 1), False), ((0, 2), True)):
        flows = {3 + i: (6 * (i + 1) + columns).astype(np.int32) for i in range(2)}
        traffic = SourceTraffic(0, 1.0, columns, arcs.link, flows)
        values = np.concatenate((use, *paths[list(chosen)]))
        assert bool(offending(arcs, traffic, values, alone)[5]) == mixed


def test_a_reduction_does_not_reduce_in_memory() -> None:
    topology = machine("dgx_a100:1:no-nvlink")
    gathered, reduced = (fluid_optimum(topology, name) for name in ("allgather", "reduce_scatter"))
    assert gathered.seconds_per_GB == pytest.approx(7 / 32)
    assert reduced.cost > gathered.cost  # the memory copies, but cannot reduce


def test_allreduce_is_a_reduce_scatter_and_an_allgather_on_shared_links() -> None:
    optimum = fluid_optimum(machine("ring:4:bandwidth=10GB/s"), "allreduce")
    assert optimum.seconds_per_GB == pytest.approx(2 * 3 / 4 / 20)


# -- contents of the optimum ------------------------------------------------------------------------------------------


def test_prices_are_what_more_bandwidth_saves() -> None:
    topology = built(3, {}, [(0, 1, 10.0), (1, 2, 20.0)])
    optimum = fluid_optimum(topology, "broadcast")
    assert optimum.link_price.tolist() == pytest.approx([0.01, 0.0])
    wider = replace(topology, links=(replace(topology.links[0], bandwidth_GBps=10.001), topology.links[1]))
    saved = optimum.seconds_per_GB - fluid_optimum(wider, "broadcast").seconds_per_GB
    assert saved == pytest.approx(0.001 * optimum.link_price[0], rel=1e-3)
    assert optimum.link_GB.tolist() == pytest.approx([1.0, 1.0])


def test_text_of_the_proof() -> None:
    assert "trees achieve it" in fluid_optimum(machine("ring:4"), "allgather").proof
    assert "without copies in plain switches" in fluid_optimum(machine("dgx_a100:1:all"), "allgather").proof


def test_unsupported_arguments() -> None:
    with pytest.raises(DemandError, match="for collectives with one size for all ranks; got alltoallv"):
        fluid_optimum(machine("ring:4"), "alltoallv")
    with pytest.raises(DemandError, match="root must be a rank"):
        fluid_optimum(machine("ring:4"), "broadcast", root=4)
    with pytest.raises(DemandError, match="cannot reach"):
        fluid_optimum(built(2, {}, [(0, 1, 10.0)]), "allgather")
