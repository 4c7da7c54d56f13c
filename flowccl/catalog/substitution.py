"""Substitution: a chunk that a fault affects takes the paths of a chunk with the same sources and destinations.

All chunks of an allreduce are interchangeable: what went over a lost rail is spread over the others.
"""

import numpy as np
from numpy.typing import NDArray

from flowccl.catalog.repair import FaultyMachine
from flowccl.catalog.tree_repair import scheduled
from flowccl.schedule.schedule import Schedule


def substituted(machine: FaultyMachine) -> Schedule | None:
    """Return the schedule with other paths for all affected chunks; None where a chunk has no unaffected equal.

    Each of them takes the paths on which the busiest link then has the least load. The result must be verified.
    """
    schedule, count = machine.schedule, len(machine.schedule.demand)
    if schedule.has_messages:
        return None
    hit = np.zeros(count, dtype=np.bool_)
    hit[schedule.chunk[machine.affected]] = True
    own = _loads(schedule)
    load = own[~hit].sum(axis=0)
    kinds = _kinds(schedule)
    used = np.zeros(count, dtype=np.int64)
    carrier = np.arange(count)
    for chunk in np.flatnonzero(hit).tolist():
        like = np.flatnonzero(~hit & (kinds == kinds[chunk]))
        if not len(like):
            return None
        then = np.where(own[like] > 0, load + own[like], 0.0)
        best = int(like[np.lexsort((like, used[like], then.sum(axis=1), then.max(axis=1)))[0]])
        carrier[chunk], load = best, load + own[best]
        used[best] += 1
    by_chunk = np.argsort(schedule.chunk, kind="stable")
    first = np.searchsorted(schedule.chunk[by_chunk], np.arange(count + 1))
    rows = [
        (int(schedule.start_ps[i]), chunk, machine.new_links(i), bool(schedule.reduce[i]))
        for chunk in range(count)
        for i in by_chunk[first[carrier[chunk]] : first[carrier[chunk] + 1]].tolist()
    ]
    return scheduled(machine, rows)


def _loads(schedule: Schedule) -> NDArray[np.float64]:
    """The time that each chunk occupies each link."""
    timing, links = schedule.timing, len(schedule.topology.links)
    place = schedule.chunk[timing.hop_transfer].astype(np.int64) * links + timing.hop_link
    busy = np.bincount(place, timing.hop_to_ps - timing.hop_from_ps, len(schedule.demand) * links)
    return busy.reshape(-1, links).astype(np.float64)


def _kinds(schedule: Schedule) -> NDArray[np.int64]:
    """A number for each chunk, the same for chunks of one size with the same sources and destinations."""
    demand = schedule.demand
    numbers: dict[tuple[bytes, bytes, int], int] = {}
    return np.array(
        [
            numbers.setdefault(
                (demand.sources(n).tobytes(), demand.destinations(n).tobytes(), int(demand.chunk_bytes[n])),
                len(numbers),
            )
            for n in range(len(demand))
        ],
        dtype=np.int64,
    )
