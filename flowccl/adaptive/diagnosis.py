"""Diagnosis of drift: which slow link explains the times that were measured."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log, sqrt

import numpy as np

from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import in_order_of
from flowccl.topology.faults import Fault, apply_faults
from flowccl.units import format_GBps
from flowccl.wording import listed

_STANDARD_GBPS = (50.0, 25.0, 12.5, 6.25, 5.0, 3.125, 1.25, 0.125)  # 400, 200, 100, 50, 40, 25, 10 and 1 Gb/s
_LANES = (2, 4, 8)  # a link that lost lanes has one of these parts of its bandwidth
_SHORTLIST = 24  # suspects whose schedules are timed: about a second for schedules of some thousand transfers
_ALIKE = 0.05  # suspects within this of the best one cannot be told apart from it by noisy times


@dataclass(frozen=True, slots=True)
class Suspect:
    """A link that, at this bandwidth, explains the slowdowns up to `error`, the root mean square of log ratios."""

    link: int
    GBps: float
    error: float


def suspects(observed: Sequence[tuple[Schedule, float]]) -> list[Suspect]:
    """Return the slow links that explain the slowdown of each schedule (1: as before), the best one first.

    All schedules are on the same machine. Links are tried at standard speeds, and at parts of their own bandwidth.
    """
    topology = observed[0][0].topology
    rough = []
    for link in range(len(topology.links)):
        own = float(topology.link_GBps[link])
        speeds = {rate for rate in _STANDARD_GBPS if rate < own} | {own / part for part in _LANES}
        for GBps in sorted(speeds, reverse=True):
            rough.append(Suspect(link, GBps, _error([(_rough(one, link, GBps), ratio) for one, ratio in observed])))
    rough.sort(key=lambda one: (one.error, one.link, -one.GBps))
    exact = [
        replace(one, error=_error([(_slowdown(schedule, one), ratio) for schedule, ratio in observed]))
        for one in rough[:_SHORTLIST]
    ]
    return sorted(exact, key=lambda one: (one.error, one.link, -one.GBps))


def describe(observed: Sequence[tuple[Schedule, float]]) -> tuple[str, str]:
    """Return the name of the place that is slow, and what the slowdowns are consistent with.

    Links that a symmetry of the schedules maps to each other explain the same slowdowns, so all of them are named.
    """
    best, *others = suspects(observed)
    topology = observed[0][0].topology
    alike = {one.link for one in others if one.error <= best.error + _ALIKE} - {best.link}
    ends = [topology.nodes[end] for end in (topology.links[best.link].src, topology.links[best.link].dst)]
    switches = [node.name for node in ends if not node.stores]
    name = topology.link_name(best.link)
    rate = f"{8 * best.GBps:g} Gb/s" if best.GBps in _STANDARD_GBPS else format_GBps(best.GBps)
    words = f"consistent with {rate} on {name}"
    if alike:
        words += f", or on {listed(topology.link_name(link) for link in sorted(alike))}"
    return switches[0] if switches else name, words


def _error(rows: Sequence[tuple[float, float]]) -> float:
    return sqrt(sum(log(predicted / measured) ** 2 for predicted, measured in rows) / len(rows))


def _rough(schedule: Schedule, link: int, GBps: float) -> float:
    """The slowdown if all that the link carries delays the end."""
    timing = schedule.timing
    if "busy_ps" not in schedule.cache:
        busy = timing.hop_to_ps - timing.hop_from_ps
        schedule.cache["busy_ps"] = np.bincount(timing.hop_link, busy, len(schedule.topology.links))
    more = schedule.cache["busy_ps"][link] * (float(schedule.topology.link_GBps[link]) / GBps - 1)
    return 1.0 + float(more) / max(schedule.finish_ps, 1)


def _slowdown(schedule: Schedule, suspect: Suspect) -> float:
    """The slowdown of a schedule whose transfers keep their order."""
    fault = Fault(schedule.topology.link_name(suspect.link), (suspect.link,), suspect.GBps)
    late = in_order_of(replace(schedule, topology=apply_faults(schedule.topology, [fault])), schedule)
    return late.finish_ps / max(schedule.finish_ps, 1)
