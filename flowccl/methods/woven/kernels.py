"""Compiled loops of the woven method: a timetable of the links, and chunks that are woven into it one by one."""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]


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


class Work(NamedTuple):
    """What must move."""

    size_bytes: I64
    source: I32
    ready_ps: I64
    wanted_ptr: I64
    wanted: I32


class Table(NamedTuple):
    """When each link is held, and for which chunk: a row per link, in order of time; -1 where it is not ours."""

    holds: I64  # how many
    begin_ps: I64
    until_ps: I64
    chunk: I32


class Ways(NamedTuple):
    """The tree of each chunk (row): for each node the route that brings it there (-1: none), its start, the arrival."""

    route: I32
    start_ps: I64
    at_ps: I64


class Desk(NamedTuple):
    """Work space for one chunk."""

    cost: F64  # of each node: what the way there from the tree holds of the links, weighed
    member: Bool  # in the tree
    wanted: Bool
    key: F64  # the queue: when and at what cost the chunk can be there, and where
    node: I64
    path: I64


class One(NamedTuple):
    """The chunk that is woven in now."""

    chunk: int
    size_bytes: int
    weight: float
    salt: int  # of the noise in the weight, which lets another of equal ways be the best
    goal: int  # the only node that wants it, or -1


@njit(cache=True, nogil=True)
def new_desk(nodes: int, routes: int) -> Desk:
    """Fresh work space."""
    size = 4 * routes + 4 * nodes + 16
    flags = np.zeros(nodes, dtype=np.bool_)
    return Desk(
        np.zeros(nodes),
        flags,
        flags.copy(),
        np.empty(size),
        np.empty(size, dtype=np.int64),
        np.empty(nodes, dtype=np.int64),
    )


@njit(cache=True, nogil=True)
def new_table(links: int, space: int) -> Table:
    """No holds yet."""
    begin = np.zeros((links, space), dtype=np.int64)
    return Table(np.zeros(links, dtype=np.int64), begin, begin.copy(), np.zeros((links, space), dtype=np.int32))


@njit(cache=True, nogil=True)
def _with_space(table: Table, more: int) -> Table:
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


@njit(cache=True, nogil=True)
def _place(table: Table, link: int, time: int) -> int:
    """The first hold of a link that is not over by a time."""
    low, high = 0, table.holds[link]
    while low < high:
        middle = (low + high) >> 1
        if table.until_ps[link, middle] > time:
            high = middle
        else:
            low = middle + 1
    return low


@njit(cache=True, nogil=True)
def _earliest(net: Net, table: Table, route: int, hold: int, time: int, limit: float) -> int:
    """The first start from `time` on with every link of a route free when its turn comes; any one from `limit` on."""
    while True:
        free = True
        for h in range(net.hop_ptr[route], net.hop_ptr[route + 1]):
            link, begin = net.hop_link[h], time + net.hop_offset_ps[h]
            place = _place(table, link, begin)
            while place < table.holds[link] and table.begin_ps[link, place] < begin + hold:
                begin = table.until_ps[link, place]
                place += 1
                free = False
            time = begin - net.hop_offset_ps[h]
        if free or time >= limit:
            return time


@njit(cache=True, nogil=True)
def _latest(net: Net, table: Table, route: int, hold: int, time: int) -> int:
    """The last start up to `time` with every link of a route free when its turn comes; it may lie before zero."""
    while True:
        free = True
        for h in range(net.hop_ptr[route], net.hop_ptr[route + 1]):
            link, begin = net.hop_link[h], time + net.hop_offset_ps[h]
            place = _place(table, link, begin)
            while place < table.holds[link] and table.begin_ps[link, place] < begin + hold:
                begin = table.begin_ps[link, place] - hold
                place = _place(table, link, begin)
                free = False
            time = begin - net.hop_offset_ps[h]
        if free:
            return time


