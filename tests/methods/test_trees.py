from itertools import islice, pairwise

import numpy as np
import pytest

from flowccl.bounds.bottleneck_cut import bottleneck_cut
from flowccl.demand.collectives import collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.errors import DemandError
from flowccl.methods.registry import load_method
from flowccl.methods.trees import packed_jobs, trees
from flowccl.methods.trees.along import link_work_ps
from flowccl.methods.trees.pacing import round_by_round
from flowccl.methods.trees.packing import Packing, pack_trees
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine
from flowccl.topology.topology import Link, Node, Topology
from flowccl.verifier.verify import verify


def even_machine(random: np.random.Generator) -> Topology:
    """Up to 9 nodes with switches; every link is bidirectional, so that switches can be split off without loss."""
    gpus = int(random.integers(2, 7))
    count = gpus + int(random.integers(0, 10 - gpus))
    nodes = [Node(name=f"gpu{i}") for i in range(gpus)]
    nodes += [Node(name=f"switch{i}", kind="switch", crossing="store-and-forward") for i in range(gpus, count)]
    order = random.permutation(count).tolist()
    pairs = [(order[i], order[int(random.integers(0, i))]) for i in range(1, count)]
    pairs += [tuple(random.choice(count, 2, replace=False).tolist()) for _ in range(int(random.integers(0, count)))]
    links = []
    for a, b in pairs:
        GBps = float(random.choice([1, 2, 3, 5, 8]))
        links += [Link(src=a, dst=b, bandwidth_GBps=GBps), Link(src=b, dst=a, bandwidth_GBps=GBps)]
    return Topology("even", tuple(nodes), tuple(links))


def packing_of(topology: Topology, chunks: int) -> Packing:
    roots = np.zeros(len(topology.nodes), dtype=np.int64)
    roots[: topology.num_gpus] = chunks
    return pack_trees(topology, roots, np.arange(topology.num_gpus), 10**9)


def check_trees(topology: Topology, packing: Packing, chunks: int) -> None:
    """Each tree reaches every GPU once, over connected paths; each root has one tree per chunk."""
    given = np.zeros(topology.num_gpus, dtype=np.int64)
    load = np.zeros(len(topology.links))
    for tree in packing.trees:
        given[tree.root] += tree.times
        reached = {tree.root}
        for a, b, paths in tree.edges:
            assert a in reached
            assert b not in reached
            assert len(paths) == tree.times
            reached.add(b)
            for path in paths:
                ends = [(topology.links[link].src, topology.links[link].dst) for link in path]
                assert ends[0][0] == a
                assert ends[-1][1] == b
                assert all(x[1] == y[0] for x, y in pairwise(ends))
                load[list(path)] += 1
        assert reached == set(range(topology.num_gpus))
    assert given.tolist() == [chunks] * topology.num_gpus
    assert (load * 10**9 / 1000 / topology.link_GBps).max() == pytest.approx(packing.time_us)


@pytest.mark.parametrize(("seed", "machines"), [(1, 40), pytest.param(2, 500, marks=pytest.mark.slow)])
def test_trees_pack_to_the_cut_optimum_exactly(seed: int, machines: int) -> None:
    """With as many chunks as the bandwidth of the best cut, which is an integer, the optimum fits whole chunks."""
    random = np.random.default_rng(seed)
    for _ in range(machines):
        topology = even_machine(random)
        best = bottleneck_cut(topology)
        chunks = round(float(topology.link_GBps[best.cut.links].sum()))
        packing = packing_of(topology, chunks)
        check_trees(topology, packing, chunks)
        assert packing.time_us == pytest.approx(best.seconds_per_GB * 1e6 * chunks, rel=1e-9)


@pytest.mark.parametrize(("seed", "machines"), [(3, 10), pytest.param(4, 150, marks=pytest.mark.slow)])
def test_schedules_reach_the_cut_optimum_within_the_pipeline_loss(seed: int, machines: int) -> None:
    """The trees load no link for longer than the optimum; the rest is a few times the longest path along a tree."""
    random = np.random.default_rng(seed)
    for _ in range(machines):
        topology = even_machine(random)
        best = bottleneck_cut(topology)
        chunks = 2 * round(float(topology.link_GBps[best.cut.links].sum()))
        demand = collective("allgather", topology.num_gpus, topology.num_gpus * chunks * 10**6, chunks)
        found = [
            s for s in islice(trees(Problem(topology, demand), SearchContext.with_limit(60.0)), 6) if s is not None
        ][-1]
        assert verify(found) == []
        optimum_us = best.seconds_per_GB * chunks * 1000
        jobs, _ = packed_jobs(topology, demand, "trees", {})
        assert link_work_ps(jobs).max() / 1e6 == pytest.approx(optimum_us, rel=1e-6)
        assert optimum_us * (1 - 1e-9) <= found.finish_us <= optimum_us + 3 * jobs.tail.max() / 1e6


