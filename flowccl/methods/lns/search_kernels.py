"""Compiled loops of the large-neighbourhood search: construction, removal and insertion."""

import numpy as np

from flowccl.compiled import F64, I64, compiled, exponential, inner, maker
from flowccl.methods.lns.insertion_kernels import (
    InsertedTrees,
    InsertionScratch,
    PlannedChunks,
    insert_chunk,
    new_scratch,
    remove_branches,
    remove_chunk,
    restore_chunk,
)
from flowccl.methods.lns.timetable_kernels import RouteNetwork, Timetable, first_after, with_space


@compiled
def last_ps(planned: PlannedChunks, trees: InsertedTrees) -> I64:
    """The last arrival of each chunk."""
    last = np.zeros(len(planned.source), dtype=np.int64)
    for chunk in range(len(planned.source)):
        for k in range(planned.wanted_ptr[chunk], planned.wanted_ptr[chunk + 1]):
            last[chunk] = max(last[chunk], trees.at_ps[chunk, planned.wanted[k]])
    return last


@compiled
def build(
    net: RouteNetwork, planned: PlannedChunks, table: Timetable, order: I64, weight: float
) -> tuple[bool, Timetable, InsertedTrees]:
    """Insert all chunks, one after the other, between the bookings in the table."""
    chunks, nodes = len(planned.source), len(net.node_ptr) - 1
    start = np.zeros((chunks, nodes), dtype=np.int64)
    trees = InsertedTrees(np.full((chunks, nodes), -1, dtype=np.int32), start, start.copy())
    scratch = new_scratch(nodes, len(net.end))
    for chunk in order:
        table = with_space(table, nodes)
        if not insert_chunk(net, planned, table, trees, scratch, chunk, weight, chunk):
            return False, table, trees
    return True, table, trees


@inner
def _late(planned: PlannedChunks, trees: InsertedTrees, chunk: int, target_ps: int) -> float:
    """The total lateness of a chunk after a time, over its destinations."""
    total = 0.0
    for k in range(planned.wanted_ptr[chunk], planned.wanted_ptr[chunk + 1]):
        total += max(0, trees.at_ps[chunk, planned.wanted[k]] - target_ps)
    return total


@maker
def _choose_removed(
    net: RouteNetwork,
    planned: PlannedChunks,
    table: Timetable,
    trees: InsertedTrees,
    late: F64,
    random: np.random.Generator,
    out: I64,
) -> int:
    """Choose a late chunk, and others that precede it on its links or are random. Return their number."""
    chunks = len(late)
    tries = 0
    first = random.integers(0, chunks)
    while late[first] <= 0.0 and tries < chunks:
        first = (first + 1) % chunks
        tries += 1
    out[0] = first
    count = 1
    worst = planned.wanted[planned.wanted_ptr[first]]
    for k in range(planned.wanted_ptr[first], planned.wanted_ptr[first + 1]):
        if trees.at_ps[first, planned.wanted[k]] > trees.at_ps[first, worst]:
            worst = planned.wanted[k]
    for _ in range(4 * len(out)):
        if count == len(out):
            break
        other = int(random.integers(0, chunks))
        if random.random() < 0.7:
            node = worst
            while random.random() < 0.6 and net.start[trees.route[first, node]] != planned.source[first]:
                node = net.start[trees.route[first, node]]
            route = trees.route[first, node]
            hop = int(random.integers(net.hop_ptr[route], net.hop_ptr[route + 1]))
            link = net.hop_link[hop]
            place = first_after(table, link, trees.start_ps[first, node] + net.hop_offset_ps[hop])
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
    net: RouteNetwork,
    planned: PlannedChunks,
    table: Timetable,
    trees: InsertedTrees,
    target_ps: int,
    weight: float,
    tries: int,
    most: int,
    random: np.random.Generator,
) -> Timetable:
    """Remove some chunks or branches and insert them again, many times; undo changes that increase the lateness.

    A chunk is late if it arrives after `target_ps`; the loop ends when no chunk is. Return the table, which may have
    become wider.
    """
    chunks, nodes = trees.route.shape
    scratch = new_scratch(nodes, len(net.end))
    late = np.empty(chunks)
    for chunk in range(chunks):
        late[chunk] = _late(planned, trees, chunk, target_ps)
    total = late.sum()
    chosen = np.empty(most, dtype=np.int64)
    for _ in range(tries):
        if total <= 0.0:
            break
        size = 1 + random.integers(0, most)
        count = _choose_removed(net, planned, table, trees, late, random, chosen[:size])
        removed = chosen[:count].copy()
        old_route, old_start, old_at = trees.route[removed], trees.start_ps[removed], trees.at_ps[removed]
        before = late[removed].sum()
        _remove(net, table, trees, removed, random)
        table = with_space(table, nodes * count)
        order = removed[::-1].copy() if random.random() < 0.5 else removed
        after = _insert_again(net, planned, table, trees, scratch, order, target_ps, weight, before, random)
        if after > before:
            for k in range(count):
                remove_chunk(net, table, trees, order[k])
            for k in range(count):
                restore_chunk(net, planned, table, trees, removed[k], old_route[k], old_start[k], old_at[k])
        else:
            for chunk in removed:
                late[chunk] = _late(planned, trees, chunk, target_ps)
            total += after - before
    return table


@maker
def _remove(
    net: RouteNetwork, table: Timetable, trees: InsertedTrees, removed: I64, random: np.random.Generator
) -> None:
    """Remove chunks, or some of their branches."""
    share = 1.0 if random.random() < 0.5 else 0.5 * random.random()
    for chunk in removed:
        if share < 1.0:
            remove_branches(net, table, trees, chunk, share, random)
        else:
            remove_chunk(net, table, trees, chunk)


@maker
def _insert_again(
    net: RouteNetwork,
    planned: PlannedChunks,
    table: Timetable,
    trees: InsertedTrees,
    scratch: InsertionScratch,
    order: I64,
    target_ps: int,
    weight: float,
    enough: float,
    random: np.random.Generator,
) -> float:
    """Insert chunks in this order; return their total lateness. Stop early once it exceeds `enough`."""
    late = 0.0
    scale = weight * exponential(random.normal(0.0, 0.7))
    salt = int(random.integers(0, 1 << 30))
    for chunk in order:
        if not insert_chunk(net, planned, table, trees, scratch, chunk, scale, salt + chunk):
            return np.inf
        late += _late(planned, trees, chunk, target_ps)
        if late > enough:
            break
    return late
