"""A profile in words, and how long it will still take."""

import time
from dataclasses import asdict
from typing import Any

from flowccl.profile.fit import LinkFit, fit_links
from flowccl.profile.hosts import hosts_in_words
from flowccl.profile.machine import Profile
from flowccl.profile.measurements import Measurements, link_name
from flowccl.profile.probes import all_links, pairs_left_out
from flowccl.profile.work import AtWork
from flowccl.topology.topology import Topology
from flowccl.units import format_GBps, format_us

_MOST = 12  # lines of one kind


def describe_profile(profile: Profile, measurements: Measurements) -> str:
    """The machine as found: hosts, links with their intervals, limits, and what was odd."""
    topology, ranks = profile.topology, len(measurements.hosts)
    lines = [f"profile      {ranks} ranks on {measurements.on}, {sum(f.samples for f in profile.fits.values())} times"]
    said = "said by the processes" if any(measurements.hosts) else "by what is near"
    hosts = [node.host for node in topology.nodes[:ranks]]
    lines.append(f"hosts        {hosts_in_words(hosts)} ({said})" if any(hosts) else "hosts        not told apart")
    lines.append(f"switches     {_switches(topology) or 'none seen'}")
    lines.append(f"links        {len(profile.fits)} measured; ± is 95 %")
    lines += _some([_link_line(fit) for fit in profile.fits.values()])
    if profile.work != AtWork():
        wait, overhead = format_us(abs(profile.work.wait_us)), format_us(profile.work.overhead_us)
        sign = "-" if profile.work.wait_us < 0 else "+"
        words = f"latencies {sign} {wait}, and {overhead} of both ranks for each message; the machine has that"
        lines.append(f"at work      {words}")
    lines.append(f"limits       {len(profile.limits)}")
    lines += _some([f"{k.name}: {format_GBps(k.bandwidth_GBps)} over {len(k.links)} links" for k in profile.limits])
    left_out = pairs_left_out(measurements.hosts, measurements.options)
    if left_out:
        lines.append(f"not asked    {left_out} pairs of links were not probed together (--pairs)")
    for title, found in (
        ("outliers", profile.outliers),
        ("clock jumps", list(profile.jumps)),
        ("not measured", list(profile.missing)),
    ):
        if found:
            lines += [f"{title:<12} {len(found)}", *_some(found)]
    return "\n".join(lines)


def _some(lines: list[str]) -> list[str]:
    more = [] if len(lines) <= _MOST else [f"... {len(lines)} in all"]
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
    """The same for programs."""
    links = [asdict(fit) | {"link": list(fit.link)} for fit in profile.fits.values()]
    return {
        "on": measurements.on,
        "hosts": [node.host for node in profile.topology.nodes[: len(measurements.hosts)]],
        "links": links,
        "limits": [asdict(limit) for limit in profile.limits],
        "at_work": asdict(profile.work),
        "clock_jumps": list(profile.jumps),
        "missing": list(profile.missing),
    }


def what_is_missing(measurements: Measurements) -> str:
    """What an interrupted measurement lacks, in words."""
    fits = fit_links(measurements.probes)
    links = [link_name(link) for link in all_links(len(measurements.hosts)) if link not in fits]
    if not links:
        return "all links are measured, but not all of them together"
    named = ", ".join(links[:_MOST]) + (f" and {len(links) - _MOST} more" if len(links) > _MOST else "")
    return f"not measured: {named}, and all links together"


class TimeLeft:
    """An estimate from the rounds so far; all are about equally long."""

    def __init__(self) -> None:
        self.start = time.monotonic()

    def words(self, done: int, rounds: int) -> str:
        """How far it is, and how long it will still take."""
        left = (time.monotonic() - self.start) / max(done, 1) * max(rounds - done, 0)
        return f"{done} of {rounds} rounds, about {left:.0f} s left"
