"""Ranks that share cores: what they cost each other is found, and runs are predicted with it."""

from dataclasses import replace
from functools import cache

import pytest

from flowccl.demand.collectives import allgather
from flowccl.profile.machine import Profile, make_profile
from flowccl.profile.measurements import Measurements
from flowccl.profile.predict import predict_us
from flowccl.profile.probes import BUSY, all_links
from flowccl.profile.show import describe_profile, profile_to_json
from flowccl.profile.work import AtWork
from flowccl.schedule.schedule import Schedule
from tests.profile.pretend import Known, profile_of, random_machine

LINKS = all_links(4)
CORES = Known(
    ("h",) * 4,
    latency_us=dict.fromkeys(LINKS, 25.0),
    GBps=dict.fromkeys(LINKS, 8.0),
    limits=[(frozenset(LINKS), 10.0)],
    wait_us=40.0,
    overhead_us=8.0,
)
"""Four ranks on fewer cores: all links share 10 GB/s, each message takes 8 us of both its ranks."""


@cache
def found(seed: int) -> tuple[Measurements, Profile]:
    measured = profile_of(CORES, 100 * seed)
    return measured, make_profile(measured)


@pytest.mark.parametrize("seed", range(8))
def test_what_ranks_at_work_cost_is_found(seed):
    measured, profile = found(seed)
    assert profile.work.overhead_us == pytest.approx(8, rel=0.1)
    assert profile.work.wait_us == pytest.approx(40, rel=0.15)
    assert [link.overhead_us for link in profile.topology.links] == pytest.approx([8] * 12, rel=0.1)
    assert [link.latency_us for link in profile.topology.links] == pytest.approx([65] * 12, rel=0.12)
    assert {frozenset(k.links): pytest.approx(k.bandwidth_GBps, rel=0.04) for k in profile.limits} == CORES.groups()
    assert " of both ranks for each message; the machine has that" in describe_profile(profile, measured)
    assert profile_to_json(profile, measured)["at_work"]["overhead_us"] == profile.work.overhead_us


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("size", [250_000, 1_000_000, 16_000_000])
@pytest.mark.parametrize("pieces", [1, 4, 16])
def test_runs_are_predicted(seed, size, pieces):
    """By pencil: all blocks at once to all, and three steps round a ring, in few or in many messages."""
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
def test_ranks_with_cores_of_their_own_cost_nothing(seed):
    assert make_profile(profile_of(random_machine(seed), 1000 * seed)).work == AtWork()


def test_messages_may_cost_nothing_where_latencies_grow():
    profile = make_profile(profile_of(replace(CORES, overhead_us=0.0), 3))
    assert profile.work.overhead_us == 0
    assert profile.work.wait_us == pytest.approx(40, rel=0.15)


def test_sets_that_wait_less_make_no_limit_wider():
    """All links out of a rank, or into it, wait for nobody; they carry no more for that."""
    slow = profile_of(replace(CORES, wait_us=200.0), 5)
    quick = profile_of(replace(CORES, wait_us=0.0, overhead_us=0.0), 5)
    probes = [
        b if a.probe.name.startswith(("out", "into")) else a for a, b in zip(slow.probes, quick.probes, strict=True)
    ]
    profile = make_profile(replace(slow, probes=tuple(probes)))
    limits = {frozenset(limit.links): limit.bandwidth_GBps for limit in profile.limits}
    assert limits[frozenset(LINKS)] == pytest.approx(10, rel=0.06)


def test_latencies_of_links_alone_have_the_setups_in_them():
    """A message takes 8 us at each end and 2 us on the way: 18 us alone; at work, setups count by themselves."""
    known = replace(CORES, latency_us=dict.fromkeys(LINKS, 18.0), wait_us=-16.0)
    profile = make_profile(profile_of(known, 4))
    assert profile.work.overhead_us == pytest.approx(8, rel=0.1)
    assert profile.topology.links[0].latency_us == pytest.approx(2, abs=2)


def test_without_the_probes_of_few_bytes_nothing_is_known_of_work():
    measured, _ = found(0)
    some = tuple(one for one in measured.probes if one.probe.name != BUSY)
    assert make_profile(replace(measured, probes=some)).work == AtWork()