@njit(cache=True, nogil=True)
def _book(net: Net, table: Table, route: int, hold: int, time: int, chunk: int) -> None:
    for h in range(net.hop_ptr[route], net.hop_ptr[route + 1]):
        link, begin = net.hop_link[h], time + net.hop_offset_ps[h]
        place = _place(table, link, begin)
        for k in range(table.holds[link], place, -1):
            table.begin_ps[link, k] = table.begin_ps[link, k - 1]
            table.until_ps[link, k] = table.until_ps[link, k - 1]
            table.chunk[link, k] = table.chunk[link, k - 1]
        table.begin_ps[link, place], table.until_ps[link, place] = begin, begin + hold
        table.chunk[link, place] = chunk
        table.holds[link] += 1


@njit(cache=True, nogil=True)
def _release(net: Net, table: Table, route: int, time: int) -> None:
    for h in range(net.hop_ptr[route], net.hop_ptr[route + 1]):
        link = net.hop_link[h]
        for k in range(_place(table, link, time + net.hop_offset_ps[h]), table.holds[link] - 1):
            table.begin_ps[link, k] = table.begin_ps[link, k + 1]
            table.until_ps[link, k] = table.until_ps[link, k + 1]
            table.chunk[link, k] = table.chunk[link, k + 1]
        table.holds[link] -= 1


@njit(cache=True, nogil=True)
def _push(desk: Desk, size: int, value: float, node: int) -> int:
    i = size
    while i > 0 and desk.key[(i - 1) >> 1] > value:
        desk.key[i], desk.node[i] = desk.key[(i - 1) >> 1], desk.node[(i - 1) >> 1]
        i = (i - 1) >> 1
    desk.key[i], desk.node[i] = value, node
    return size + 1


@njit(cache=True, nogil=True)
def _drop_first(desk: Desk, size: int) -> int:
    size -= 1
    value, node = desk.key[size], desk.node[size]
    i = 0
    while True:
        j = 2 * i + 1
        if j >= size:
            break
        if j + 1 < size and desk.key[j + 1] < desk.key[j]:
            j += 1
        if desk.key[j] >= value:
            break
        desk.key[i], desk.node[i] = desk.key[j], desk.node[j]
        i = j
    desk.key[i], desk.node[i] = value, node
    return size


@njit(cache=True, nogil=True)
def _hold_ps(net: Net, route: int, size_bytes: int) -> int:
    return int(np.ceil(size_bytes * 1000.0 / net.GBps[route]))


@njit(cache=True, nogil=True)
def _ahead(net: Net, one: One, node: int) -> float:
    """How far the goal still is at least, so that the search goes towards it; 0 where there are several."""
    return net.ahead_ps[node, one.goal] if one.goal >= 0 else 0.0


@njit(cache=True, nogil=True)
def _try(net: Net, table: Table, ways: Ways, desk: Desk, size: int, one: One, route: int) -> int:
    """Offer a route to the node at its end, if that is better there; returns the size of the queue."""
    start, end = net.start[route], net.end[route]
    hold = _hold_ps(net, route, one.size_bytes)
    noise = ((route * 40503 + one.salt) * 2654435761 >> 8 & 0xFFFF) / 65536.0
    hops = net.hop_ptr[route + 1] - net.hop_ptr[route]
    cost = desk.cost[start] + one.weight * hold * hops * (0.75 + 0.5 * noise)
    had = np.inf if ways.route[one.chunk, end] < 0 else ways.at_ps[one.chunk, end] + desk.cost[end]
    ready = ways.at_ps[one.chunk, start]
    if not net.usable[route] or ready + hold + net.away_ps[route] + cost >= had or size >= len(desk.key):
        return size
    begin = _earliest(net, table, route, hold, ready, had - cost - hold - net.away_ps[route])
    at = begin + hold + net.away_ps[route]
    if at + cost >= had:
        return size
    ways.route[one.chunk, end], ways.start_ps[one.chunk, end], ways.at_ps[one.chunk, end] = route, begin, at
    desk.cost[end] = cost
    return _push(desk, size, at + cost + _ahead(net, one, end), end)


@njit(cache=True, nogil=True)
def _offer(net: Net, table: Table, ways: Ways, desk: Desk, size: int, one: One, node: int) -> int:
    """Offer all that a node can reach next."""
    for route in range(net.node_ptr[node], net.node_ptr[node + 1]):
        if not desk.member[net.end[route]]:
            size = _try(net, table, ways, desk, size, one, route)
    return size


