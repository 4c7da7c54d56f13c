"""What sends of a simulation use of links and limits, and when, compiled."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I64, grown, inner, maker


class ResourceUses(NamedTuple):
    """ResourceUses of links and limits, from `head[resource]` on, in the order in which they began."""

    head: I64
    tail: I64
    after: I64
    begin: I64
    end: I64
    rate: F64
    free: I64  # the first entry that is not used
    entries: I64  # one number: how many are used


@maker
def no_uses(resources: int, space: int) -> ResourceUses:
    """No uses, and space for a number of them."""
    after = np.arange(1, space + 1)
    after[space - 1] = -1
    return ResourceUses(
        np.full(resources, -1, dtype=np.int64),
        np.full(resources, -1, dtype=np.int64),
        after,
        np.zeros(space, dtype=np.int64),
        np.zeros(space, dtype=np.int64),
        np.zeros(space),
        np.zeros(1, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
    )


@maker
def more_uses(uses: ResourceUses) -> ResourceUses:
    """Return the same uses with twice the space."""
    space = len(uses.begin)
    after = grown(uses.after)
    for i in range(space, 2 * space):
        after[i] = i + 1
    after[2 * space - 1] = uses.free[0]
    uses.free[0] = space
    begin, end, rate = grown(uses.begin), grown(uses.end), grown(uses.rate)
    return ResourceUses(uses.head, uses.tail, after, begin, end, rate, uses.free, uses.entries)


@inner
def add_use(uses: ResourceUses, resource: int, begin: int, end: int, rate: float) -> None:
    """Add a use of a resource between two times; there must be space for it."""
    entry = uses.free[0]
    uses.free[0] = uses.after[entry]
    uses.entries[0] += 1
    uses.begin[entry], uses.end[entry], uses.rate[entry], uses.after[entry] = begin, end, rate, -1
    if uses.head[resource] < 0:
        uses.head[resource] = entry
    else:
        uses.after[uses.tail[resource]] = entry
    uses.tail[resource] = entry


@inner
def remove_past(uses: ResourceUses, resource: int, now: int) -> None:
    """Remove the uses of a resource that are over."""
    entry, previous = uses.head[resource], -1
    while entry >= 0:
        following = uses.after[entry]
        if uses.end[entry] <= now:
            if previous < 0:
                uses.head[resource] = following
            else:
                uses.after[previous] = following
            if uses.tail[resource] == entry:
                uses.tail[resource] = previous
            uses.after[entry], uses.free[0] = uses.free[0], entry
            uses.entries[0] -= 1
        else:
            previous = entry
        entry = following


@inner
def _sum_at(uses: ResourceUses, resource: int, at: int, begin: int, end: int) -> float:
    """Return the rates at a time of those uses that are between two times."""
    total = 0.0
    entry = uses.head[resource]
    while entry >= 0:
        is_between = uses.begin[entry] < end and uses.end[entry] > begin
        if is_between and uses.begin[entry] <= at and at < uses.end[entry]:
            total += uses.rate[entry]
        entry = uses.after[entry]
    return total


@inner
def left_between(uses: ResourceUses, resource: int, most: float, begin: int, end: int) -> float:
    """Return the bandwidth that is left of a resource between two times."""
    total, count = 0.0, 0
    entry = uses.head[resource]
    while entry >= 0:
        if uses.begin[entry] < end and uses.end[entry] > begin:
            total += uses.rate[entry]
            count += 1
        entry = uses.after[entry]
    if count > 1 and total > most / 2:
        total = _sum_at(uses, resource, begin, begin, end)
        entry = uses.head[resource]
        while entry >= 0:
            if begin < uses.begin[entry] < end and uses.end[entry] > begin:
                total = max(total, _sum_at(uses, resource, uses.begin[entry], begin, end))
            entry = uses.after[entry]
    return most - total


@inner
def next_end_between(uses: ResourceUses, resource: int, begin: int, end: int) -> int:
    """Return when the first of the uses between two times is over."""
    found, some = end, False
    entry = uses.head[resource]
    while entry >= 0:
        if uses.begin[entry] < end and uses.end[entry] > begin and (not some or uses.end[entry] < found):
            found, some = uses.end[entry], True
        entry = uses.after[entry]
    return found
