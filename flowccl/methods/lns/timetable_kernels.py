"""A timetable of the links: where there is room in it for a route, and what is booked."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I32, I64, Bool, compiled, inner, maker


class Net(NamedTuple):
    """Routes between storing nodes, by the node they start from; every route is crossed in one hold."""

    node_ptr: I64
    start: I32  # of each route: the node
    end: I32
    GBps: F64
    away_ps: I64  # latency of the whole route
    hop_ptr: I64
    hop_link: I32
    hop_offset_ps: I64
    into_ptr: I64  # routes by the node they end at
    into_route: I64
    ahead_ps: F64  # least time from any node to any, nothing in the way
    usable: Bool  # of each route


class Table(NamedTuple):
    """When each link is held, and for which chunk: a row per link, in order of time; -1 where it is not ours."""

    holds: I64  # how many
    begin_ps: I64
    until_ps: I64
    chunk: I32


@compiled
def new_table(links: int, space: int) -> Table:
    """No holds yet."""
    begin = np.zeros((links, space), dtype=np.int64)
    return Table(np.zeros(links, dtype=np.int64), begin, begin.copy(), np.zeros((links, space), dtype=np.int32))


@maker
def with_space(table: Table, more: int) -> Table:
    """The same table, wide enough for so many more holds on every link."""
    links, space = table.begin_ps.shape
    used = 0
    for link in range(links):
        used = max(used, table.holds[link])
    if used + more <= space:
        return table
    wide = new_table(links, 2 * (used + more))
    wide.holds[:] = table.holds
    wide.begin_ps[:, :space] = table.begin_ps
    wide.until_ps[:, :space] = table.until_ps
    wide.chunk[:, :space] = table.chunk
    return wide


@inner
def first_after(table: Table, link: int, time: int) -> int:
    """The first hold of a link that is not over by a time."""
    low, high = 0, table.holds[link]
    while low < high:
        middle = (low + high) >> 1
        if table.until_ps[link, middle] > time:
            high = middle
        else:
            low = middle + 1
    return low


@inner
def earliest(net: Net, table: Table, route: int, hold: int, time: int, limit: float) -> int:
    """The first start from `time` on with every link of a route free when its turn comes; any one from `limit` on."""
    while True:
        free = True
        for h in range(net.hop_ptr[route], net.hop_ptr[route + 1]):
            link, begin = net.hop_link[h], time + net.hop_offset_ps[h]
            place = first_after(table, link, begin)
            while place < table.holds[link] and table.begin_ps[link, place] < begin + hold:
                begin = table.until_ps[link, place]
                place += 1
                free = False
            time = begin - net.hop_offset_ps[h]
        if free or time >= limit:
            return time


@inner
def latest(net: Net, table: Table, route: int, hold: int, time: int) -> int:
    """The last start up to `time` with every link of a route free when its turn comes; it may lie before zero."""
    while True:
        free = True
        for h in range(net.hop_ptr[route], net.hop_ptr[route + 1]):
            link, begin = net.hop_link[h], time + net.hop_offset_ps[h]
            place = first_after(table, link, begin + hold - 1)  # the last that begins before its end, or the one behind
            if place == table.holds[link] or table.begin_ps[link, place] >= begin + hold:
                place -= 1
            while place >= 0 and table.until_ps[link, place] > begin:
                begin = table.begin_ps[link, place] - hold
                place -= 1
                free = False
            time = begin - net.hop_offset_ps[h]
        if free:
            return time


@inner
def book(net: Net, table: Table, route: int, hold: int, time: int, chunk: int) -> None:
    """Hold every link of a route for a chunk that starts then; it must be free."""
    for h in range(net.hop_ptr[route], net.hop_ptr[route + 1]):
        link, begin = net.hop_link[h], time + net.hop_offset_ps[h]
        place = first_after(table, link, begin)
        for k in range(table.holds[link], place, -1):
            table.begin_ps[link, k] = table.begin_ps[link, k - 1]
            table.until_ps[link, k] = table.until_ps[link, k - 1]
            table.chunk[link, k] = table.chunk[link, k - 1]
        table.begin_ps[link, place], table.until_ps[link, place] = begin, begin + hold
        table.chunk[link, place] = chunk
        table.holds[link] += 1


@inner
def release(net: Net, table: Table, route: int, time: int) -> None:
    """Take back what was booked for a start on a route."""
    for h in range(net.hop_ptr[route], net.hop_ptr[route + 1]):
        link = net.hop_link[h]
        for k in range(first_after(table, link, time + net.hop_offset_ps[h]), table.holds[link] - 1):
            table.begin_ps[link, k] = table.begin_ps[link, k + 1]
            table.until_ps[link, k] = table.until_ps[link, k + 1]
            table.chunk[link, k] = table.chunk[link, k + 1]
        table.holds[link] -= 1


@inner
def busy_ps(net: Net, route: int, size_bytes: int) -> int:
    """How long a chunk of so many bytes holds each link of a route."""
    return int(np.ceil(size_bytes * 1000.0 / net.GBps[route]))
