"""The same transfers in another order on the links: who has the longest way to go goes first.

For schedules put together from parts (two halves of an allreduce, late data), whose links would otherwise keep the
order of the parts. What a node has got before it sends something stays the same.
"""

from dataclasses import replace

import numpy as np

from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import data_order, soonest_starts

_MOST = 30_000  # transfers


def relist(schedule: Schedule) -> Schedule | None:
    """The schedule in the order of the longest ways to go, or None where that is not possible.

    Not for machines with limits, buffer limits or changing links, for large schedules, messages, and sums that wait
    for each other.
    """
    from flowccl.schedule.kernels import in_order_of, longest_ways

    topology, timing = schedule.topology, schedule.timing
    plain = not (topology.limits or topology.changes or any(n.buffer_bytes is not None for n in topology.nodes))
    if not plain or schedule.has_messages or not 0 < len(schedule) <= _MOST:
        return None
    before, after, lag = data_order(schedule)
    by_before = np.argsort(before, kind="stable")
    ptr = np.searchsorted(before[by_before], np.arange(len(schedule) + 1)).astype(np.int64)
    after, lag = after[by_before], lag[by_before]
    takes = np.zeros(len(schedule), dtype=np.int64)
    np.maximum.at(takes, timing.end_transfer, timing.end_arrival_ps - schedule.start_ps[timing.end_transfer])
    last_first = np.argsort(schedule.start_ps, kind="stable")[::-1].copy()
    tail = longest_ways(last_first, ptr, after, lag, takes)
    rank = np.empty(len(schedule), dtype=np.int64)
    rank[np.lexsort((schedule.start_ps, -tail))] = np.arange(len(schedule))
    hop_ptr = np.searchsorted(timing.hop_transfer, np.arange(len(schedule) + 1)).astype(np.int64)
    begin = schedule.start_ps[timing.hop_transfer]
    done, start = in_order_of(
        rank,
        ptr,
        after,
        lag,
        soonest_starts(schedule),
        hop_ptr,
        timing.hop_link,
        timing.hop_from_ps - begin,
        timing.hop_to_ps - begin,
        len(topology.links),
    )
    return replace(schedule, start_ps=start) if done else None
