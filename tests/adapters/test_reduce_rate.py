"""GPUs that take time to reduce: in schedules, the verifier, lower bounds, files and on the command line."""

import json
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowccl.bounds.lower_bound import bounds, lower_bound
from flowccl.cli import main
from flowccl.demand.collectives import collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.errors import TopologyError
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift
from flowccl.search.context import SearchContext
from flowccl.topology.builders import full, ring, star
from flowccl.topology.files import topology_from_json, topology_to_json
from flowccl.topology.topology import Node
from flowccl.topology.variants import reducing_at
from flowccl.verifier.verify import verify
from tests.strategies import demands, topologies

KB = 1000


def two_into_one(second_ps: int) -> Schedule:
    """gpu1 and gpu2 send 10 KB each to gpu0, over links of 10 GB/s and 0.5 us; gpu0 reduces at 5 GB/s."""
    topology = reducing_at(full(3, bandwidth_GBps=10, latency_us=0.5), 5.0)
    demand = Demand.from_chunks("custom", 3, [Chunk(bytes=10 * KB, sources=(0, 1, 2), destinations=(0,))])
    ends = {(link.src, link.dst): k for k, link in enumerate(topology.links)}
    rows = [(0, [ends[1, 0]], 0, True), (0, [ends[2, 0]], second_ps, True)]
    return Schedule.from_transfers(topology, demand, rows)


def test_reducing_takes_the_expected_time() -> None:
    """1 us on the link, 0.5 us latency, 2 us to reduce; then 2 us to reduce the second contribution."""
    schedule = two_into_one(2_000_000)
    assert schedule.finish_us == 1 + 0.5 + 2 + 2
    assert verify(schedule) == []


def test_overlapping_reductions_are_a_violation() -> None:
    (violation,) = verify(two_into_one(500_000))
    assert violation.kind == "reduce rate"
    assert violation.message == "gpu0 reduces transfer 0 until 3.5 us, but transfer 1 arrives at 2 us"
    assert violation.transfers == (0, 1)


def test_left_shift_does_not_overlap_reductions() -> None:
    schedule = left_shift(two_into_one(9_000_000))
    assert schedule.finish_us == 5.5
    assert verify(schedule) == []


def test_plain_arrivals_take_no_time_to_reduce() -> None:
    topology = reducing_at(ring(4), 1.0)
    demand = collective("allgather", 4, 40 * KB)
    plain, slow = (
        next(load_method("ring")(Problem(machine, demand), SearchContext.with_limit(1.0)))
        for machine in (ring(4), topology)
    )
    assert plain.finish_ps == slow.finish_ps


def test_the_lower_bound_counts_all_reduced_bytes() -> None:
    """Three of four contributions to 40 KB are reduced, by four GPUs at 5 GB/s each."""
    topology = reducing_at(star(4), 5.0)
    (bound,) = [b for b in bounds(topology, collective("allreduce", 4, 40 * KB)) if b.kind == "reduction rate"]
    assert bound.us == 3 * 40 / 20
    assert bound.witness == "120 KB must be reduced, at 20 GB/s by all nodes together"
    helped = reducing_at(star(4, reduces=True), 5.0)  # the switch reduces at no cost
    assert not [b for b in bounds(helped, collective("allreduce", 4, 40 * KB)) if b.kind == "reduction rate"]


@pytest.mark.parametrize("method", ["greedy", "reroute", "one-shot", "ring", "tree", "direct"])
def test_methods_support_reduce_rates(method: str) -> None:
    topology, demand = reducing_at(full(4), 30.0), collective("allreduce", 4, 400 * KB, 2)
    free = next(load_method(method)(Problem(full(4), demand), SearchContext.with_limit(9.0)))
    slow = next(load_method(method)(Problem(topology, demand), SearchContext.with_limit(9.0)))
    assert verify(slow) == []
    assert slow.topology == topology
    assert slow.finish_ps > free.finish_ps
    assert slow.finish_ps >= lower_bound(topology, demand).ps


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_random_machines(data: st.DataObject) -> None:
    topology = reducing_at(data.draw(topologies(max_gpus=5)), data.draw(st.sampled_from([1.0, 10.0, 300.0])))
    demand = data.draw(demands(topology.num_gpus, reductions=True))
    for schedule in islice(load_method("greedy")(Problem(topology, demand), SearchContext.with_limit(1.0)), 3):
        if schedule is not None:
            assert verify(schedule) == []
            assert schedule.finish_ps >= lower_bound(topology, demand).ps


def test_files_keep_the_reduce_rate() -> None:
    topology = reducing_at(ring(3), 200.0)
    assert topology_from_json(topology_to_json(topology), "machine") == topology
    assert topology.fingerprint != ring(3).fingerprint
    with pytest.raises(TopologyError, match="node gpu0: reduce_GBps must be > 0, got 0"):
        Node(name="gpu0", reduce_GBps=0.0)


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["synth", "ring:4", "allreduce", "--size", "1MB", "--steps", "4", "--json", "--quiet"]
    finish = []
    for extra in ([], ["--reduce-GBps", "10GB/s"]):
        assert main([*words, *extra]) == 0
        finish.append(json.loads(capsys.readouterr().out)["finish_us"])
    assert finish[1] > finish[0]
    assert main([*words, "--reduce-GBps", "0"]) == 2
    assert "--reduce-GBps must be > 0, got 0" in capsys.readouterr().err
