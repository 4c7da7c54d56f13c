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
from flowccl.profile.measurements import Floats, Measured, middle
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
    limits = [_as_wide_as_seen(limit, sets) for limit in limits]
    for probes in sets:
        most = max(one.probe.chunk_bytes for one in probes)
        if all(_is_unexplained(one, fits, limits, work) for one in probes if one.probe.chunk_bytes == most):
            limits.append(_as_wide_as_seen(_new_limit(probes, fits, work), sets))
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
    """What a set of links shares: the bandwidth that explains how long it takes, whatever the number of bytes.

    Relative errors of the times are as small as can be. Beside the bytes there is what fits best, between what links
    alone take and what all ranks at work do: a set of some links may be anywhere between.
    """
    probe = probes[0].probe
    took, load = _quickest(probes, probe.links)
    rows = np.column_stack((1 / took, load / took))
    (beside_s, _), *_ = np.linalg.lstsq(rows, np.ones(len(took)))
    least, most = sorted((AtWork().seconds(probe, fits), work.seconds(probe, fits)))
    beside_s = min(max(float(beside_s), least), most)
    per_byte = float(rows[:, 1] @ (1 - beside_s / took) / (rows[:, 1] @ rows[:, 1]))
    covered = tuple(link for link in probe.covers if link in fits)
    return Shared(probe.name, covered, 1e-9 / max(per_byte, 1e-15), len(probes))


def _as_wide_as_seen(limit: Shared, sets: list[list[Measured]]) -> Shared:
    """A limit that a larger set has clearly exceeded is at least what that set has carried over it.

    Two links may slow each other down by what their ranks do meanwhile, as where ranks wait for messages on cores that
    others need; then more links carry more.
    """
    most = 0.0
    for probes in sets:
        took, load = _quickest(probes, limit.links)
        most = max(most, float((load / took).max(initial=0.0)) / 1e9)
    return limit if most <= _CLEARLY * limit.bandwidth_GBps else replace(limit, bandwidth_GBps=most)


def _quickest(probes: list[Measured], links: Iterable[Ends]) -> tuple[Floats, Floats]:
    """Seconds and bytes over some links of a set, for each number of bytes in its quickest pass: disturbance slows."""
    quickest: dict[int, float] = {}
    for one in probes:
        carried = dict(zip(one.probe.links, one.probe.link_bytes, strict=True))
        times, load = middle(one), sum(carried.get(link, 0) for link in links)
        if times is not None and load:
            quickest[load] = min(float(times.max()), quickest.get(load, np.inf))
    return np.array(list(quickest.values())), np.array(list(quickest), dtype=np.float64)


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
