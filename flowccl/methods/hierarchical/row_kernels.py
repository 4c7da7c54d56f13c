"""The transfers of chunks on a hierarchy, and what each of them waits for, in compiled loops."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I64, Bool, compiled, inner
from flowccl.methods.hierarchical.route_kernels import Growing, TreeTables, add_route, least_loaded, spread_cost
from flowccl.methods.hierarchical.tree_kernels import grow_tree

SPREAD, REDUCE, EXCHANGE = range(3)  # steps of a chunk


class PlanRows(NamedTuple):
    """Transfers in rows, and what brings a chunk to each node: a list of entries, each a row and the entry before it.

    Row r takes the links `link[link_ptr[r]:link_ptr[r + 1]]`. A row of `wait` says that a transfer waits for an entry
    and those before it. A row of `exchange` is a transfer between gateways, and the first one of the same exchange.
    """

    link_ptr: I64
    link: I64
    reduce: Bool
    end: I64
    wait: I64  # entry, row
    exchange: I64
    entry: I64  # row, entry before, number of entries up to here
    newest: I64  # of each node: the last entry of the present chunk, or -1
    used: I64  # rows, links, waits, rows of exchanges, entries


@inner
def _wait_for(rows: PlanRows, entry: int) -> None:
    """The next row waits for an entry and those before it."""
    if entry >= 0:
        at = rows.used[2]
        rows.wait[at, 0], rows.wait[at, 1] = entry, rows.used[0]
        rows.used[2] = at + 1


@inner
def _bring(rows: PlanRows, node: int, row: int) -> None:
    """A node has what a row brings."""
    at, before = rows.used[4], rows.newest[node]
    rows.entry[at, 0], rows.entry[at, 1] = row, before
    rows.entry[at, 2] = 1 + (rows.entry[before, 2] if before >= 0 else 0)
    rows.newest[node], rows.used[4] = at, at + 1


@inner
def _close_row(rows: PlanRows, end: int, reduces: bool) -> int:
    """The row whose links and waits were written last."""
    row = int(rows.used[0])
    rows.link_ptr[row + 1] = rows.used[1]
    rows.reduce[row], rows.end[row] = reduces, end
    rows.used[0] = row + 1
    return row


@inner
def _send_down(g: Growing, rows: PlanRows) -> None:
    """Down a tree: each parent sends what it has."""
    for k in range(g.used[0]):
        edge = g.edges[g.sequence[k]]
        parent, end, ends, link, links = edge[0], edge[1], edge[2], edge[3], edge[4]
        _wait_for(rows, rows.newest[parent])
        for at in range(link, link + links):
            rows.link[rows.used[1]] = g.links[at]
            rows.used[1] += 1
        row = _close_row(rows, g.ends[end], False)
        for at in range(end, end + ends):
            _bring(rows, g.ends[at], row)


@inner
def _send_up(g: Growing, rows: PlanRows, reduces: Bool) -> None:
    """Up a tree of the reversed machine: each child sends when it has all contributions from below."""
    for k in range(g.used[0] - 1, -1, -1):
        edge = g.edges[g.sequence[k]]
        parent, end, ends, link, links = edge[0], edge[1], edge[2], edge[3], edge[4]
        for at in range(end, end + ends):
            _wait_for(rows, rows.newest[g.ends[at]])
        for at in range(link + links - 1, link - 1, -1):
            rows.link[rows.used[1]] = g.links[at]
            rows.used[1] += 1
        _bring(rows, parent, _close_row(rows, parent, reduces[parent]))


@inner
def _exchange(t: TreeTables, load_ps: F64, rows: PlanRows, gateways: I64, size: float, ready: I64) -> None:
    """Each gateway sends what it has to all others."""
    count, first = len(gateways), rows.used[0]
    for at in range(count):
        ready[at] = rows.newest[gateways[at]]
    for shift in range(1, count):
        for at in range(count):
            a, b = gateways[at], gateways[(at + shift) % count]
            route = least_loaded(t, load_ps, a, b, size)
            add_route(t, load_ps, route, size)
            _wait_for(rows, ready[at])
            for k in range(t.links.shape[1]):
                if t.links[route, k] < len(t.per_byte_ps) - 1:
                    rows.link[rows.used[1]] = t.links[route, k]
                    rows.used[1] += 1
            rows.exchange[rows.used[3], 0], rows.exchange[rows.used[3], 1] = rows.used[0], first
            rows.used[3] += 1
            _bring(rows, b, _close_row(rows, b, True))


@compiled
def add_transfers(
    step: int,
    t: TreeTables,
    load_ps: F64,
    g: Growing,
    turns: I64,
    rows: PlanRows,
    root: int,
    members: I64,
    level: int,
    arity: int,
    size: float,
    reduces: Bool,
) -> None:
    """Send a chunk down a tree from the root to all members, up a tree, or between all members.

    A tree is grown on a level of the machine and those inside it; where it goes up, on the reversed machine.
    """
    if step == EXCHANGE:
        _exchange(t, load_ps, rows, members, size, g.order)
        return
    grow_tree(t, load_ps, g, turns, root, members, level, arity, size)
    if step == SPREAD:
        _send_down(g, rows)
    else:
        _send_up(g, rows, reduces)


@inner
def _has_space(g: Growing, rows: PlanRows) -> bool:
    """Whether the rows of one tree more fit."""
    edges = len(g.edges)
    return bool(
        rows.used[0] + edges < len(rows.link_ptr)
        and rows.used[1] + len(g.links) <= len(rows.link)
        and rows.used[0] + edges <= len(rows.reduce)
        and rows.used[2] + 2 * edges <= len(rows.wait)
        and rows.used[4] + 2 * edges <= len(rows.entry)
    )


@compiled
def add_spreads(
    at: int,
    chunks: I64,
    source: I64,
    ptr: I64,
    destination: I64,
    size: F64,
    t: TreeTables,
    load_ps: F64,
    g: Growing,
    turns: I64,
    rows: PlanRows,
    arity: int,
    until: I64,
) -> int:
    """Send chunks from their sources to their destinations, from `at` on; return the first one that has no space.

    `until[k]` becomes the number of rows after chunk k of the list.
    """
    while at < len(chunks) and _has_space(g, rows):
        chunk = chunks[at]
        rows.newest[:] = -1
        members = destination[ptr[chunk] : ptr[chunk + 1]]
        grow_tree(t, load_ps, g, turns, source[chunk], members, 0, arity, size[chunk])
        _send_down(g, rows)
        until[at] = rows.used[0]
        at += 1
    return at


@compiled
def spread_costs(t: TreeTables, load_ps: F64, g: Growing, gateways: I64, members: I64, size: float) -> F64:
    """What it costs that each gateway forwards a chunk to all members; see `spread_cost`."""
    g.pool[: len(members)] = members
    costs = np.empty(len(gateways))
    for at in range(len(gateways)):
        costs[at] = spread_cost(t, load_ps, g, gateways[at], 0, len(members), size)
    return costs


@compiled
def waits_of(entry: I64, wait: I64, before: I64, after: I64) -> None:
    """All pairs of a row and one that waits for it."""
    at = 0
    for k in range(len(wait)):
        one = wait[k, 0]
        while one >= 0:
            before[at], after[at] = entry[one, 0], wait[k, 1]
            one = entry[one, 1]
            at += 1
