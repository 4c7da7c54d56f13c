"""What ranks at work cost each other: where they share cores, messages wait for them, and each takes time of them.

A collective keeps all ranks at work, so its latencies are those of ranks at work. The probes of few bytes show them:
all ranks send at once, some bytes, a fourth of them, and that fourth in several chunks. The first two say what remains
without any bytes; the last two differ by nothing but the number of messages.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from flowccl.profile.fit import LinkFit
from flowccl.profile.measurements import Measured, middle
from flowccl.profile.probes import BUSY, Ends, Probe

SLOWER = 1.2  # so much longer is no noise: four times the noise of 5 % in a median of nine


@dataclass(frozen=True)
class AtWork:
    """Where all ranks are at work: what is added to each latency, and what each message takes of its two processes.

    A process spends `setup_us` on every message that it sends or receives, on one after the other. A latency of a link
    alone has the setups of both ends in it; so `wait_us` may be less than nothing, but not by more than these.
    """

    wait_us: float = 0.0
    overhead_us: float = 0.0

    def seconds(self, probe: Probe, fits: dict[Ends, LinkFit]) -> float:
        """How long a probe of many links takes beside its bytes: latencies, and the messages of the busiest rank."""
        latency_us = max(fits[link].latency_us for link in probe.links) + self.wait_us
        messages = (probe.chunks + 1) * _most_links(probe)  # each link's chunks, and an answer
        return (probe.latencies * latency_us + messages * self.overhead_us) * 1e-6


@dataclass(frozen=True)
class _Few:
    """The probes of few bytes over one set of links: `probe` took `few_s`, its bytes `bytes_s` of that.

    The same bytes in more chunks took `many_s`, so each message of the busiest rank took `setup_s`.
    """

    probe: Probe
    few_s: float
    bytes_s: float
    many_s: float
    overhead_s: float


def find_work(measured: Iterable[Measured], fits: dict[Ends, LinkFit]) -> AtWork:
    """What the probes of few bytes show; nothing where all of it may be noise."""
    by_links: dict[tuple[Ends, ...], list[Measured]] = {}
    for one in measured:
        if one.probe.name == BUSY and all(link in fits for link in one.probe.links):
            by_links.setdefault(one.probe.links, []).append(one)
    sets = [few for few in map(_few, by_links.values()) if few is not None]
    if not sets:
        return AtWork()
    told = all(few.many_s > SLOWER * few.few_s for few in sets)
    work = AtWork(0.0, float(np.mean([few.overhead_s for few in sets])) * 1e6 if told else 0.0)
    expected = [few.bytes_s + work.seconds(few.probe, fits) for few in sets]
    slower = all(few.few_s > SLOWER * said for few, said in zip(sets, expected, strict=True))
    if not told and not slower:
        return AtWork()
    rest = [(few.few_s - said) / few.probe.latencies for few, said in zip(sets, expected, strict=True)]
    return replace(work, wait_us=max(float(np.mean(rest)) * 1e6, -2 * work.overhead_us))


def _few(probes: list[Measured]) -> _Few | None:
    """The probes of few bytes over one set of links, each in its quickest pass; None where one is missing."""
    took: dict[Probe, float] = {}
    for one in probes:
        times = middle(one)
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
    return _Few(few, took[few], bytes_s, took[cut], overhead_s)


def _most_links(probe: Probe) -> int:
    """Links of the rank that has most."""
    return max(sum(rank in link for link in probe.links) for rank in probe.ranks)
