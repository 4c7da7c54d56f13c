"""Describe a profile in text and JSON."""

from dataclasses import asdict
from typing import Any

from flowccl.profile.fit import LinkFit, fit_links
from flowccl.profile.hosts import format_hosts
from flowccl.profile.load_cost import LoadCost
from flowccl.profile.machine import Profile
from flowccl.profile.measurements import Measurements, link_name
from flowccl.profile.probes import all_links, pairs_left_out
from flowccl.topology.topology import Topology
from flowccl.units import format_GBps, format_us

_MOST = 12  # printed lines of one kind


def describe_profile(profile: Profile, measurements: Measurements) -> str:
    """Text report of the measured machine: hosts, links with their intervals, limits, and anomalies."""
    topology, ranks = profile.topology, len(measurements.hosts)
    lines = [f"profile      {ranks} ranks on {measurements.on}, {sum(f.samples for f in profile.fits.values())} times"]
    hosts = [node.host for node in topology.nodes[:ranks]]
    lines.append(f"hosts        {format_hosts(hosts)}" if any(hosts) else "hosts        not distinguished")
    lines.append(f"switches     {_switches(topology) or 'none found'}")
    lines.append(f"links        {len(profile.fits)} measured; ± is the 95 % interval")
    lines += _some([_link_line(fit) for fit in profile.fits.values()])
    if profile.load_cost != LoadCost():
        wait, overhead = format_us(abs(profile.load_cost.wait_us)), format_us(profile.load_cost.overhead_us)
        sign = "-" if profile.load_cost.wait_us < 0 else "+"
        words = f"latencies {sign} {wait}, overhead per message {overhead} on both ranks; included in the machine"
        lines.append(f"under load   {words}")
    lines.append(f"limits       {len(profile.limits)}")
    lines += _some([f"{k.name}: {format_GBps(k.bandwidth_GBps)} over {len(k.links)} links" for k in profile.limits])
    left_out = pairs_left_out(measurements.hosts, measurements.options)
    if left_out:
        lines.append(f"not probed   {left_out} pairs of links were not probed together (--pairs)")
    for title, found in (
        ("outliers", profile.outliers),
        ("clock jumps", list(profile.jumps)),
        ("not measured", list(profile.missing)),
    ):
        if found:
            lines += [f"{title:<12} {len(found)}", *_some(found)]
    return "\n".join(lines)


def _some(lines: list[str]) -> list[str]:
    more = [] if len(lines) <= _MOST else [f"... {len(lines)} in total"]
    return [f"             {line}" for line in lines[:_MOST] + more]


def _link_line(fit: LinkFit) -> str:
    latency = f"{format_us(fit.latency_us)} ± {fit.latency_error_us:.2g}"
    bandwidth = f"{format_GBps(fit.bandwidth_GBps)} ± {fit.bandwidth_error_GBps:.2g}"
    return f"{link_name(fit.link):<14} {latency}, {bandwidth}, residual {fit.residual:.1%}"


def _switches(topology: Topology) -> str:
    names = [node.name for node in topology.nodes if node.kind == "switch"]
    at = {name: sum(topology.nodes[link.dst].name == name for link in topology.links) for name in names}
    return ", ".join(f"{name} with {count} ranks" for name, count in at.items())


def profile_to_json(profile: Profile, measurements: Measurements) -> dict[str, Any]:
    """The profile as a JSON object."""
    links = [asdict(fit) | {"link": list(fit.link)} for fit in profile.fits.values()]
    return {
        "on": measurements.on,
        "hosts": [node.host for node in profile.topology.nodes[: len(measurements.hosts)]],
        "links": links,
        "limits": [asdict(limit) for limit in profile.limits],
        "load_cost": asdict(profile.load_cost),
        "clock_jumps": list(profile.jumps),
        "missing": list(profile.missing),
    }


def describe_missing(measurements: Measurements) -> str:
    """Describe what an interrupted measurement lacks."""
    fits = fit_links(measurements.probes)
    links = [link_name(link) for link in all_links(len(measurements.hosts)) if link not in fits]
    if not links:
        return "all links are measured alone, but not all sets of links together"
    named = ", ".join(links[:_MOST]) + (f" and {len(links) - _MOST} more" if len(links) > _MOST else "")
    return f"not measured: {named}, and sets of links together"
