"""Simulated measurements, with noise and outliers, on machines with known parameters."""

from dataclasses import dataclass, field
from itertools import permutations

import numpy as np

from flowccl.profile.fit import fit_links
from flowccl.profile.measurements import MeasuredProbe, Measurements
from flowccl.profile.probes import Ends, PlanOptions, Probe, Round, alone_rounds, together_rounds

OPTIONS = PlanOptions(pairs=3000)


@dataclass(frozen=True)
class KnownMachine:
    """A machine: latency and bandwidth of each link, and limits as (links, GB/s).

    If all ranks take part in a probe, latencies grow by `wait_us` and every message costs `overhead_us` on both ranks.
    """

    hosts: tuple[str, ...]
    latency_us: dict[Ends, float]
    GBps: dict[Ends, float]
    limits: list[tuple[frozenset[Ends], float]] = field(default_factory=list)
    wait_us: float = 0.0
    overhead_us: float = 0.0

    def groups(self) -> dict[frozenset[Ends], float]:
        """The observable limits: more than one link, and the narrowest of those with equal links."""
        found: dict[frozenset[Ends], float] = {}
        for links, rate in self.limits:
            if len(links) > 1:
                found[links] = min(rate, found.get(links, rate))
        return found


def random_machine(seed: int) -> KnownMachine:
    """One to three hosts of two to four ranks: switches, meshes or shared uplinks inside, one NIC or many outside."""
    pick = np.random.default_rng(seed)
    count, size = [(1, 4), (1, 6), (2, 2), (2, 3), (2, 4), (3, 2)][pick.integers(6)]
    hosts = tuple(f"host{rank // size}" for rank in range(count * size))
    inside_us, outside_us = pick.uniform(0.5, 2), pick.uniform(4, 10)
    inside, outside = pick.uniform(20, 100), pick.uniform(5, 12)
    latency, GBps, limits = {}, {}, []
    for a, b in permutations(range(len(hosts)), 2):
        near = hosts[a] == hosts[b]
        twin = pick.uniform(0.9, 1.1)
        latency[a, b] = latency.get((b, a), (inside_us if near else outside_us) * twin)  # only their sum is observable
        GBps[a, b] = inside if near else outside
    style = pick.choice(["switch", "mesh", "uplinks"])
    for a, b in GBps if style == "mesh" else ():
        GBps[a, b] *= pick.choice([1.0, 2.0]) if hosts[a] == hosts[b] else 1.0
    for host in dict.fromkeys(hosts):
        here = [rank for rank in range(len(hosts)) if hosts[rank] == host]
        if style == "switch":
            limits += _ports(here, here, inside)
        if style == "uplinks" and size >= 4:
            shared = pick.uniform(1.0, 1.3) * inside
            for pair in (here[at : at + 2] for at in range(0, size, 2)):
                limits.append((frozenset((a, b) for a in pair for b in here if b not in pair), shared))
    return KnownMachine(
        hosts, latency, GBps, limits + _outside(hosts, outside, bool(pick.integers(2)), pick.uniform(1, 1.3))
    )


def _ports(ranks: list[int], others: list[int], rate: float) -> list[tuple[frozenset[Ends], float]]:
    result = []
    for rank in ranks:
        result.append((frozenset((rank, k) for k in others if k != rank), rate))
        result.append((frozenset((k, rank) for k in others if k != rank), rate))
    return result


def _outside(hosts: tuple[str, ...], rate: float, one_nic: bool, factor: float) -> list[tuple[frozenset[Ends], float]]:
    """Limits of the network: one NIC per host (of `factor` times the rate), or one NIC per rank."""
    ranks = range(len(hosts))
    result = []
    for host in dict.fromkeys(hosts):
        here = [rank for rank in ranks if hosts[rank] == host]
        away = [rank for rank in ranks if hosts[rank] != host]
        if not away:
            continue
        if one_nic:
            result.append((frozenset((a, b) for a in here for b in away), factor * rate))
            result.append((frozenset((b, a) for a in here for b in away), factor * rate))
        else:
            result += _ports(here, away, rate)
    return result


