"""Turn measurements into a topology for `synth`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from flowccl.errors import InputError
from flowccl.profile.fit import LinkFit, fit_links
from flowccl.profile.groups import SharedLimit
from flowccl.profile.limits import find_limits
from flowccl.profile.load_cost import LoadCost, find_load_cost
from flowccl.profile.measurements import Measurements, clock_jumps, link_name
from flowccl.profile.probes import Ends, all_links, check_ranks, ranks_of
from flowccl.topology.topology import Limit, Link, Node, Topology

_ALIKE = 1.15  # bandwidths and latencies within this factor belong to one switch


@dataclass(frozen=True)
class Profile:
    """The measured topology and its evidence: link fits, limits, unmeasured links and discarded times.

    `fits` describe links alone; `load_cost` is added while all ranks are busy. The topology includes both.
    """

    topology: Topology
    fits: dict[Ends, LinkFit]
    limits: tuple[SharedLimit, ...]
    load_cost: LoadCost
    missing: tuple[str, ...]
    jumps: tuple[str, ...]

    @property
    def outliers(self) -> list[str]:
        """Descriptions of the times that are far from others of the same probe."""
        return [words for fit in self.fits.values() for words in fit.outliers]


def make_profile(measurements: Measurements, name: str = "profiled") -> Profile:
    """Fit the links, find the limits, and list what could not be measured."""
    ranks = len(measurements.hosts)
    check_ranks(ranks)
    fits = fit_links(measurements.probes)
    missing = tuple(link_name(link) for link in all_links(ranks) if link not in fits)
    if not fits:
        raise InputError(f"none of the {len(missing)} links was measured completely; measure again")
    load_cost = find_load_cost(measurements.probes, fits)
    limits = find_limits(measurements.hosts, measurements.probes, fits, load_cost)
    loaded_fits = {
        link: replace(fit, latency_us=max(fit.latency_us + load_cost.wait_us, 0.0)) for link, fit in fits.items()
    }
    topology = with_overhead(make_topology(name, measurements.hosts, loaded_fits, limits), load_cost.overhead_us)
    return Profile(topology, fits, tuple(limits), load_cost, missing, tuple(clock_jumps(measurements)))


def make_topology(
    name: str, hosts: Sequence[str], fits: dict[Ends, LinkFit], limits: Sequence[SharedLimit]
) -> Topology:
    """One link between any two ranks, plus limits; ranks limited only by their ports are connected to a switch."""
    nodes = [Node(name=f"gpu{rank}", host=host) for rank, host in enumerate(hosts)]
    links: list[Link] = []
    place: dict[Ends, int] = {}
    inside: set[Ends] = set()
    used: set[str] = set()
    for members in [*ranks_of(hosts).values(), list(range(len(hosts)))]:
        ports = _ports(members, fits, limits)
        if ports is None or inside & set(permutations(members, 2)):
            continue
        inside.update(permutations(members, 2))
        switch = len(nodes)
        nodes.append(Node(name=f"switch{switch - len(hosts)}", kind="switch", host=_host(hosts, members)))
        half = float(np.median([fits[link].latency_us for link in permutations(members, 2)])) / 2
        for rank in members:
            links.append(_link(rank, switch, ports[rank][0].bandwidth_GBps, half))
            links.append(_link(switch, rank, ports[rank][1].bandwidth_GBps, half))
            used |= {port.name for port in ports[rank]}
    for ends, fit in sorted(fits.items()):
        if ends not in inside:
            place[ends] = len(links)
            links.append(_link(*ends, fit.bandwidth_GBps, fit.latency_us))
    return Topology(name, tuple(nodes), tuple(links), tuple(_limits(limits, used, place, inside, links)))


def with_overhead(topology: Topology, overhead_us: float) -> Topology:
    """Return the topology with the given overhead per message on every link."""
    return replace(topology, links=tuple(replace(k, overhead_us=_rounded(overhead_us)) for k in topology.links))


def _link(src: int, dst: int, bandwidth_GBps: float, latency_us: float) -> Link:
    return Link(src=src, dst=dst, bandwidth_GBps=_rounded(bandwidth_GBps), latency_us=_rounded(latency_us))


def _rounded(value: float) -> float:
    """Round to four significant digits, the precision of the measurements."""
    return float(f"{value:.4g}")


def _host(hosts: Sequence[str], members: list[int]) -> str:
    return hosts[members[0]] if len({hosts[rank] for rank in members}) == 1 else ""


def _limits(
    limits: Sequence[SharedLimit], used: set[str], place: dict[Ends, int], inside: set[Ends], links: list[Link]
) -> list[Limit]:
    """Limits that no switch represents; through a switch, a limit covers the port of its receiver or its senders."""
    result = []
    plain = set(place.values())
    for limit in limits:
        if limit.name in used:
            continue
        members = [place[ends] for ends in limit.links if ends in place]
        through = [ends for ends in limit.links if ends in inside]
        receivers = {b for _, b in through}
        for at, link in enumerate(links):
            port = link.dst in receivers if len(receivers) == 1 else link.src in {a for a, _ in through}
            members += [at] if port and at not in plain else []
        if len(members) > 1:
            result.append(Limit(name=limit.name, links=tuple(members), bandwidth_GBps=_rounded(limit.bandwidth_GBps)))
    return result


def _ports(
    members: list[int], fits: dict[Ends, LinkFit], limits: Sequence[SharedLimit]
) -> dict[int, list[SharedLimit]] | None:
    """Output and input limit of each rank, if these alone explain the links among the ranks; otherwise None."""
    among = list(permutations(members, 2))
    if len(members) < 3 or any(link not in fits for link in among):
        return None
    latency = np.array([fits[link].latency_us for link in among])
    if latency.max() > _ALIKE * max(float(np.median(latency)), 1e-3) or any(
        _crossing(limit, among) for limit in limits
    ):
        return None
    exact = {frozenset(limit.links): limit for limit in limits}
    ports: dict[int, list[SharedLimit]] = {}
    for rank in members:
        out = exact.get(frozenset((rank, other) for other in members if other != rank))
        into = exact.get(frozenset((other, rank) for other in members if other != rank))
        if out is None or into is None:
            return None
        ports[rank] = [out, into]
    for a, b in among:
        through = min(ports[a][0].bandwidth_GBps, ports[b][1].bandwidth_GBps)
        if not 1 / _ALIKE <= fits[a, b].bandwidth_GBps / through <= _ALIKE:
            return None
    return ports


def _crossing(limit: SharedLimit, among: list[Ends]) -> bool:
    """Whether a limit covers some of these links, but neither all of them nor only those of one rank's port."""
    covered = set(limit.links) & set(among)
    one_port = len({a for a, _ in covered}) == 1 or len({b for _, b in covered}) == 1
    return bool(covered) and not one_port and covered != set(among)