@njit(cache=True, nogil=True)
def _look_again(net: Net, table: Table, ways: Ways, desk: Desk, size: int, one: One, node: int) -> int:
    """Offer anew all ways to a node whose best one was taken meanwhile by another branch of the tree."""
    before = net.start[ways.route[one.chunk, node]]
    ways.route[one.chunk, node] = -1
    for k in range(net.into_ptr[node], net.into_ptr[node + 1]):
        route = net.into_route[k]
        if desk.member[net.start[route]] or net.start[route] == before:
            size = _try(net, table, ways, desk, size, one, route)
    return size


@njit(cache=True, nogil=True)
def _graft(net: Net, table: Table, ways: Ways, desk: Desk, one: One, node: int) -> int:
    """Book the way from the tree to a node; returns how many nodes have joined, the farthest last in `desk.path`."""
    steps, at = 0, node
    while not desk.member[at]:
        steps += 1
        at = net.start[ways.route[one.chunk, at]]
    at = node
    for k in range(steps - 1, -1, -1):
        desk.path[k] = at
        at = net.start[ways.route[one.chunk, at]]
    for k in range(steps):
        at = desk.path[k]
        route = ways.route[one.chunk, at]
        hold = _hold_ps(net, route, one.size_bytes)
        begin = _earliest(net, table, route, hold, ways.at_ps[one.chunk, net.start[route]], np.inf)
        _book(net, table, route, hold, begin, one.chunk)
        ways.start_ps[one.chunk, at], ways.at_ps[one.chunk, at] = begin, begin + hold + net.away_ps[route]
        desk.member[at], desk.cost[at] = True, 0.0
    return steps


@njit(cache=True, nogil=True)
def _weave(net: Net, work: Work, table: Table, ways: Ways, desk: Desk, chunk: int, weight: float, salt: int) -> bool:
    """Weave one chunk in: always the node that can be there first joins the tree. Says whether all could be reached.

    Branches that are there already stay. A node counts as later by `weight` times all that its way holds of the links,
    so that quick ways that take much of the machine are left to those who need them.
    """
    wanted = work.wanted[work.wanted_ptr[chunk] : work.wanted_ptr[chunk + 1]]
    one = One(chunk, work.size_bytes[chunk], weight, salt, int(wanted[0]) if len(wanted) == 1 else -1)
    for node in wanted:
        desk.wanted[node] = True
    ways.at_ps[chunk, work.source[chunk]] = work.ready_ps[chunk]
    left, size = 0, 0
    for node in range(len(desk.member)):
        desk.cost[node] = 0.0
        desk.member[node] = ways.route[chunk, node] >= 0 or node == work.source[chunk]
        if desk.member[node]:
            desk.wanted[node] = False
        elif desk.wanted[node]:
            left += 1
    for node in range(len(desk.member)):
        if desk.member[node]:
            size = _offer(net, table, ways, desk, size, one, node)
    while left > 0 and size > 0:
        key, node = desk.key[0], desk.node[0]
        size = _drop_first(desk, size)
        if desk.member[node] or key > ways.at_ps[chunk, node] + desk.cost[node] + _ahead(net, one, node):
            continue
        route = ways.route[chunk, node]
        ready, hold = ways.at_ps[chunk, net.start[route]], _hold_ps(net, route, one.size_bytes)
        if _earliest(net, table, route, hold, ready, ways.start_ps[chunk, node] + 1.0) > ways.start_ps[chunk, node]:
            size = _look_again(net, table, ways, desk, size, one, node)
        elif not desk.wanted[node]:
            size = _offer(net, table, ways, desk, size, one, node)
        else:
            for k in range(_graft(net, table, ways, desk, one, node)):
                joined = desk.path[k]
                if desk.wanted[joined]:
                    desk.wanted[joined] = False
                    left -= 1
                size = _offer(net, table, ways, desk, size, one, joined)
    desk.wanted[wanted] = False
    for node in range(len(desk.member)):
        if not desk.member[node]:
            ways.route[chunk, node] = -1
    return left == 0


