"""Compiled loops of the woven method: all chunks woven in, one by one, then some torn out and woven in again."""

import numpy as np

from flowccl.compiled import F64, I32, I64, compiled, inner, maker
from flowccl.methods.lns.insertion_kernels import Desk, Ways, Work, cut, new_desk, park_chunk, put_back, unweave, weave
from flowccl.methods.lns.timetable_kernels import Net, Table, book, busy_ps, first_after, with_space


@compiled
def last_ps(work: Work, ways: Ways) -> I64:
    """The last arrival of each chunk."""
    last = np.zeros(len(work.source), dtype=np.int64)
    for chunk in range(len(work.source)):
        for k in range(work.wanted_ptr[chunk], work.wanted_ptr[chunk + 1]):
            last[chunk] = max(last[chunk], ways.at_ps[chunk, work.wanted[k]])
    return last


@compiled
def build(net: Net, work: Work, table: Table, order: I64, weight: float) -> tuple[bool, Table, Ways]:
    """All chunks, one after the other, between what the table holds already."""
    chunks, nodes = len(work.source), len(net.node_ptr) - 1
    start = np.zeros((chunks, nodes), dtype=np.int64)
    ways = Ways(np.full((chunks, nodes), -1, dtype=np.int32), start, start.copy())
    desk = new_desk(nodes, len(net.end))
    for chunk in order:
        table = with_space(table, nodes)
        if not weave(net, work, table, ways, desk, chunk, weight, chunk):
            return False, table, ways
    return True, table, ways


@compiled
def book_all(net: Net, work: Work, table: Table, chunk: I32, route: I32, start_ps: I64) -> Table:
    """The table with transfers that are given, in the order of their starts: so each comes behind those before it."""
    holds = np.zeros(len(table.holds), dtype=np.int64)
    for k in range(len(chunk)):
        for h in range(net.hop_ptr[route[k]], net.hop_ptr[route[k] + 1]):
            holds[net.hop_link[h]] += 1
    table = with_space(table, holds.max())
    for k in range(len(chunk)):
        book(net, table, route[k], busy_ps(net, route[k], work.size_bytes[chunk[k]]), start_ps[k], chunk[k])
    return table


@inner
def _late(work: Work, ways: Ways, chunk: int, target_ps: int) -> float:
    """By how much a chunk comes after a time, summed over who wants it."""
    total = 0.0
    for k in range(work.wanted_ptr[chunk], work.wanted_ptr[chunk + 1]):
        total += max(0, ways.at_ps[chunk, work.wanted[k]] - target_ps)
    return total


@maker
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
            place = first_after(table, link, ways.start_ps[first, node] + net.hop_offset_ps[hop])
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


@compiled
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
    late go as late as they may. Returns the table, which may have become wider.
    """
    chunks, nodes = ways.route.shape
    desk = new_desk(nodes, len(net.end))
    late = np.empty(chunks)
    for chunk in range(chunks):
        late[chunk] = _late(work, ways, chunk, target_ps)
        if park:
            park_chunk(net, work, table, ways, chunk, target_ps)
    total = late.sum()
    chosen = np.empty(most, dtype=np.int64)
    for _ in range(tries):
        if total <= 0.0:
            break
        size = 1 + random.integers(0, most)
        count = _victims(net, work, table, ways, late, random, chosen[:size])
        victims = chosen[:count].copy()
        old_route, old_start, old_at = ways.route[victims], ways.start_ps[victims], ways.at_ps[victims]
        before = late[victims].sum()
        _tear_out(net, table, ways, victims, random)
        table = with_space(table, nodes * count)
        order = victims[::-1].copy() if random.random() < 0.5 else victims
        after = _weave_again(net, work, table, ways, desk, order, target_ps, weight, park, before, random)
        if after > before:
            for k in range(count):
                unweave(net, table, ways, order[k])
            for k in range(count):
                put_back(net, work, table, ways, victims[k], old_route[k], old_start[k], old_at[k])
        else:
            for chunk in victims:
                late[chunk] = _late(work, ways, chunk, target_ps)
            total += after - before
    return table


@maker
def _tear_out(net: Net, table: Table, ways: Ways, victims: I64, random: np.random.Generator) -> None:
    """Tear chunks out, or some of their branches."""
    share = 1.0 if random.random() < 0.5 else 0.5 * random.random()
    for chunk in victims:
        if share < 1.0:
            cut(net, table, ways, chunk, share, random)
        else:
            unweave(net, table, ways, chunk)


@maker
def _weave_again(
    net: Net,
    work: Work,
    table: Table,
    ways: Ways,
    desk: Desk,
    order: I64,
    target_ps: int,
    weight: float,
    park: bool,
    enough: float,
    random: np.random.Generator,
) -> float:
    """Weave chunks in, in this order; returns by how much they are late, or some of them, where that is enough."""
    late = 0.0
    scale = weight * np.exp(random.normal(0.0, 0.7))
    salt = int(random.integers(0, 1 << 30))
    for chunk in order:
        if not weave(net, work, table, ways, desk, chunk, scale, salt + chunk):
            return np.inf
        late += _late(work, ways, chunk, target_ps)
        if park:
            park_chunk(net, work, table, ways, chunk, target_ps)
        if late > enough:
            break
    return late
