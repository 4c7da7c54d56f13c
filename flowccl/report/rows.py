"""Why links are idle."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.explain import binding_constraints
from flowccl.schedule.schedule import Schedule

I64 = NDArray[np.int64]
_DATA = 1  # the index of "data" in explain.KINDS


@dataclass(frozen=True, eq=False)
class LinkTimes:
    """For each link, its time in ps: busy, idle and why.

    `waits_data` is idle time before a transfer that waits for its data, `waits_other` before one that waits for another
    link, a limit or anything else; `not_needed` is the time after the last transfer. They add up to the completion
    time.
    """

    busy: I64
    waits_data: I64
    waits_other: I64
    not_needed: I64
    transfers: I64
    bytes: I64


def link_times(schedule: Schedule) -> LinkTimes:
    """Return the busy and idle times of every link. Transfers side by side on a link count once."""
    timing, binding, count = schedule.timing, binding_constraints(schedule), len(schedule.topology.links)
    order = np.lexsort((timing.hop_from_ps, timing.hop_link))
    link, begin = timing.hop_link[order].astype(np.int64), timing.hop_from_ps[order]
    span = schedule.finish_ps + 1
    free = np.maximum.accumulate(timing.hop_to_ps[order] + link * span) - link * span  # since when, up to this hop
    first = np.append(True, link[1:] != link[:-1])[: len(link)]
    before = np.where(first, 0, np.concatenate(([0], free[:-1]))[: len(link)])
    gap = np.maximum(begin - before, 0)
    data = binding.kind[timing.hop_transfer[order]] == _DATA
    waits = [np.bincount(link[which], gap[which], count).astype(np.int64) for which in (data, ~data)]
    last = np.zeros(count, dtype=np.int64)
    np.maximum.at(last, link, timing.hop_to_ps[order])
    rest = schedule.finish_ps - last
    return LinkTimes(
        schedule.finish_ps - waits[0] - waits[1] - rest,
        waits[0],
        waits[1],
        rest,
        np.bincount(link, minlength=count),
        np.bincount(link, schedule.sent_bytes[timing.hop_transfer[order]], count).astype(np.int64),
    )