@njit(cache=True, nogil=True)
def _park(net: Net, work: Work, table: Table, ways: Ways, chunk: int, target_ps: int) -> None:
    """Let every branch of a chunk's tree start as late as who wants it and its own branches allow.

    Early slots become free for those who must be early. What is late stays as it is.
    """
    nodes = ways.route.shape[1]
    due = np.full(nodes, target_ps)
    for node in np.argsort(-ways.start_ps[chunk], kind="mergesort"):  # branches before what feeds them
        route = ways.route[chunk, node]
        if route < 0:
            continue
        start, hold = ways.start_ps[chunk, node], _hold_ps(net, route, work.size_bytes[chunk])
        if ways.at_ps[chunk, node] <= due[node]:
            _release(net, table, route, start)
            start = max(start, _latest(net, table, route, hold, due[node] - hold - net.away_ps[route]))
            _book(net, table, route, hold, start, chunk)
            ways.start_ps[chunk, node], ways.at_ps[chunk, node] = start, start + hold + net.away_ps[route]
        due[net.start[route]] = min(due[net.start[route]], start)


@njit(cache=True, nogil=True)
def _unweave(net: Net, table: Table, ways: Ways, chunk: int) -> None:
    for node in range(ways.route.shape[1]):
        if ways.route[chunk, node] >= 0:
            _release(net, table, ways.route[chunk, node], ways.start_ps[chunk, node])
            ways.route[chunk, node] = -1


@njit(cache=True, nogil=True)
def _cut(net: Net, table: Table, ways: Ways, chunk: int, share: float, random: np.random.Generator) -> None:
    """Tear out the branches above some of the nodes of a chunk's tree: that share of all, at random."""
    gone = np.zeros(ways.route.shape[1], dtype=np.bool_)
    for node in np.argsort(ways.at_ps[chunk], kind="mergesort"):  # what feeds a branch before it
        route = ways.route[chunk, node]
        if route >= 0 and (gone[net.start[route]] or random.random() < share):
            gone[node] = True
            _release(net, table, route, ways.start_ps[chunk, node])
            ways.route[chunk, node] = -1


@njit(cache=True, nogil=True)
def _put_back(
    net: Net, work: Work, table: Table, ways: Ways, chunk: int, route: I32, start_ps: I64, at_ps: I64
) -> None:
    for node in range(len(route)):
        ways.route[chunk, node], ways.start_ps[chunk, node] = route[node], start_ps[node]
        ways.at_ps[chunk, node] = at_ps[node]
        if route[node] >= 0:
            hold = _hold_ps(net, route[node], work.size_bytes[chunk])
            _book(net, table, route[node], hold, start_ps[node], chunk)


@njit(cache=True, nogil=True)
def _late(work: Work, ways: Ways, chunk: int, target_ps: int) -> float:
    """By how much a chunk comes after a time, summed over who wants it."""
    total = 0.0
    for k in range(work.wanted_ptr[chunk], work.wanted_ptr[chunk + 1]):
        total += max(0, ways.at_ps[chunk, work.wanted[k]] - target_ps)
    return total


@njit(cache=True, nogil=True)
def finish_ps(work: Work, ways: Ways) -> int:
    """The last arrival."""
    last = 0
    for chunk in range(len(work.source)):
        for k in range(work.wanted_ptr[chunk], work.wanted_ptr[chunk + 1]):
            last = max(last, ways.at_ps[chunk, work.wanted[k]])
    return last


@njit(cache=True, nogil=True)
def build(net: Net, work: Work, table: Table, order: I64, weight: float) -> tuple[bool, Table, Ways]:
    """All chunks, one after the other, between what the table holds already."""
    chunks, nodes = len(work.source), len(net.node_ptr) - 1
    start = np.zeros((chunks, nodes), dtype=np.int64)
    ways = Ways(np.full((chunks, nodes), -1, dtype=np.int32), start, start.copy())
    desk = new_desk(nodes, len(net.end))
    for chunk in order:
        table = _with_space(table, nodes)
        if not _weave(net, work, table, ways, desk, chunk, weight, chunk):
            return False, table, ways
    return True, table, ways


