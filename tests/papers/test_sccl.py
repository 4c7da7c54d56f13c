"""Method sccl: the paper's instances, its Pareto front, reductions, and bad input; steps are checked independently."""

import json
from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowccl.cli import main
from flowccl.demand.collectives import allgather, alltoall, collective
from flowccl.demand.division import divided
from flowccl.errors import DemandError, InputError, NothingFoundError
from flowccl.papers.sccl.decide import _splits, decide
from flowccl.papers.sccl.front import StepSearch
from flowccl.papers.sccl.graph import StepGraph
from flowccl.papers.sccl.options import ScclOptions
from flowccl.papers.sccl.program import StepPlan
from flowccl.result import Result
from flowccl.search.context import SearchContext
from flowccl.show import describe_result
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine
from flowccl.verifier.verify import verify

DGX1 = machine("dgx1")


def sccl(name: str, what: str, chunks: int | None = None, size: int = 8_000_000, **options) -> Result:
    return synthesize(machine(name), what, size, method="sccl", chunks=chunks, options=options)


def assert_is_plan(graph: StepGraph, demand, plan: StepPlan) -> None:
    """The definition, chunk by chunk: possession, one arrival per node, capacity per step, demand."""
    topology = graph.topology
    owners = {(chunk, int(rank)) for chunk, rank in enumerate(demand.source)}
    for step, rounds in enumerate(plan.rounds):
        arrived, load = set(), {}
        for chunk, edge in zip(plan.chunk[plan.step == step], plan.edge[plan.step == step], strict=True):
            assert (chunk, graph.src[edge]) in owners
            arrived.add((int(chunk), int(graph.dst[edge])))
            for link in graph.edges.routes.links(int(edge)):
                load[link] = load.get(link, 0) + 1
        for link, chunks in load.items():
            per_round = Fraction(topology.links[link].bandwidth_GBps / graph.unit_GBps).limit_denominator(1000)
            assert chunks <= floor(per_round * rounds)
        owners |= arrived
    for chunk in range(len(demand)):
        assert all((chunk, int(rank)) in owners for rank in demand.destinations(chunk))


@pytest.mark.parametrize(
    ("chunks", "steps", "rounds"), [(1, 2, 2), (2, 2, 3), (3, 3, 4), (4, 3, 5), (5, 3, 6), (6, 3, 7)]
)
def test_allgather_on_dgx1(chunks, steps, rounds):
    """Table 4 of the paper, and the instances of TE-CCL's comparison."""
    graph, demand = StepGraph(DGX1), allgather(8, 8_000, chunks)
    decision = decide(graph, demand, steps, rounds, ScclOptions(), SearchContext.with_limit(10))
    assert decision.plan is not None
    assert len(decision.plan.rounds) == steps
    assert sum(decision.plan.rounds) <= rounds
    assert_is_plan(graph, demand, decision.plan)


@pytest.mark.parametrize(("chunks", "steps", "rounds"), [(3, 2, 4), (4, 2, 5), (5, 2, 6), (6, 2, 7)])
def test_infeasible_allgather_on_dgx1(chunks, steps, rounds):
    decision = decide(
        StepGraph(DGX1), allgather(8, 8_000, chunks), steps, rounds, ScclOptions(), SearchContext.with_limit(10)
    )
    assert decision.infeasible
    assert decision.plan is None


def test_alltoall_on_dgx1():
    """The paper's (24, 2, 8): 3 chunks for each of 8 GPUs."""
    graph, demand = StepGraph(DGX1), alltoall(8, 240_000, 3)
    decision = decide(graph, demand, 2, 8, ScclOptions(), SearchContext.with_limit(10))
    assert decision.plan is not None
    assert_is_plan(graph, demand, decision.plan)


def test_allgather_on_a_ring():
    result = sccl("ring:8", "allgather", 2, steps=4, rounds=7)
    assert (result.details["steps"], result.details["rounds"]) == (4, 7)
    assert verify(result.schedule) == []


