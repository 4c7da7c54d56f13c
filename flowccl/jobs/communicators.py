"""Communicators of logs that name them by an address or a hash: which ranks of the job they have.

A line says that a process is rank r of n in a communicator. The largest communicator is that of the whole job, so a
process has the rank of the job that it has there; a smaller communicator has the ranks of its processes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flowccl.jobs.calls import UNKNOWN, Calls, Group


@dataclass(frozen=True, slots=True)
class Seat:
    """A process is rank `place` of `size` in a communicator; all names are those of the log."""

    communicator: str
    process: str
    place: int
    size: int


def seats_of(name: str) -> Seat | None:
    """Return the seat in the name of a group, as `seat_name` writes it."""
    parts = name.split("\x1f")
    if len(parts) != 4:
        return None
    return Seat(parts[0], parts[1], int(parts[2]), int(parts[3]))


def seat_name(communicator: str, process: str, place: int, size: int) -> str:
    """Return the name of a group of which one rank is known; `resolved` finds the others in other files."""
    clean = [text.replace("\x1f", "") for text in (communicator, process)]
    return "\x1f".join((*clean, str(place), str(size)))


def resolved(calls: Calls) -> tuple[Calls, list[str]]:
    """Return the table with the ranks of all groups, and sentences on groups whose ranks are assumed."""
    seats = {at: seat for at, group in enumerate(calls.groups) if (seat := seats_of(group.name)) is not None}
    job_rank = _job_ranks(seats.values())
    members: dict[str, dict[int, int]] = {}
    for seat in seats.values():
        if (seat.process in job_rank) and 0 <= seat.place < seat.size:
            members.setdefault(seat.communicator, {})[seat.place] = job_rank[seat.process]
    notes: dict[str, None] = {}
    groups, ranks_of_seat = [], np.full(len(calls.groups) + 1, UNKNOWN, dtype=np.int64)
    by_name = {group.name: group for group in calls.groups if group.ranks is not None and group.name}
    for at, group in enumerate(calls.groups):
        found = group
        if at in seats:
            seat = seats[at]
            found = _of_seat(seat, members.get(seat.communicator, {}), notes)
            ranks_of_seat[at] = job_rank.get(seat.process, seat.place)
        elif group.ranks is None:
            found = by_name.get(group.name) or _assumed(group, calls.rank[calls.group == at], notes)
        groups.append(found)
    distinct = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    place = np.array([distinct[group] for group in groups], dtype=np.int32)
    rank = np.where(calls.rank < 0, ranks_of_seat[calls.group], calls.rank).astype(np.int32)
    return replace(calls, group=place[calls.group], rank=rank, groups=tuple(distinct)), list(notes)


def _job_ranks(seats: Iterable[Seat]) -> dict[str, int]:
    """The rank of each process in the largest communicator that it is in, if that is the largest of all."""
    rows = sorted(seats, key=lambda seat: (-seat.size, seat.communicator, seat.place))
    largest = rows[0].size if rows else 0
    found: dict[str, int] = {}
    for seat in rows:
        if seat.size == largest:
            found.setdefault(seat.process, seat.place)
    return found


def _of_seat(seat: Seat, members: dict[int, int], notes: dict[str, None]) -> Group:
    ranks = tuple(members.get(place, UNKNOWN) for place in range(seat.size))
    if seat.size and UNKNOWN not in ranks and len(set(ranks)) == seat.size:
        return Group(seat.size, ranks)
    if seat.size and not any(members):
        notes[_words(seat.size)] = None
        return Group(seat.size, tuple(range(seat.size)))
    return _from_some(seat, members, notes)


def _from_some(seat: Seat, members: dict[int, int], notes: dict[str, None]) -> Group:
    """A communicator of which some members are known: an even stride is continued, else the first ranks are taken."""
    known = sorted(members.items())
    strides = {(b - a) // (j - i) for (i, a), (j, b) in pairwise(known) if (b - a) % (j - i) == 0}
    notes[_words(seat.size)] = None
    if len(known) > 1 and len(strides) == 1 and (stride := strides.pop()) > 0:
        first = known[0][1] - known[0][0] * stride
        if first >= 0:
            return Group(seat.size, tuple(range(first, first + seat.size * stride, stride)))
    return Group(seat.size, tuple(range(seat.size)))


def _assumed(group: Group, callers: NDArray[np.int32], notes: dict[str, None]) -> Group:
    """A group of which only the size is known: the first ranks; of an unknown size, the ranks that call it."""
    if group.size > 1:
        if group.name:
            notes[_words(group.size)] = None
        return Group(group.size, tuple(range(group.size)))
    ranks = np.unique(callers[callers >= 0]).tolist()
    if len(ranks) < 2:
        notes["the logs do not say which ranks a group has: give the logs of all ranks"] = None
        return group
    notes["the logs do not say which ranks a group has: those that make calls in it are taken"] = None
    return Group(len(ranks), tuple(ranks))


def _words(size: int) -> str:
    return f"the logs do not say which ranks a group of {size} has: the first ones are assumed, or those in between"
