"""Machines that are known, and the measurements that a profiler would take on them, with noise and outliers."""

from dataclasses import dataclass, field
from itertools import permutations

import numpy as np

from flowccl.profile.fit import fit_links
from flowccl.profile.measurements import Measured, Measurements
from flowccl.profile.probes import Ends, PlanOptions, Probe, Round, alone_rounds, together_rounds

OPTIONS = PlanOptions(pairs=3000)


@dataclass(frozen=True)
class Known:
    """A machine: latency and bandwidth of each link, and limits as (links, GB/s).

    Where all ranks take part, latencies are longer by `wait_us`, and every message takes `setup_us` of both its ranks.
    """

    hosts: tuple[str, ...]
    latency_us: dict[Ends, float]
    GBps: dict[Ends, float]
    limits: list[tuple[frozenset[Ends], float]] = field(default_factory=list)
    wait_us: float = 0.0
    overhead_us: float = 0.0

    def groups(self) -> dict[frozenset[Ends], float]:
        """The limits that can be seen: more than one link, the narrowest of equal ones."""
        found: dict[frozenset[Ends], float] = {}
        for links, rate in self.limits:
            if len(links) > 1:
                found[links] = min(rate, found.get(links, rate))
        return found


def random_machine(seed: int) -> Known:
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
        latency[a, b] = latency.get((b, a), (inside_us if near else outside_us) * twin)  # only their sum shows
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
    return Known(hosts, latency, GBps, limits + _outside(hosts, outside, bool(pick.integers(2)), pick.uniform(1, 1.3)))


def _ports(ranks: list[int], others: list[int], rate: float) -> list[tuple[frozenset[Ends], float]]:
    result = []
    for rank in ranks:
        result.append((frozenset((rank, k) for k in others if k != rank), rate))
        result.append((frozenset((k, rank) for k in others if k != rank), rate))
    return result


def _outside(hosts: tuple[str, ...], rate: float, one_nic: bool, room: float) -> list[tuple[frozenset[Ends], float]]:
    """The network: one NIC for each host, or one for each rank."""
    ranks = range(len(hosts))
    result = []
    for host in dict.fromkeys(hosts):
        here = [rank for rank in ranks if hosts[rank] == host]
        away = [rank for rank in ranks if hosts[rank] != host]
        if not away:
            continue
        if one_nic:
            result.append((frozenset((a, b) for a in here for b in away), room * rate))
            result.append((frozenset((b, a) for a in here for b in away), room * rate))
        else:
            result += _ports(here, away, rate)
    return result


def finishes(known: Known, links: tuple[Ends, ...], size_bytes: tuple[int, ...]) -> dict[Ends, float]:
    """When each link is done, in seconds: rates are fair, and the slowest of what they share."""
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


def _fair(known: Known, busy: list[Ends]) -> dict[Ends, float]:
    """Max-min fair rates in bytes/s."""
    fixed: dict[Ends, float] = {}
    rooms = [(set(busy) & links, rate * 1e9) for links, rate in known.limits if not links.isdisjoint(busy)]
    rooms += [({link}, known.GBps[link] * 1e9) for link in busy]
    while len(fixed) < len(busy):
        open_rooms = [
            (links - fixed.keys(), rate - sum(fixed[k] for k in links & fixed.keys())) for links, rate in rooms
        ]
        links, rate = min(((k, r) for k, r in open_rooms if k), key=lambda room: room[1] / len(room[0]))
        fixed |= dict.fromkeys(links, rate / len(links))
    return fixed


def seconds_of(known: Known, probe: Probe) -> list[float]:
    """What a perfect clock measures on each link: a rank goes on when all that it sends and gets is there."""
    if probe.alone:
        link = probe.links[0]
        bytes_s = probe.link_bytes[0] / (known.GBps[link] * 1e9)
        return [probe.latencies * known.latency_us[link] * 1e-6 + bytes_s]
    done = finishes(known, probe.links, probe.link_bytes)
    rank = {r: max(t for link, t in done.items() if r in link) for r in probe.ranks}
    wait_us, overhead_us = (known.wait_us, known.overhead_us) if len(probe.ranks) == len(known.hosts) else (0.0, 0.0)
    answered = probe.chunks + 1  # messages of a link
    work = {r: answered * overhead_us * sum(r in link for link in probe.links) for r in probe.ranks}
    beside_us = {(a, b): 2 * (known.latency_us[a, b] + wait_us) + max(work[a], work[b]) for a, b in probe.links}
    return [max(rank[a], rank[b]) + 1e-6 * beside_us[a, b] for a, b in probe.links]


def measure(
    known: Known, rounds: list[Round], seed: int, noise: float = 0.05, outliers: float = 0.02
) -> list[Measured]:
    """Times with relative noise; a share of them is far too long, by 2 to 20 times."""
    pick = np.random.default_rng(seed)
    result = []
    exactly: dict[Probe, list[float]] = {}
    for probe in (probe for turn in rounds for probe in turn):
        if probe not in exactly:
            exactly[probe] = seconds_of(known, probe)
        exact = np.tile(exactly[probe], (probe.repeats, 1))
        noisy = exact * np.maximum(1 + noise * pick.standard_normal(exact.shape), 0.1)
        noisy *= np.where(pick.random(exact.shape) < outliers, pick.uniform(2, 20, exact.shape), 1.0)
        result.append(Measured(probe, noisy, float(noisy.sum()) + 1e-3))
    return result


def profile_of(known: Known, seed: int, options: PlanOptions = OPTIONS, say_hosts: bool = True) -> Measurements:
    """The whole measurement: links alone, then together with bytes after their bandwidths."""
    hosts = known.hosts if say_hosts else ("",) * len(known.hosts)
    first = alone_rounds(hosts, options)
    alone = measure(known, first, seed)
    fits = fit_links(alone)
    second = together_rounds(hosts, options, {link: fit.bandwidth_GBps for link, fit in fits.items()})
    probes = (*alone, *measure(known, second, seed + 1))
    return Measurements("pretend", hosts, options, len(first) + len(second), probes, len(first) + len(second))
