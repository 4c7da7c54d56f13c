"""Waves: a case by hand, and valid schedules that only become earlier, with limits too."""

import pytest

from benchmarks.unseen_machines import draw
from flowccl.demand.collectives import collective
from flowccl.errors import DemandError
from flowccl.methods.registry import load_method
from flowccl.methods.waves import useful_chunks, waves
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.builders import line
from flowccl.topology.topology import Topology
from flowccl.verifier.verify import verify

KB = 1000


def in_waves(topology: Topology, size: int, times: int, reported: Schedule | None, steps: int = 8) -> list[Schedule]:
    problem = Problem(topology, collective("allreduce", topology.num_gpus, size, times))
    context = SearchContext.with_limit(60.0)
    if reported is not None:
        context.incumbents.report(reported)
        context.incumbents.publish()
    return [found for found, _ in zip(waves(problem, context), range(steps), strict=False) if found is not None]


def test_a_link_is_busy_while_the_first_results_travel() -> None:
    """Each GPU owns 40 KB: 4 us to send and 4 us of latency, twice. Of four waves, the last copy leaves after 8 us."""
    topology = line(2, bandwidth_GBps=10, latency_us=4)
    demand = collective("allreduce", 2, 80 * KB)
    there = {link.src: k for k, link in enumerate(topology.links)}
    rows = [(0, [there[1]], 0, True), (1, [there[0]], 0, True)]
    rows += [(0, [there[0]], 8_000_000, False), (1, [there[1]], 8_000_000, False)]
    halves = Schedule.from_transfers(topology, demand, rows)
    assert verify(halves) == []
    assert halves.finish_us == 16
    found = in_waves(topology, 80 * KB, 4, halves)
    assert verify(found[-1]) == []
    assert found[-1].finish_us == pytest.approx(13)


@pytest.mark.parametrize("seed", [321, 322, 323])
def test_schedules_are_valid_and_earlier(seed: int) -> None:
    """A torus, hosts of two sizes, and hosts whose GPUs share NICs (limits)."""
    topology = draw(seed).topology
    problem = Problem(topology, collective("allreduce", topology.num_gpus, 10**6))
    method = "greedy" if seed == 321 else "hierarchical-halves"
    first = next(found for found in load_method(method)(problem, SearchContext.with_limit(60.0)) if found is not None)
    found = in_waves(topology, 10**6, 4, first)
    assert all(verify(one) == [] for one in found)
    assert [one.finish_ps for one in found] == sorted({one.finish_ps for one in found}, reverse=True)
    assert found[-1].finish_ps < first.finish_ps


def test_without_a_schedule_of_another_method_there_is_nothing_to_divide() -> None:
    assert in_waves(line(2), 80 * KB, 2, None) == []
    with pytest.raises(DemandError, match="method waves is for reductions with several destinations"):
        next(load_method("waves")(Problem(line(2), collective("allgather", 2, KB)), SearchContext.with_limit(1.0)))


def test_the_useful_number_of_chunks_has_few_transfers() -> None:
    problems = [Problem(draw(322).topology, collective("allreduce", 24, 10**6, chunks)) for chunks in (1, 4)]
    assert {useful_chunks(problem, SearchContext.with_limit(1.0)) for problem in problems} == {8}
