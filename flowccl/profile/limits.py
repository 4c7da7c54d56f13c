"""Find limits from pairs of links, and correct and extend them with larger sets of links.

A limit that only many links together can saturate shows up in the larger sets: a slowdown that the limits found so far
do not explain becomes a new limit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from flowccl.profile.fit import LinkFit
from flowccl.profile.flows import flow_s
from flowccl.profile.groups import SharedLimit, limits_of_pairs
from flowccl.profile.load_cost import LoadCost
from flowccl.profile.measurements import Floats, MeasuredProbe, median_times
from flowccl.profile.probes import BUSY, PAIR, Ends

_CLEARLY = 1.1  # a set slower than predicted by this factor in all passes is a new limit; also used to widen limits
_IMPLIED = 0.9  # a larger limit of nearly the same bandwidth implies a smaller one


def find_limits(
    hosts: Sequence[str], measured: Iterable[MeasuredProbe], fits: dict[Ends, LinkFit], load_cost: LoadCost
) -> list[SharedLimit]:
    """All limits found from probes of several links, narrowest first."""
    together = [one for one in measured if not one.probe.alone and all(link in fits for link in one.probe.links)]
    limits = limits_of_pairs(hosts, [one for one in together if one.probe.name == PAIR], fits)
    sets = _by_links([one for one in together if one.probe.name not in (PAIR, BUSY)])
    limits = [_as_wide_as_seen(limit, sets) for limit in limits]
    for probes in sets:
        most = max(one.probe.chunk_bytes for one in probes)
        if all(_is_unexplained(one, fits, limits, load_cost) for one in probes if one.probe.chunk_bytes == most):
            limits.append(_as_wide_as_seen(_new_limit(probes, fits, load_cost), sets))
    return _needed(limits, fits)


def _by_links(measured: list[MeasuredProbe]) -> list[list[MeasuredProbe]]:
    """Probes grouped by their set of links, smallest sets first."""
    found: dict[tuple[Ends, ...], list[MeasuredProbe]] = {}
    for one in measured:
        found.setdefault(one.probe.links, []).append(one)
    return [found[links] for links in sorted(found, key=lambda links: (len(links), links))]


def _is_unexplained(
    one: MeasuredProbe, fits: dict[Ends, LinkFit], limits: list[SharedLimit], load_cost: LoadCost
) -> bool:
    """Whether a set of links takes longer than the links and the limits found so far predict."""
    times = median_times(one)
    if times is None:
        return False
    links = one.probe.links
    uses = np.array([[at == link for at in links] + [link in limit.links for limit in limits] for link in links])
    GBps = [fits[link].bandwidth_GBps for link in links] + [limit.bandwidth_GBps for limit in limits]
    flown = flow_s(uses, np.array(GBps) * 1e9, np.array(one.probe.link_bytes, dtype=np.float64))
    return float(times.max()) > _CLEARLY * (load_cost.seconds(one.probe, fits) + float(flown.max()))


def _new_limit(probes: list[MeasuredProbe], fits: dict[Ends, LinkFit], load_cost: LoadCost) -> SharedLimit:
    """The limit of a set of links, with the bandwidth that best explains its times for all numbers of bytes.

    The fit minimizes relative errors. The time that does not depend on the bytes is fitted too, between the value of
    single links and the value of all ranks under load, since a set of some links may lie anywhere between them.
    """
    probe = probes[0].probe
    took, load = _quickest(probes, probe.links)
    rows = np.column_stack((1 / took, load / took))
    (beside_s, _), *_ = np.linalg.lstsq(rows, np.ones(len(took)))
    least, most = sorted((LoadCost().seconds(probe, fits), load_cost.seconds(probe, fits)))
    beside_s = min(max(float(beside_s), least), most)
    per_byte = float(rows[:, 1] @ (1 - beside_s / took) / (rows[:, 1] @ rows[:, 1]))
    covered = tuple(link for link in probe.covers if link in fits)
    return SharedLimit(probe.name, covered, 1e-9 / max(per_byte, 1e-15), len(probes))


def _as_wide_as_seen(limit: SharedLimit, sets: list[list[MeasuredProbe]]) -> SharedLimit:
    """Widen a limit that a larger set has clearly exceeded to the rate of that set.

    Two links may slow each other down for another reason, such as ranks that wait for messages on a shared core; more
    links then carry more.
    """
    most = 0.0
    for probes in sets:
        took, load = _quickest(probes, limit.links)
        most = max(most, float((load / took).max(initial=0.0)) / 1e9)
    return limit if most <= _CLEARLY * limit.bandwidth_GBps else replace(limit, bandwidth_GBps=most)


def _quickest(probes: list[MeasuredProbe], links: Iterable[Ends]) -> tuple[Floats, Floats]:
    """Seconds and bytes over some links of a set, from the fastest pass for each number of bytes."""
    quickest: dict[int, float] = {}
    for one in probes:
        carried = dict(zip(one.probe.links, one.probe.link_bytes, strict=True))
        times, load = median_times(one), sum(carried.get(link, 0) for link in links)
        if times is not None and load:
            quickest[load] = min(float(times.max()), quickest.get(load, np.inf))
    return np.array(list(quickest.values())), np.array(list(quickest), dtype=np.float64)


def _needed(limits: list[SharedLimit], fits: dict[Ends, LinkFit]) -> list[SharedLimit]:
    """Remove limits that a larger limit or the links themselves imply, and give each limit a unique name."""
    kept: list[SharedLimit] = []
    for limit in sorted(limits, key=lambda k: (-len(k.links), k.bandwidth_GBps, k.links)):
        links = set(limit.links)
        implied = any(links <= set(k.links) and limit.bandwidth_GBps >= _IMPLIED * k.bandwidth_GBps for k in kept)
        loose = sum(fits[link].bandwidth_GBps for link in links) <= limit.bandwidth_GBps
        if not implied and not loose:
            kept.append(limit)
    return _with_names(sorted(kept, key=lambda k: (k.bandwidth_GBps, k.links)))


def _with_names(limits: list[SharedLimit]) -> list[SharedLimit]:
    times: dict[str, int] = {}
    result = []
    for limit in limits:
        times[limit.name] = times.get(limit.name, 0) + 1
        number = f" ({times[limit.name]})" if times[limit.name] > 1 else ""
        result.append(SharedLimit(limit.name + number, limit.links, limit.bandwidth_GBps, limit.probes))
    return result
