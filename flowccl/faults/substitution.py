"""Substitution: chunks that a fault affects take the paths of chunks with the same sources and destinations.

All chunks of an allreduce are interchangeable: what went over a lost rail is spread over the others.
"""

import numpy as np
from numpy.typing import NDArray

from flowccl.faults.repair import FaultyMachine, scheduled
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.timing import spread


def substituted(machine: FaultyMachine, together: bool = False) -> Schedule | None:
    """Return the schedule with other paths for all affected chunks; None where chunks have no unaffected equals.

    Each of them takes the paths on which the busiest link then has the least load. Chunks that share messages with
    each other take paths `together`, or each its own, without messages. The result must be verified.
    """
    schedule = machine.schedule
    hit = np.zeros(len(schedule.demand), dtype=np.bool_)
    hit[schedule.chunk[machine.affected]] = True
    group = _groups(schedule)
    hit = np.isin(group, group[hit])
    carrier = _carriers(schedule, group if together else np.arange(len(hit)), hit)
    if carrier is None:
        return None
    by_chunk = np.argsort(schedule.chunk, kind="stable")
    first = np.searchsorted(schedule.chunk[by_chunk], np.arange(len(hit) + 1))
    new_message = int(schedule.message.max(initial=-1)) + 1
    rows = []
    for chunk, like in enumerate(carrier.tolist()):
        moved = new_message * (1 + int(group[chunk])) if together else -1
        for i in by_chunk[first[like] : first[like + 1]].tolist():
            row = machine.row(i)
            message = moved + row.message if together and row.message >= 0 else -1
            rows.append(row._replace(chunk=chunk, message=message) if hit[chunk] else row)
    return scheduled(machine, rows)


def _carriers(schedule: Schedule, unit: NDArray[np.int64], hit: NDArray[np.bool_]) -> NDArray[np.int64] | None:
    """The chunk whose paths each chunk takes; chunks of a unit take those of one other unit, in order."""
    members = {number: np.flatnonzero(unit == number) for number in np.unique(unit).tolist()}
    chunk_kinds, chunk_loads = _kinds(schedule), _loads(schedule)
    kinds = {number: tuple(chunk_kinds[chunks].tolist()) for number, chunks in members.items()}
    healthy = [number for number, chunks in members.items() if not hit[chunks[0]]]
    own = np.array([chunk_loads[members[number]].sum(axis=0) for number in healthy])
    load, used = own.sum(axis=0), np.zeros(len(healthy), dtype=np.int64)
    carrier = np.arange(len(unit))
    for number in sorted(members.keys() - set(healthy)):
        like = np.array([n for n, other in enumerate(healthy) if kinds[other] == kinds[number]], dtype=np.int64)
        if not len(like):
            return None
        then = np.where(own[like] > 0, load + own[like], 0.0)
        best = int(like[np.lexsort((like, used[like], then.sum(axis=1), then.max(axis=1)))[0]])
        carrier[members[number]], load = members[healthy[best]], load + own[best]
        used[best] += 1
    return carrier


def _groups(schedule: Schedule) -> NDArray[np.int64]:
    """A number for each chunk, the same for chunks that share messages, directly or through others."""
    group = np.arange(len(schedule.demand), dtype=np.int64)
    one, other = schedule.chunk, schedule.chunk[schedule.leader]
    while True:
        least = group.copy()
        np.minimum.at(least, one, group[other])
        np.minimum.at(least, other, group[one])
        if np.array_equal(least, group):
            return group
        group = least


def _loads(schedule: Schedule) -> NDArray[np.float64]:
    """The time that each chunk occupies each link; chunks of a message share its time by their bytes."""
    timing, links = schedule.timing, len(schedule.topology.links)
    by_leader = np.argsort(schedule.leader, kind="stable")
    first = np.searchsorted(schedule.leader[by_leader], np.arange(len(schedule) + 1))
    hop, member = spread(first, timing.hop_transfer.astype(np.int32))
    transfer = by_leader[member]
    share = schedule.demand.chunk_bytes[schedule.chunk[transfer]] / schedule.sent_bytes[transfer]
    place = schedule.chunk[transfer].astype(np.int64) * links + timing.hop_link[hop]
    busy = np.bincount(place, share * (timing.hop_to_ps - timing.hop_from_ps)[hop], len(schedule.demand) * links)
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
