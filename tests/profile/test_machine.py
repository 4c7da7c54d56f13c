"""Known machines are recovered from noisy measurements, and invalid measurements are reported."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from flowccl.errors import InputError
from flowccl.profile.machine import Profile, make_profile
from flowccl.profile.measurements import MeasuredProbe, Measurements
from flowccl.profile.probes import PAIR, PlanOptions, all_links
from flowccl.profile.show import describe_profile
from flowccl.synthesis import synthesize
from flowccl.verifier.verify import verify
from tests.profile.simulated import KnownMachine, profile_of, random_machine

SEEDS = [seed if seed < 6 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(20)]


@cache
def found(seed: int) -> tuple[KnownMachine, Measurements, Profile]:
    known = random_machine(seed)
    measured = profile_of(known, 1000 * seed)
    return known, measured, make_profile(measured)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_machines_are_recovered(seed):
    known, _, profile = found(seed)
    for link in all_links(len(known.hosts)):
        assert profile.fits[link].latency_us == pytest.approx(known.latency_us[link], rel=0.10)
        assert profile.fits[link].bandwidth_GBps == pytest.approx(known.GBps[link], rel=0.03)
    groups = {frozenset(limit.links): limit.bandwidth_GBps for limit in profile.limits}
    assert set(groups) == set(known.groups())
    for links, rate in known.groups().items():
        assert groups[links] == pytest.approx(rate, rel=0.06)


def test_the_random_machines_cover_all_kinds_of_limits():
    machines = [random_machine(seed) for seed in range(20)]
    assert {len(set(known.hosts)) for known in machines} == {1, 2, 3}
    assert {bool(known.groups()) for known in machines} == {True}
    kinds = {len(links) for known in machines for links in known.groups()}
    assert len(kinds) >= 4  # ports, uplinks, NICs of hosts


def test_intervals_have_their_nominal_coverage():
    inside = []
    for seed in range(6):
        known, _, profile = found(seed)
        for link, fit in profile.fits.items():
            inside.append(abs(fit.bandwidth_GBps - known.GBps[link]) <= fit.bandwidth_error_GBps)
            inside.append(abs(fit.latency_us - known.latency_us[link]) <= fit.latency_error_us)
    assert 0.90 <= np.mean(inside) <= 0.99


def test_synth_accepts_the_machine():
    _, measured, profile = found(11)
    assert any(node.kind == "switch" for node in profile.topology.nodes)
    result = synthesize(profile.topology, "allgather", 1_000_000, chunks=1, steps=1, method="greedy")
    assert verify(result.schedule) == []
    assert "switch0 with 4 ranks" in describe_profile(profile, measured)


def test_a_switch_and_its_ports_become_a_star():
    known, _, profile = found(11)
    topology = profile.topology
    assert len(topology.links) == 2 * len(known.hosts)
    assert not topology.limits
    port = next(iter(known.groups().values()))
    assert topology.link_GBps == pytest.approx([port] * len(topology.links), rel=0.04)


def test_outliers_are_reported():
    _, measured, _ = found(1)
    probe = measured.probes[0]
    seconds = probe.seconds.copy()
    seconds[3, 0] = 100 * np.median(seconds)
    changed = replace(measured, probes=(MeasuredProbe(probe.probe, seconds, 1.0), *measured.probes[1:]))
    said = make_profile(changed).outliers
    assert any(words.startswith("gpu0 -> gpu1, 4 KB: ") and ", usually " in words for words in said)


@pytest.mark.parametrize("seconds", [-0.001, 0.0, 3600.0])
def test_clock_jumps_are_detected_and_ignored(seconds):
    _, measured, before = found(1)
    probe = measured.probes[0]
    jumped = probe.seconds.copy()
    jumped[:8, 0] = seconds  # more than half of the times, so a median alone would fail
    changed = replace(measured, probes=(MeasuredProbe(probe.probe, jumped, probe.wall_s), *measured.probes[1:]))
    profile = make_profile(changed)
    assert len(profile.jumps) == 8
    assert profile.jumps[0].endswith("the clock of rank 0 jumped")
    assert profile.fits[0, 1].latency_us == pytest.approx(before.fits[0, 1].latency_us, rel=0.05)
    assert "clock jumps  8" in describe_profile(profile, changed)


def test_unmeasured_links_are_reported_and_omitted():
    _, measured, _ = found(1)
    some = tuple(one for one in measured.probes if (0, 1) not in one.probe.links)
    profile = make_profile(replace(measured, probes=some))
    assert profile.missing == ("gpu0 -> gpu1",)
    assert (0, 1) not in {(link.src, link.dst) for link in profile.topology.links}


def test_nothing_measured_is_an_error():
    _, measured, _ = found(1)
    with pytest.raises(InputError, match="none of the 12 links was measured completely; measure again"):
        make_profile(replace(measured, probes=()))


def test_a_limit_of_all_links_is_found_if_ports_nearly_explain_it():
    """Input ports allow 24 GB/s in total, the machine 20.5: all links take 1.17 times as long as the ports predict."""
    links = all_links(4)
    ports = [(frozenset(link for link in links if link[1] == rank), 6.0) for rank in range(4)]
    limits = [*ports, (frozenset(links), 20.5)]
    for seed in range(5):
        known = KnownMachine(("h",) * 4, dict.fromkeys(links, 2.0), dict.fromkeys(links, 6.0), limits)
        groups = {frozenset(k.links): k.bandwidth_GBps for k in make_profile(profile_of(known, seed)).limits}
        assert set(groups) == set(known.groups())
        assert groups[frozenset(links)] == pytest.approx(20.5, rel=0.06)


def test_a_limit_that_only_many_links_saturate_is_found():
    """Six links of 10 GB/s out of one rank share 35 GB/s: no two of them reach the limit."""
    ranks = 7
    links = all_links(ranks)
    out = frozenset((0, k) for k in range(1, ranks))
    known = KnownMachine(("h",) * ranks, dict.fromkeys(links, 2.0), dict.fromkeys(links, 10.0), [(out, 35.0)])
    profile = make_profile(profile_of(known, 5, PlanOptions(pairs=3000)))
    assert [(k.name, frozenset(k.links)) for k in profile.limits] == [("out of gpu0", out)]
    assert profile.limits[0].bandwidth_GBps == pytest.approx(35, rel=0.06)


def test_shared_nics_are_found_from_a_subset_of_the_pairs():
    """Two hosts of 8 ranks, one NIC per two ranks; only some of the 28,680 pairs of links are probed."""
    hosts = tuple(f"host{rank // 8}" for rank in range(16))
    links = all_links(16)
    near = {link: hosts[link[0]] == hosts[link[1]] for link in links}
    limits = []
    for first in range(0, 16, 2):
        away = [rank for rank in range(16) if hosts[rank] != hosts[first]]
        limits.append((frozenset((a, b) for a in (first, first + 1) for b in away), 12.0))
        limits.append((frozenset((b, a) for a in (first, first + 1) for b in away), 12.0))
    GBps = {link: 100.0 if near[link] else 12.0 for link in links}
    latency = {link: 1.0 if near[link] else 4.0 for link in links}
    options = PlanOptions(sizes=(1_000, 4_000_000), repeats=9, pairs=100)
    profile = make_profile(profile_of(KnownMachine(hosts, latency, GBps, limits), 3, options))
    assert {frozenset(k.links) for k in profile.limits if k.name != "everything"} == {k for k, _ in limits}


def test_larger_sets_widen_a_limit_found_from_pairs():
    """Pairs take twice as long as single links, as on shared cores; but all twelve links carry three times as much."""
    ranks = 4
    links = all_links(ranks)
    known = KnownMachine(
        ("h",) * ranks, dict.fromkeys(links, 2.0), dict.fromkeys(links, 6.0), [(frozenset(links), 18.0)]
    )
    measured = profile_of(known, 8)
    slower = [
        MeasuredProbe(one.probe, 2 * one.seconds, 2 * one.wall_s) if one.probe.name == PAIR else one
        for one in measured.probes
    ]
    profile = make_profile(replace(measured, probes=tuple(slower)))
    everything = [limit for limit in profile.limits if set(limit.links) == set(links)]
    assert [limit.bandwidth_GBps for limit in everything] == pytest.approx([18.0], rel=0.06)


def test_all_links_widen_a_limit_found_from_a_ring():
    """The ring takes 1.5 times as long as predicted; but all twelve links carry the full 18 GB/s."""
    links = all_links(4)
    known = KnownMachine(("h",) * 4, dict.fromkeys(links, 2.0), dict.fromkeys(links, 6.0), [(frozenset(links), 18.0)])
    measured = profile_of(known, 8)
    slower = [
        MeasuredProbe(one.probe, 1.5 * one.seconds, 1.5 * one.wall_s)
        if one.probe.name == "everything" and len(one.probe.links) == 4
        else one
        for one in measured.probes
    ]
    profile = make_profile(replace(measured, probes=tuple(slower)))
    assert [limit.bandwidth_GBps for limit in profile.limits] == pytest.approx([18.0], rel=0.06)
