"""Costs under load of ranks that share cores are found, and runs are predicted with them."""

from dataclasses import replace
from functools import cache

import pytest

from flowccl.demand.collectives import allgather
from flowccl.profile.load_cost import LoadCost
from flowccl.profile.machine import Profile, make_profile
from flowccl.profile.measurements import Measurements
from flowccl.profile.predict import predict_us
from flowccl.profile.probes import BUSY, all_links
from flowccl.profile.show import describe_profile, profile_to_json
from flowccl.schedule.schedule import Schedule
from tests.profile.simulated import KnownMachine, profile_of, random_machine

LINKS = all_links(4)
CORES = KnownMachine(
    ("h",) * 4,
    latency_us=dict.fromkeys(LINKS, 25.0),
    GBps=dict.fromkeys(LINKS, 8.0),
    limits=[(frozenset(LINKS), 10.0)],
    wait_us=40.0,
    overhead_us=8.0,
)
"""Four ranks on fewer cores: all links share 10 GB/s, each message costs 8 us on both its ranks."""


@cache
def found(seed: int) -> tuple[Measurements, Profile]:
    measured = profile_of(CORES, 100 * seed)
    return measured, make_profile(measured)


@pytest.mark.parametrize("seed", range(8))
def test_the_load_cost_is_found(seed):
    measured, profile = found(seed)
    assert profile.load_cost.overhead_us == pytest.approx(8, rel=0.1)
    assert profile.load_cost.wait_us == pytest.approx(40, rel=0.15)
    assert [link.overhead_us for link in profile.topology.links] == pytest.approx([8] * 12, rel=0.1)
    assert [link.latency_us for link in profile.topology.links] == pytest.approx([65] * 12, rel=0.12)
    assert {frozenset(k.links): pytest.approx(k.bandwidth_GBps, rel=0.04) for k in profile.limits} == CORES.groups()
    assert " on both ranks; included in the machine" in describe_profile(profile, measured)
    assert profile_to_json(profile, measured)["load_cost"]["overhead_us"] == profile.load_cost.overhead_us


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("size", [250_000, 1_000_000, 16_000_000])
@pytest.mark.parametrize("pieces", [1, 4, 16])
def test_runs_are_predicted(seed, size, pieces):
    """Expected times in closed form: all blocks concurrently, and a ring in three steps, in few or many messages."""
    _, profile = found(seed)
    bytes_us = 12 * size / 4 / 10_000  # twelve blocks at 10 GB/s
    demand, place = allgather(4, size, pieces), {ends: at for at, ends in enumerate(LINKS)}
    blocks = [(block, block * pieces + piece) for block in range(4) for piece in range(pieces)]
    at_once = [(chunk, (place[block, to],), 0) for block, chunk in blocks for to in range(4) if to != block]
    schedule = Schedule.from_transfers(profile.topology, demand, at_once)
    assert predict_us(schedule, size) == pytest.approx(65 + 6 * pieces * 8 + bytes_us, rel=0.06)
    steps = [(step, (block + step) % 4, (block + step + 1) % 4, chunk) for step in range(3) for block, chunk in blocks]
    ring = [(chunk, (place[a, b],), step * 10**12) for step, a, b, chunk in steps]
    schedule = Schedule.from_transfers(profile.topology, demand, ring)
    assert predict_us(schedule, size) == pytest.approx(3 * (65 + 2 * pieces * 8) + bytes_us, rel=0.06)


@pytest.mark.parametrize("seed", range(6))
def test_ranks_with_dedicated_cores_have_no_load_cost(seed):
    assert make_profile(profile_of(random_machine(seed), 1000 * seed)).load_cost == LoadCost()


def test_latencies_may_grow_without_message_overhead():
    profile = make_profile(profile_of(replace(CORES, overhead_us=0.0), 3))
    assert profile.load_cost.overhead_us == 0
    assert profile.load_cost.wait_us == pytest.approx(40, rel=0.15)


def test_sets_with_shorter_waits_do_not_widen_limits():
    """The links out of one rank, or into it, do not wait; their higher rate is not a wider limit."""
    slow = profile_of(replace(CORES, wait_us=200.0), 5)
    quick = profile_of(replace(CORES, wait_us=0.0, overhead_us=0.0), 5)
    probes = [
        b if a.probe.name.startswith(("out", "into")) else a for a, b in zip(slow.probes, quick.probes, strict=True)
    ]
    profile = make_profile(replace(slow, probes=tuple(probes)))
    limits = {frozenset(limit.links): limit.bandwidth_GBps for limit in profile.limits}
    assert limits[frozenset(LINKS)] == pytest.approx(10, rel=0.06)


def test_latencies_of_single_links_include_the_overheads():
    """A message takes 8 us at each end and 2 us on the link: 18 us alone; under load, overheads count separately."""
    known = replace(CORES, latency_us=dict.fromkeys(LINKS, 18.0), wait_us=-16.0)
    profile = make_profile(profile_of(known, 4))
    assert profile.load_cost.overhead_us == pytest.approx(8, rel=0.1)
    assert profile.topology.links[0].latency_us == pytest.approx(2, abs=2)


def test_without_small_probes_there_is_no_load_cost():
    measured, _ = found(0)
    some = tuple(one for one in measured.probes if one.probe.name != BUSY)
    assert make_profile(replace(measured, probes=some)).load_cost == LoadCost()