def best_of(name: str, kind: str, chunks: int, runs: int = 6) -> tuple[Schedule, float]:
    topology = machine(name)
    context = SearchContext.with_limit(60.0)
    demand = collective(kind, topology.num_gpus, 10**9 + 7, chunks)
    found = [s for s in islice(load_method("trees")(Problem(topology, demand), context), runs) if s is not None][-1]
    return found, float(str(context.notes.get("optimum_us", 0.0)))


@pytest.mark.parametrize(
    ("name", "kind", "chunks", "gap"),
    [
        ("ring:5", "allgather", 2, 0.001),
        ("ndv2:2", "allgather", 8, 0.02),
        ("dgx_a100:2", "allgather", 16, 0.05),
        ("dgx2:2", "allgather", 8, 0.04),
        ("torus:3x4", "reduce_scatter", 8, 0.01),
    ],
)
def test_verified_and_near_the_optimum(name: str, kind: str, chunks: int, gap: float) -> None:
    schedule, optimum_us = best_of(name, kind, chunks)
    assert verify(schedule) == []
    assert 1 <= schedule.finish_us / optimum_us <= 1 + gap


@pytest.mark.parametrize("kind", ["broadcast", "reduce", "allreduce"])
def test_other_collectives_of_all_ranks(kind: str) -> None:
    schedule, _ = best_of("rail:2x3", kind, 4)
    assert verify(schedule) == []


def test_memory_and_other_gpus_only_relay() -> None:
    """Data of three GPUs goes through a memory and through a GPU that takes no part."""
    nodes = [Node(name=f"gpu{i}") for i in range(4)] + [Node(name="memory", kind="memory")]
    pairs = [(0, 4), (4, 1), (1, 3), (3, 2), (2, 4), (4, 0)]
    topology = Topology("relays", tuple(nodes), tuple(Link(src=a, dst=b, bandwidth_GBps=1.0) for a, b in pairs))
    chunks = [Chunk(bytes=1000, sources=(i,), destinations=tuple({0, 1, 2} - {i})) for i in range(3)]
    demand = Demand.from_chunks("custom", 4, chunks)
    schedule = next(trees(Problem(topology, demand), SearchContext.with_limit(1.0)))
    assert schedule is not None
    assert verify(schedule) == []
    assert schedule.method == "trees"


def test_the_result_contains_optimum_and_losses() -> None:
    result = synthesize(machine("dgx_a100:2"), "allgather", 10**9, method="trees", chunks=4, steps=4)
    details = result.to_json()["details"]
    assert details["optimum_us"] == pytest.approx(15 / 325 * 62.5e3)
    finish = details["optimum_us"] * (1 + details["chunk_loss"]) * (1 + details["pipeline_loss"])
    assert finish == pytest.approx(result.metrics.finish_us)


def test_unsupported_demands() -> None:
    ring = machine("ring:4")
    with pytest.raises(DemandError, match="method trees needs chunks that go to all ranks"):
        next(trees(Problem(ring, collective("alltoall", 4, 1000)), SearchContext.with_limit(1.0)))
    with pytest.raises(DemandError, match="reduce reduces several"):
        next(trees(Problem(ring, collective("reduce", 4, 1000)), SearchContext.with_limit(1.0)))


def test_dispatching_round_by_round_keeps_the_pipeline_of_a_broadcast_full() -> None:
    """Dispatching tree after tree, the deepest first, would leave the links of the others idle."""
    topology, demand = machine("mi250:1"), collective("broadcast", 16, 10**9, 384)
    jobs, rounds = packed_jobs(topology, demand, "trees", {})
    assert rounds > 1
    by_round, by_path = round_by_round(jobs, rounds), jobs.in_order(-jobs.tail, np.iinfo(np.int64).max)
    assert by_round is not None
    assert by_path is not None
    assert verify(by_round) == []
    assert by_round.finish_ps < 0.9 * by_path.finish_ps