def test_front_of_allgather_on_dgx1():
    """(2, 2, 3) has the fewest steps; (6, 3, 7) reaches the bound of 7/6 rounds per chunk."""
    result = sccl("dgx1", "allgather")
    front = result.details["front"]
    assert [(one["chunks"], one["steps"], one["rounds"]) for one in front] == [(2, 2, 3), (6, 3, 7)]
    assert {"(5, 2, 6)", "(4, 2, 5)", "(3, 2, 4)"} == set(result.details["infeasible"])
    assert result.schedule.finish_us == pytest.approx(min(one["finish_us"] for one in front))
    assert verify(result.schedule) == []
    text = describe_result(result)
    assert "(6, 3, 7)" in text
    assert "at least 7/6 rounds per chunk: 7 blocks must cross into gpu0" in text


@pytest.mark.parametrize(
    ("what", "chunks", "steps", "rounds"),
    [("reduce_scatter", 2, 2, 3), ("allreduce", 2, 4, 6), ("broadcast", 2, 2, 2), ("reduce", 2, 2, 2)],
)
def test_combining_and_rooted_collectives(what, chunks, steps, rounds):
    result = sccl("dgx1", what, chunks, steps=steps, rounds=rounds)
    assert verify(result.schedule) == []
    assert sum(result.details["rounds_per_step"]) <= rounds
    assert len(result.details["rounds_per_step"]) == steps
    unit_us = result.schedule.demand.chunk_bytes.max() / 25 / 1000
    assert result.schedule.finish_us <= rounds * unit_us + steps * 0.7 + 1e-3


def test_switches_limit_the_edges_that_cross_them():
    """A star of 4: every GPU receives 3 blocks over one link, in 1 step of 3 rounds."""
    result = sccl("star:4", "allgather")
    assert [(one["chunks"], one["steps"], one["rounds"]) for one in result.details["front"]] == [(1, 1, 3)]


@given(
    gpus=st.integers(2, 5),
    what=st.sampled_from(["allgather", "alltoall", "broadcast", "scatter"]),
    steps=st.integers(1, 4),
    extra=st.integers(0, 3),
    chunks=st.integers(1, 2),
    shape=st.sampled_from(["ring", "line", "full", "star"]),
)
@settings(max_examples=25, deadline=None)
def test_plans_of_small_machines(gpus, what, steps, extra, chunks, shape):
    """Every plan meets the definition; a proof of infeasibility is never below a plan of greedy."""
    graph = StepGraph(machine(f"{shape}:{max(gpus, 3 if shape == 'ring' else 2)}"))
    demand = collective(what, graph.topology.num_gpus, 1000, chunks)
    decision = decide(graph, demand, steps, steps + extra, ScclOptions(), SearchContext.with_limit(5))
    if decision.plan is not None:
        assert_is_plan(graph, demand, decision.plan)
        base = collective(what, graph.topology.num_gpus, 1000)
        assert graph.least_rounds(base).ratio * chunks <= steps + extra
        assert graph.least_steps(base)[0] <= steps
    elif shape == "full" and what != "broadcast":
        assert steps + extra < chunks  # on a full mesh, `chunks` rounds in one step suffice


def test_subdivided_is_the_named_collective():
    for what in ("allgather", "alltoall", "allreduce", "reduce_scatter"):
        assert divided(collective(what, 4, 10_001), 3) == collective(what, 4, 10_001, 3)


def test_splits():
    complete, splits = _splits(3, 5)
    assert complete
    assert splits[0] == (1, 2, 2)
    assert sorted(splits) == [(1, 1, 3), (1, 2, 2), (1, 3, 1), (2, 1, 2), (2, 2, 1), (3, 1, 1)]
    complete, splits = _splits(12, 40)
    assert not complete
    assert all(sum(split) == 40 and max(split) - min(split) <= 1 for split in splits)


