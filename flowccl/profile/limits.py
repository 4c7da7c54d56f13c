"""Limits: what pairs of links show, made right by what larger sets of links show.

What only many links together can fill shows in the larger sets: whatever the limits found so far do not explain becomes
one more.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from flowccl.profile.fit import LinkFit
from flowccl.profile.flows import flow_s
from flowccl.profile.groups import Shared, limits_of_pairs
from flowccl.profile.measurements import Measured, middle
from flowccl.profile.probes import BUSY, PAIR, Ends
from flowccl.profile.work import AtWork

_CLEARLY = 1.1  # so much longer than links and limits say, in all passes, is one limit more; so much more is carried
_IMPLIED = 0.9  # a limit is implied by a larger one of nearly its bandwidth


def find_limits(
    hosts: Sequence[str], measured: Iterable[Measured], fits: dict[Ends, LinkFit], work: AtWork
) -> list[Shared]:
    """All limits that the probes of several links show, the narrowest first."""
    together = [one for one in measured if not one.probe.alone and all(link in fits for link in one.probe.links)]
    limits = limits_of_pairs(hosts, [one for one in together if one.probe.name == PAIR], fits)
    sets = _by_links([one for one in together if one.probe.name not in (PAIR, BUSY)])
    limits = [_as_wide_as_seen(limit, sets, fits, work) for limit in limits]
    for probes in sets:
        most = max(one.probe.chunk_bytes for one in probes)
        if all(_is_unexplained(one, fits, limits, work) for one in probes if one.probe.chunk_bytes == most):
            limits.append(_as_wide_as_seen(_new_limit(probes, fits, work), sets, fits, work))
    return _needed(limits, fits)


def _by_links(measured: list[Measured]) -> list[list[Measured]]:
    """All probes of each set of links, the smallest sets first."""
    found: dict[tuple[Ends, ...], list[Measured]] = {}
    for one in measured:
        found.setdefault(one.probe.links, []).append(one)
    return [found[links] for links in sorted(found, key=lambda links: (len(links), links))]


def _is_unexplained(one: Measured, fits: dict[Ends, LinkFit], limits: list[Shared], work: AtWork) -> bool:
    """Whether a set of links takes longer than links and limits so far say."""
    times = middle(one)
    if times is None:
        return False
    links = one.probe.links
    uses = np.array([[at == link for at in links] + [link in limit.links for limit in limits] for link in links])
    GBps = [fits[link].bandwidth_GBps for link in links] + [limit.bandwidth_GBps for limit in limits]
    flown = flow_s(uses, np.array(GBps) * 1e9, np.array(one.probe.link_bytes, dtype=np.float64))
    return float(times.max()) > _CLEARLY * (work.seconds(one.probe, fits) + float(flown.max()))


def _new_limit(probes: list[Measured], fits: dict[Ends, LinkFit], work: AtWork) -> Shared:
    """What a set of links shares, by its probes with more and with fewer bytes."""
    probe = probes[0].probe
    covered = tuple(link for link in probe.covers if link in fits)
    return Shared(probe.name, covered, _carried_GBps(probes, fits, work, probe.links), len(probes))


def _carried_GBps(probes: list[Measured], fits: dict[Ends, LinkFit], work: AtWork, links: Iterable[Ends]) -> float:
    """The bandwidth of some of the links of a set that explains how long the set takes, whatever the number of bytes.

    Of each number of bytes the quickest pass counts, for what disturbs only slows; over all of them the relative errors
    of the times are as small as can be, so that bytes count less where latencies are most of the time.
    """
    quickest: dict[int, tuple[float, float]] = {}
    for one in probes:
        carried = dict(zip(one.probe.links, one.probe.link_bytes, strict=True))
        times, load = middle(one), sum(carried.get(link, 0) for link in links)
        if times is not None and load and (load not in quickest or float(times.max()) < quickest[load][0]):
            quickest[load] = float(times.max()), work.seconds(one.probe, fits)
    if not quickest:
        return 0.0
    took, wait = np.array(list(quickest.values())).T
    per_s = np.array(list(quickest)) / took
    return float(1e-9 / max((per_s * (1 - wait / took)).sum() / (per_s**2).sum(), 1e-15))


def _as_wide_as_seen(limit: Shared, sets: list[list[Measured]], fits: dict[Ends, LinkFit], work: AtWork) -> Shared:
    """A limit that a larger set has clearly exceeded is at least what that set has carried over it.

    Two links may slow each other down by what their ranks do meanwhile, as where ranks wait for messages on cores that
    others need; then more links carry more.
    """
    most = max((_carried_GBps(probes, fits, work, limit.links) for probes in sets), default=0.0)
    return limit if most <= _CLEARLY * limit.bandwidth_GBps else replace(limit, bandwidth_GBps=most)


def _needed(limits: list[Shared], fits: dict[Ends, LinkFit]) -> list[Shared]:
    """Limits that say something: not implied by a larger one, nor by the links; each with its own name."""
    kept: list[Shared] = []
    for limit in sorted(limits, key=lambda k: (-len(k.links), k.bandwidth_GBps, k.links)):
        links = set(limit.links)
        implied = any(links <= set(k.links) and limit.bandwidth_GBps >= _IMPLIED * k.bandwidth_GBps for k in kept)
        loose = sum(fits[link].bandwidth_GBps for link in links) <= limit.bandwidth_GBps
        if not implied and not loose:
            kept.append(limit)
    return _with_names(sorted(kept, key=lambda k: (k.bandwidth_GBps, k.links)))


def _with_names(limits: list[Shared]) -> list[Shared]:
    times: dict[str, int] = {}
    result = []
    for limit in limits:
        times[limit.name] = times.get(limit.name, 0) + 1
        number = f" ({times[limit.name]})" if times[limit.name] > 1 else ""
        result.append(Shared(limit.name + number, limit.links, limit.bandwidth_GBps, limit.probes))
    return result