def finishes(known: KnownMachine, links: tuple[Ends, ...], size_bytes: tuple[int, ...]) -> dict[Ends, float]:
    """Completion time of each link in seconds under max-min fair rates."""
    left = dict(zip(links, map(float, size_bytes), strict=True))
    now, done = 0.0, {}
    while left:
        rates = _fair(known, list(left))
        step = min(left[link] / rates[link] for link in left)
        now += step
        for link in list(left):
            left[link] -= rates[link] * step
            if left[link] <= 1e-6:
                done[link] = now
                del left[link]
    return done


def _fair(known: KnownMachine, busy: list[Ends]) -> dict[Ends, float]:
    """Max-min fair rates in bytes/s."""
    fixed: dict[Ends, float] = {}
    capacities = [(set(busy) & links, rate * 1e9) for links, rate in known.limits if not links.isdisjoint(busy)]
    capacities += [({link}, known.GBps[link] * 1e9) for link in busy]
    while len(fixed) < len(busy):
        open_capacities = [
            (links - fixed.keys(), rate - sum(fixed[k] for k in links & fixed.keys())) for links, rate in capacities
        ]
        links, rate = min(((k, r) for k, r in open_capacities if k), key=lambda one: one[1] / len(one[0]))
        fixed |= dict.fromkeys(links, rate / len(links))
    return fixed


def seconds_of(known: KnownMachine, probe: Probe) -> list[float]:
    """Exact time of each link; a rank continues when all its messages have been sent and received."""
    if probe.alone:
        link = probe.links[0]
        bytes_s = probe.link_bytes[0] / (known.GBps[link] * 1e9)
        return [probe.latencies * known.latency_us[link] * 1e-6 + bytes_s]
    done = finishes(known, probe.links, probe.link_bytes)
    rank = {r: max(t for link, t in done.items() if r in link) for r in probe.ranks}
    wait_us, overhead_us = (known.wait_us, known.overhead_us) if len(probe.ranks) == len(known.hosts) else (0.0, 0.0)
    answered = probe.chunks + 1  # messages per link
    work = {r: answered * overhead_us * sum(r in link for link in probe.links) for r in probe.ranks}
    beside_us = {(a, b): 2 * (known.latency_us[a, b] + wait_us) + max(work[a], work[b]) for a, b in probe.links}
    return [max(rank[a], rank[b]) + 1e-6 * beside_us[a, b] for a, b in probe.links]


def measure(
    known: KnownMachine, rounds: list[Round], seed: int, noise: float = 0.05, outliers: float = 0.02
) -> list[MeasuredProbe]:
    """Times with relative noise; a share `outliers` of them is too long by a factor of 2 to 20."""
    pick = np.random.default_rng(seed)
    result = []
    exactly: dict[Probe, list[float]] = {}
    for probe in (probe for turn in rounds for probe in turn):
        if probe not in exactly:
            exactly[probe] = seconds_of(known, probe)
        exact = np.tile(exactly[probe], (probe.repeats, 1))
        noisy = exact * np.maximum(1 + noise * pick.standard_normal(exact.shape), 0.1)
        noisy *= np.where(pick.random(exact.shape) < outliers, pick.uniform(2, 20, exact.shape), 1.0)
        result.append(MeasuredProbe(probe, noisy, float(noisy.sum()) + 1e-3))
    return result


def profile_of(known: KnownMachine, seed: int, options: PlanOptions = OPTIONS) -> Measurements:
    """A complete measurement: links alone, then together with bytes in proportion to their bandwidths."""
    hosts = known.hosts
    first = alone_rounds(hosts, options)
    alone = measure(known, first, seed)
    fits = fit_links(alone)
    second = together_rounds(hosts, options, {link: fit.bandwidth_GBps for link, fit in fits.items()})
    probes = (*alone, *measure(known, second, seed + 1))
    return Measurements("simulated", hosts, options, len(first) + len(second), probes, len(first) + len(second))