@njit(cache=True, nogil=True)
def book_all(net: Net, work: Work, table: Table, ways: Ways) -> Table:
    """The table with ways that are given."""
    for chunk in range(len(work.source)):
        table = _with_space(table, ways.route.shape[1])
        _put_back(net, work, table, ways, chunk, ways.route[chunk], ways.start_ps[chunk], ways.at_ps[chunk])
    return table


@njit(cache=True, nogil=True)
def _victims(net: Net, work: Work, table: Table, ways: Ways, late: F64, random: np.random.Generator, out: I64) -> int:
    """A chunk that is late, then others: those that go before it on its way, or any. Returns how many."""
    chunks = len(late)
    tries = 0
    first = random.integers(0, chunks)
    while late[first] <= 0.0 and tries < chunks:
        first = (first + 1) % chunks
        tries += 1
    out[0] = first
    count = 1
    worst = work.wanted[work.wanted_ptr[first]]
    for k in range(work.wanted_ptr[first], work.wanted_ptr[first + 1]):
        if ways.at_ps[first, work.wanted[k]] > ways.at_ps[first, worst]:
            worst = work.wanted[k]
    for _ in range(4 * len(out)):
        if count == len(out):
            break
        other = int(random.integers(0, chunks))
        if random.random() < 0.7:
            node = worst
            while random.random() < 0.6 and net.start[ways.route[first, node]] != work.source[first]:
                node = net.start[ways.route[first, node]]
            route = ways.route[first, node]
            hop = int(random.integers(net.hop_ptr[route], net.hop_ptr[route + 1]))
            link = net.hop_link[hop]
            place = _place(table, link, ways.start_ps[first, node] + net.hop_offset_ps[hop])
            place -= 1 + int(random.integers(0, 4))
            if place < 0:
                continue
            other = int(table.chunk[link, place])
        new = other >= 0
        for k in range(count):
            new = new and out[k] != other
        if new:
            out[count] = other
            count += 1
    return count


@njit(cache=True, nogil=True)
def improve(
    net: Net,
    work: Work,
    table: Table,
    ways: Ways,
    target_ps: int,
    weight: float,
    tries: int,
    most: int,
    park: bool,
    random: np.random.Generator,
) -> Table:
    """Tear some chunks or branches of them out and weave them in again, many times; what makes them later is undone.

    Chunks count as late that are not there at `target_ps`; it is over when none is. With `park`, those that are not
    late go as late as they may. Returns the table, which may have
    become wider.
    """
    chunks, nodes = ways.route.shape
    desk = new_desk(nodes, len(net.end))
    late = np.empty(chunks)
    for chunk in range(chunks):
        late[chunk] = _late(work, ways, chunk, target_ps)
        if park:
            _park(net, work, table, ways, chunk, target_ps)
    total = late.sum()
    chosen = np.empty(most, dtype=np.int64)
    for _ in range(tries):
        if total <= 0.0:
            break
        size = 1 + random.integers(0, most)
        count = _victims(net, work, table, ways, late, random, chosen[:size])
        victims = chosen[:count].copy()
        old_route, old_start, old_at = ways.route[victims], ways.start_ps[victims], ways.at_ps[victims]
        before = 0.0
        share = 1.0 if random.random() < 0.5 else 0.5 * random.random()
        for chunk in victims:
            before += late[chunk]
            if share < 1.0:
                _cut(net, table, ways, chunk, share, random)
            else:
                _unweave(net, table, ways, chunk)
        table = _with_space(table, nodes * count)
        order = victims.copy()
        if random.random() < 0.5:
            order = order[::-1].copy()
        after = 0.0
        scale = weight * np.exp(random.normal(0.0, 0.7))
        salt = int(random.integers(0, 1 << 30))
        for chunk in order:
            if not _weave(net, work, table, ways, desk, chunk, scale, salt + chunk):
                after = np.inf
            else:
                after += _late(work, ways, chunk, target_ps)
                if park:
                    _park(net, work, table, ways, chunk, target_ps)
            if after > before:
                break
        if after > before:
            for k in range(count):
                _unweave(net, table, ways, order[k])
            for k in range(count):
                _put_back(net, work, table, ways, victims[k], old_route[k], old_start[k], old_at[k])
        else:
            for chunk in victims:
                late[chunk] = _late(work, ways, chunk, target_ps)
            total += after - before
    return table
