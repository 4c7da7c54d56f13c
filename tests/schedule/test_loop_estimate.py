"""About how long schedules take with loops, from their work alone: by hand, and beside what the engine finds."""

import numpy as np
import pytest

from flowccl.demand.collectives import collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.runtimes.execution import Execution
from flowccl.runtimes.machine import used_by
from flowccl.runtimes.profiles import PROFILES
from flowccl.schedule.generation.loop_estimate import estimated
from flowccl.schedule.generation.looping import Looper, repeated
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.machines import machine
from flowccl.topology.topology import Link, Node, Topology

MSCCLPP = PROFILES["mscclpp"]
US = 1_000_000  # picoseconds
MIB = 1 << 20


def reduced(peers: int, GBps: float) -> Schedule:
    """GPU 0 reduces what its peers send to it, 24.8 MB from each."""
    nodes = tuple(Node(name=f"gpu{i}", host="host") for i in range(peers + 1))
    links = tuple(Link(src=i, dst=0, bandwidth_GBps=GBps, latency_us=0.7) for i in range(1, peers + 1))
    ranks = tuple(range(peers + 1))
    demand = Demand.from_chunks("custom", peers + 1, [Chunk(bytes=24_800_000, sources=ranks, destinations=(0,))])
    rows = [(0, [peer], 0, True) for peer in range(peers)]
    return Schedule.from_transfers(Topology("star", nodes, links), demand, rows)


def test_the_busiest_sets_the_pace_and_the_first_part_goes_through_all_stages():
    """Links of 10 GB/s take 2,480 us, and a threadblock reduces three messages at once in 1,980 us.

    Links of 100 GB/s take 248 us: the threadblock would not keep up, so each of the messages has an operation.
    """
    flow, work = 24_800 / 34.1, 1980
    slow, fast = (estimated(reduced(3, GBps), Execution(MSCCLPP, 16)) for GBps in (10, 100))
    assert slow.ps(8) == pytest.approx((2480 + 8 * 0.6 + 2480 / 8 + 0.6 + work / 8) * US, rel=1e-6)
    assert fast.ps(8) == pytest.approx((1000 + flow / 8 + 0.6 + 1000 / 8) * US, rel=1e-6)
    few = estimated(reduced(3, 100), Execution(MSCCLPP, 1))  # GPU 0 has one threadblock for all three
    assert few.ps(8) == pytest.approx((3000 + flow / 8 + 0.6 + 1000 / 8) * US, rel=1e-6)


def test_proxies_post_every_part_of_every_message():
    nodes = tuple(Node(name=f"gpu{i}", host=f"host{i}") for i in range(2))
    links = (Link(src=0, dst=1, bandwidth_GBps=50, latency_us=0.7, kind="nic"),)
    demand = Demand.from_chunks("custom", 2, [Chunk(bytes=2_048_000, sources=(0,), destinations=(1,))])
    schedule = Schedule.from_transfers(Topology("pair", nodes, links), demand, [(0, [0], 0)])
    found = estimated(schedule, Execution(MSCCLPP, 16))
    assert found.ps(8) == pytest.approx((40.96 + 40.96 / 8) * US)
    assert found.ps(64) == pytest.approx((64 * 2 + 40.96 / 64) * US)


@pytest.mark.parametrize(
    ("name", "what", "chunks", "sms"),
    [
        ("full:4", "reduce_scatter", 1, 32),
        ("dgx_h100:1:nvls=false", "allgather", 2, 132),
        ("rail:2x4", "allreduce", 1, 64),
    ],
)
def test_what_is_expected_is_near_what_the_engine_finds(name: str, what: str, chunks: int, sms: int):
    topology = used_by(machine(name), MSCCLPP)
    demand = collective(what, topology.num_gpus, 64 * MIB, chunks)
    schedule = next(filter(None, load_method("greedy")(Problem(topology, demand), SearchContext.with_limit(60.0))))
    expected_ps, loops = Looper(MSCCLPP, topology, sms).expected(schedule)
    found = repeated(schedule, MSCCLPP, sms, loops)
    assert found is not None
    assert found.finish_ps == pytest.approx(expected_ps, rel=0.15)


def test_nothing_is_expected_where_loops_are_not_possible():
    topology = used_by(machine("full:4"), MSCCLPP)
    demand = collective("allgather", 4, 64 * 1024, 1)  # parts would be too small
    schedule = next(load_method("direct")(Problem(topology, demand), SearchContext.with_limit(60.0)))
    assert Looper(MSCCLPP, topology, 32).expected(schedule)[0] == np.inf
