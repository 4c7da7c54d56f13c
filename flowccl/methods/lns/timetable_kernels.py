"""A timetable of the links: bookings, and the search for free slots for a route."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I32, I64, Bool, compiled, inner, maker


class RouteNetwork(NamedTuple):
    """Routes between storing nodes, by start node; a chunk occupies all links of a route for the same time."""

    node_ptr: I64
    start: I32  # of each route: its first node
    end: I32
    GBps: F64
    latency_ps: I64  # latency of the whole route
    hop_ptr: I64
    hop_link: I32
    hop_offset_ps: I64
    into_ptr: I64  # routes by their end node
    into_route: I64
    distance_ps: F64  # least time between any two nodes on idle links
    usable: Bool  # of each route


class Timetable(NamedTuple):
    """When each link is busy, and with which chunk (-1: other data): a row per link, in order of time."""

    entries: I64  # number of entries of each link
    begin_ps: I64
    until_ps: I64
    chunk: I32


@compiled
def new_timetable(links: int, space: int) -> Timetable:
    """An empty timetable."""
    begin = np.zeros((links, space), dtype=np.int64)
    return Timetable(np.zeros(links, dtype=np.int64), begin, begin.copy(), np.zeros((links, space), dtype=np.int32))


@maker
def with_space(table: Timetable, more: int) -> Timetable:
    """The same table, with space for `more` entries on every link."""
    links, space = table.begin_ps.shape
    used = 0
    for link in range(links):
        used = max(used, table.entries[link])
    if used + more <= space:
        return table
    wide = new_timetable(links, 2 * (used + more))
    wide.entries[:] = table.entries
    wide.begin_ps[:, :space] = table.begin_ps
    wide.until_ps[:, :space] = table.until_ps
    wide.chunk[:, :space] = table.chunk
    return wide


@inner
def first_after(table: Timetable, link: int, time: int) -> int:
    """The first entry of a link that ends after a time."""
    low, high = 0, table.entries[link]
    while low < high:
        middle = (low + high) >> 1
        if table.until_ps[link, middle] > time:
            high = middle
        else:
            low = middle + 1
    return low


@inner
def earliest(net: RouteNetwork, table: Timetable, route: int, busy: int, time: int, limit: float) -> int:
    """The earliest start from `time` on at which all links of a route are free; the search stops at `limit`."""
    while True:
        free = True
        for h in range(net.hop_ptr[route], net.hop_ptr[route + 1]):
            link, begin = net.hop_link[h], time + net.hop_offset_ps[h]
            place = first_after(table, link, begin)
            while place < table.entries[link] and table.begin_ps[link, place] < begin + busy:
                if table.until_ps[link, place] > begin:
                    begin = table.until_ps[link, place]
                    free = False
                place += 1
            time = begin - net.hop_offset_ps[h]
        if free or time >= limit:
            return time


@inner
def book(net: RouteNetwork, table: Timetable, route: int, busy: int, time: int, chunk: int) -> None:
    """Book every link of a route for a chunk that starts at `time`; the links must be free."""
    for h in range(net.hop_ptr[route], net.hop_ptr[route + 1]):
        link, begin = net.hop_link[h], time + net.hop_offset_ps[h]
        place = first_after(table, link, begin)
        for k in range(table.entries[link], place, -1):
            table.begin_ps[link, k] = table.begin_ps[link, k - 1]
            table.until_ps[link, k] = table.until_ps[link, k - 1]
            table.chunk[link, k] = table.chunk[link, k - 1]
        table.begin_ps[link, place], table.until_ps[link, place] = begin, begin + busy
        table.chunk[link, place] = chunk
        table.entries[link] += 1


@inner
def release(net: RouteNetwork, table: Timetable, route: int, time: int) -> None:
    """Remove the booking of a route for a start at `time`."""
    for h in range(net.hop_ptr[route], net.hop_ptr[route + 1]):
        link = net.hop_link[h]
        for k in range(first_after(table, link, time + net.hop_offset_ps[h]), table.entries[link] - 1):
            table.begin_ps[link, k] = table.begin_ps[link, k + 1]
            table.until_ps[link, k] = table.until_ps[link, k + 1]
            table.chunk[link, k] = table.chunk[link, k + 1]
        table.entries[link] -= 1


@inner
def busy_ps(net: RouteNetwork, route: int, size_bytes: int) -> int:
    """How long a chunk of `size_bytes` occupies each link of a route."""
    return int(np.ceil(size_bytes * 1000.0 / net.GBps[route]))
