"""Find what messages cost when all ranks are busy: where ranks share cores, latencies grow and messages take CPU time.

A collective keeps all ranks busy, so latencies under load apply to it. Small probes measure them: all ranks send
concurrently, first some bytes, then a fourth of them, then that fourth in several chunks. The first two probes show the
time that does not depend on the bytes; the last two differ only in the number of messages.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from flowccl.profile.fit import LinkFit
from flowccl.profile.measurements import MeasuredProbe, median_times
from flowccl.profile.probes import BUSY, Ends, Probe

SLOWER = 1.2  # slowdowns beyond this factor are not noise: four times the noise of 5 % in a median of nine


@dataclass(frozen=True)
class LoadCost:
    """Costs while all ranks are busy: `wait_us` is added to each latency, `overhead_us` is the overhead per message.

    A process spends `overhead_us` on every message that it sends or receives, one message after the other. The latency
    of a link alone includes the overheads of both ends, so `wait_us` may be negative, down to -2 x `overhead_us`.
    """

    wait_us: float = 0.0
    overhead_us: float = 0.0

    def seconds(self, probe: Probe, fits: dict[Ends, LinkFit]) -> float:
        """Time of a probe of many links without its bytes: latencies and the message overheads of the busiest rank."""
        latency_us = max(fits[link].latency_us for link in probe.links) + self.wait_us
        messages = (probe.chunks + 1) * _most_links(probe)  # the chunks of each link, and an answer
        return (probe.latencies * latency_us + messages * self.overhead_us) * 1e-6


@dataclass(frozen=True)
class _SmallProbes:
    """Results of the small probes over one set of links: `probe` took `few_s`, of which its bytes took `bytes_s`.

    The same bytes in more chunks took `many_s`, so each message of the busiest rank took `overhead_s`.
    """

    probe: Probe
    few_s: float
    bytes_s: float
    many_s: float
    overhead_s: float


def find_load_cost(measured: Iterable[MeasuredProbe], fits: dict[Ends, LinkFit]) -> LoadCost:
    """Load cost from the small probes; zero if the differences may be noise."""
    by_links: dict[tuple[Ends, ...], list[MeasuredProbe]] = {}
    for one in measured:
        if one.probe.name == BUSY and all(link in fits for link in one.probe.links):
            by_links.setdefault(one.probe.links, []).append(one)
    sets = [few for few in map(_small_probes, by_links.values()) if few is not None]
    if not sets:
        return LoadCost()
    overhead_visible = all(few.many_s > SLOWER * few.few_s for few in sets)
    load_cost = LoadCost(0.0, float(np.mean([few.overhead_s for few in sets])) * 1e6 if overhead_visible else 0.0)
    expected = [few.bytes_s + load_cost.seconds(few.probe, fits) for few in sets]
    slower = all(few.few_s > SLOWER * said for few, said in zip(sets, expected, strict=True))
    if not overhead_visible and not slower:
        return LoadCost()
    rest = [(few.few_s - said) / few.probe.latencies for few, said in zip(sets, expected, strict=True)]
    return replace(load_cost, wait_us=max(float(np.mean(rest)) * 1e6, -2 * load_cost.overhead_us))


def _small_probes(probes: list[MeasuredProbe]) -> _SmallProbes | None:
    """Small probes over one set of links, each in its fastest pass; None if one is missing."""
    took: dict[Probe, float] = {}
    for one in probes:
        times = median_times(one)
        if times is not None:
            took[one.probe] = min(float(times.max()), took.get(one.probe, np.inf))
    single = sorted((probe for probe in took if probe.chunks == 1), key=lambda probe: sum(probe.link_bytes))
    many = [probe for probe in took if probe.chunks > 1]
    if len(single) < 2 or not many:
        return None
    few, more, cut = single[0], single[-1], many[0]
    growth = sum(more.link_bytes) / sum(few.link_bytes) - 1
    bytes_s = max((took[more] - took[few]) / growth, 0.0) if growth else 0.0
    overhead_s = (took[cut] - took[few]) / ((cut.chunks - 1) * _most_links(few))
    return _SmallProbes(few, took[few], bytes_s, took[cut], overhead_s)


def _most_links(probe: Probe) -> int:
    """Number of links of the rank with the most links."""
    return max(sum(rank in link for link in probe.links) for rank in probe.ranks)
