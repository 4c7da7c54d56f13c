"""GPUs that take time to add up: one after the other, by pencil, in the judge, in floors and on the command line."""

import json
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowccl.bounds.lower_bound import bounds, lower_bound
from flowccl.cli import main
from flowccl.demand.collectives import collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.errors import DemandError, TopologyError
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
    """gpu1 and gpu2 send 10 KB each to gpu0, over links of 10 GB/s and 0.5 us; gpu0 adds up at 5 GB/s."""
    topology = reducing_at(full(3, bandwidth_GBps=10, latency_us=0.5), 5.0)
    demand = Demand.from_chunks("custom", 3, [Chunk(bytes=10 * KB, sources=(0, 1, 2), destinations=(0,))])
    ends = {(link.src, link.dst): k for k, link in enumerate(topology.links)}
    rows = [(0, [ends[1, 0]], 0, True), (0, [ends[2, 0]], second_ps, True)]
    return Schedule.from_transfers(topology, demand, rows)


def test_adding_takes_its_time_by_pencil() -> None:
    """1 us on the link, 0.5 us latency, 2 us to add; then the other for 2 us."""
    schedule = two_into_one(2_000_000)
    assert schedule.finish_us == 1 + 0.5 + 2 + 2
    assert verify(schedule) == []


def test_two_at_once_is_a_violation_that_says_who_and_when() -> None:
    (violation,) = verify(two_into_one(500_000))
    assert violation.kind == "adding"
    assert violation.message == "gpu0 adds up transfer 0 until 3.5 us, but transfer 1 is there at 2 us"
    assert violation.transfers == (0, 1)


def test_retime_keeps_them_apart() -> None:
    schedule = left_shift(two_into_one(9_000_000))
    assert schedule.finish_us == 5.5
    assert verify(schedule) == []


def test_what_only_arrives_is_not_added() -> None:
    topology = reducing_at(ring(4), 1.0)
    demand = collective("allgather", 4, 40 * KB)
    plain, slow = (
        next(load_method("ring")(Problem(machine, demand), SearchContext.with_limit(1.0)))
        for machine in (ring(4), topology)
    )
    assert plain.finish_ps == slow.finish_ps


def test_the_floor_counts_all_that_must_be_added() -> None:
    """Three of four contributions to 40 KB are added up, by four GPUs at 5 GB/s each."""
    topology = reducing_at(star(4), 5.0)
    (bound,) = [b for b in bounds(topology, collective("allreduce", 4, 40 * KB)) if b.kind == "adding"]
    assert bound.us == 3 * 40 / 20
    assert bound.witness == "120 KB must be added up, by all together at 20 GB/s"
    helped = reducing_at(star(4, reduces=True), 5.0)  # the switch does it in no time
    assert not [b for b in bounds(helped, collective("allreduce", 4, 40 * KB)) if b.kind == "adding"]


@pytest.mark.parametrize("method", ["greedy", "reroute", "joint-trees", "one-shot", "ring", "tree", "direct"])
def test_every_method_takes_it(method: str) -> None:
    topology, demand = reducing_at(full(4), 30.0), collective("allreduce", 4, 400 * KB, 2)
    free = next(load_method(method)(Problem(full(4), demand), SearchContext.with_limit(9.0)))
    slow = next(load_method(method)(Problem(topology, demand), SearchContext.with_limit(9.0)))
    assert verify(slow) == []
    assert slow.topology == topology
    assert slow.finish_ps > free.finish_ps
    assert slow.finish_ps >= lower_bound(topology, demand).ps


def test_exchange_does_not() -> None:
    with pytest.raises(DemandError, match="exchange is for gpus that add up in no time; use greedy or paired"):
        next(
            load_method("staged-exchange")(
                Problem(reducing_at(full(4), 30.0), collective("allreduce", 4, 400 * KB)), SearchContext.with_limit(9.0)
            )
        )


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_random_machines(data: st.DataObject) -> None:
    topology = reducing_at(data.draw(topologies(max_gpus=5)), data.draw(st.sampled_from([1.0, 10.0, 300.0])))
    demand = data.draw(demands(topology.num_gpus, reductions=True))
    for schedule in islice(load_method("greedy")(Problem(topology, demand), SearchContext.with_limit(1.0)), 3):
        if schedule is not None:
            assert verify(schedule) == []
            assert schedule.finish_ps >= lower_bound(topology, demand).ps


def test_in_files() -> None:
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