def test_bounds_of_steps_and_rounds():
    search = StepSearch(DGX1, alltoall(8, 8_000), ScclOptions(), SearchContext.with_limit(1))
    assert search.least_rounds.ratio == Fraction(8, 3)  # 16 blocks into half of the GPUs, over links of 6 per round
    assert search.least_steps == 2


@pytest.mark.parametrize(
    ("what", "chunks", "options", "message"),
    [
        (
            "allgather",
            6,
            {"steps": 3, "rounds": 6},
            "sccl: rounds must be at least 7 with chunks per block: 6, got 6; at least 7/6 rounds per chunk: "
            "7 blocks must cross into gpu0, which carries 6 per round",
        ),
        ("allgather", 1, {"steps": 1}, "sccl: steps must be at least 2, got 1: gpu5 is 2 steps from gpu0"),
        ("allgather", 1, {"steps": 3, "rounds": 2}, "sccl: 3 steps take at least 3 rounds, got 2"),
        (
            "allgather",
            3,
            {"steps": 2, "rounds": 4},
            "sccl: proved infeasible: instance (chunks, steps, rounds) (3, 2, 4); "
            "give more steps or rounds, or fewer chunks",
        ),
        (
            "allreduce",
            1,
            {"steps": 5},
            "sccl: allreduce is a reduce_scatter and an allgather with half of the steps and rounds each; "
            "give an even number of steps",
        ),
        ("allgather", None, {"hops": 2}, "unknown option 'hops' of sccl; the options are solver, threads, chunks, "),
        ("allgather", None, {"extra_rounds": -1}, "sccl: extra_rounds must be at least 0, got -1"),
    ],
)
def test_bad_input(what, chunks, options, message):
    with pytest.raises(InputError) as error:
        sccl("dgx1", what, chunks, **options)
    assert message in str(error.value)


def test_more_chunks_than_bytes():
    with pytest.raises(InputError, match="a block of 1 bytes cannot be divided into 2 chunks"):
        sccl("dgx1", "allgather", 2, size=8, steps=2)


def test_blocks_of_different_sizes():
    from flowccl.demand.collectives import alltoallv

    with pytest.raises(DemandError, match="needs blocks of equal size; alltoallv has blocks of 10 to 20 bytes"):
        synthesize(machine("ring:3"), alltoallv([[0, 10, 20], [10, 0, 20], [10, 20, 0]]), method="sccl")


def test_too_large_for_the_time():
    with pytest.raises(NothingFoundError, match=r"no plan found in .* at least 8 rounds per chunk"):
        synthesize(machine("ndv2:2"), "allgather", 16_000, method="sccl", time_limit_s=0.5)


def test_command_line(capsys):
    args = ["synth", "dgx1", "allgather", "--size", "1MB", "--method", "sccl", "--chunks", "2", "--quiet"]
    assert main([*args, "--sccl-steps", "2", "--sccl-rounds", "3", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["chunks"], facts["details"]["steps"], facts["details"]["rounds"]) == (2, 2, 3)
    assert main([*args, "--sccl-steps", "2", "--sccl-rounds", "2"]) == 2
    assert "at least 7/6 rounds per chunk" in capsys.readouterr().err
    assert main(["synth", "dgx1", "allgather", "--size", "1MB", "--sccl-steps", "2"]) == 2
    assert "--sccl-steps: only for --method sccl" in capsys.readouterr().err
    assert main([*args, "--epochs", "4"]) == 2
    assert "--epochs: not an option of --method sccl" in capsys.readouterr().err


def test_rounds_of_one_step_follow_the_bandwidth():
    """In one step of 2 rounds, a link of twice the bandwidth carries 4 chunks."""
    graph = StepGraph(DGX1)
    double = np.flatnonzero(DGX1.link_GBps == 50)
    assert {graph.capacity[link] for link in double.tolist()} == {Fraction(2)}
