"""What messages of the engine reserve on links and limits, which several share by rate, compiled."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I64, grown, inner, maker


class Reservations(NamedTuple):
    """Rates that are reserved on resources for a time, as a list for each resource."""

    head: I64  # of each resource; -1: none
    since: I64
    until: I64
    rate: F64
    following: I64
    used: I64  # one number
    free: I64  # one number


@maker
def nothing_reserved(resources: int, space: int) -> Reservations:
    """No reservations, and space for a number of them."""
    return Reservations(
        np.full(resources, -1, dtype=np.int64),
        np.empty(space, dtype=np.int64),
        np.empty(space, dtype=np.int64),
        np.empty(space, dtype=np.float64),
        np.empty(space, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
        np.full(1, -1, dtype=np.int64),
    )


@maker
def with_space(table: Reservations, more: int) -> Reservations:
    """Return the same reservations with space for more of them."""
    since, until, rate, following = table.since, table.until, table.rate, table.following
    while table.used[0] + more > len(since):
        since, until, rate, following = grown(since), grown(until), grown(rate), grown(following)
    return Reservations(table.head, since, until, rate, following, table.used, table.free)


@inner
def purge(table: Reservations, resource: int, now: int) -> None:
    """Drop the reservations of a resource that are over."""
    before, cell = -1, table.head[resource]
    while cell >= 0:
        after = table.following[cell]
        if table.until[cell] <= now:
            if before < 0:
                table.head[resource] = after
            else:
                table.following[before] = after
            table.following[cell] = table.free[0]
            table.free[0] = cell
        else:
            before = cell
        cell = after


@inner
def most_used(table: Reservations, resource: int, begin: int, end: int) -> float:
    """The largest sum of rates on a resource between two times."""
    most = 0.0
    at = begin
    cell = table.head[resource]
    while True:
        total = 0.0
        other = table.head[resource]
        while other >= 0:
            if table.since[other] <= at < table.until[other]:
                total += table.rate[other]
            other = table.following[other]
        most = max(most, total)
        while cell >= 0 and not begin < table.since[cell] < end:
            cell = table.following[cell]
        if cell < 0:
            return most
        at = table.since[cell]
        cell = table.following[cell]


@inner
def next_end(table: Reservations, resource: int, begin: int, end: int) -> int:
    """The first time at which a reservation that overlaps an interval ends."""
    first = -1
    cell = table.head[resource]
    while cell >= 0:
        if table.since[cell] < end and table.until[cell] > begin and (first < 0 or table.until[cell] < first):
            first = table.until[cell]
        cell = table.following[cell]
    return first


@inner
def reserve(table: Reservations, resource: int, since: int, until: int, rate: float) -> None:
    """Reserve a rate on a resource between two times."""
    cell = table.free[0]
    if cell >= 0:
        table.free[0] = table.following[cell]
    else:
        cell = table.used[0]
        table.used[0] += 1
    table.since[cell], table.until[cell], table.rate[cell] = since, until, rate
    table.following[cell] = table.head[resource]
    table.head[resource] = cell
