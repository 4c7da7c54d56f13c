"""Precedence constraints of a schedule: the order on links, on limits and in buffers, and the data dependencies.

A triple of arrays (before, after, lag) means start[after] >= start[before] + lag.
"""

import numpy as np
from numpy.typing import NDArray

from flowccl.schedule.schedule import Schedule
from flowccl.schedule.timing import Timing

I64 = NDArray[np.int64]
Triples = tuple[I64, I64, I64]


def soonest_starts(schedule: Schedule) -> I64:
    """Return the release time of each transfer: the data of its roots is available, if the schedule waits for it."""
    soonest = np.zeros(len(schedule), dtype=np.int64)
    if schedule.demand.ready_ps is None:
        return soonest
    timing, demand, nodes = schedule.timing, schedule.demand, len(schedule.topology.nodes)
    owned = demand.source_chunk.astype(np.int64) * nodes + demand.source_rank
    order = np.argsort(owned, kind="stable")
    key = schedule.chunk[timing.root_transfer].astype(np.int64) * nodes + timing.root_node
    place = np.minimum(np.searchsorted(owned[order], key), len(owned) - 1)
    ready = np.where(owned[order][place] == key, demand.available_ps[order][place], 0)
    waited = ready <= timing.root_from_ps
    offset = timing.root_from_ps - schedule.start_ps[timing.root_transfer]
    np.maximum.at(soonest, timing.root_transfer[waited], (ready - offset)[waited])
    return soonest


def precedences(schedule: Schedule) -> Triples:
    """Return all constraints (before, after, lag)."""
    timing = schedule.timing
    parts = [
        _order_on_links(schedule, timing),
        _order_of_reducing(schedule, timing),
        *_order_on_limits(schedule, timing),
        *_order_in_buffers(schedule, timing),
        data_order(schedule),
    ]
    before, after, lag = (np.concatenate([part[i] for part in parts]) for i in range(3))
    return before, after, lag


def data_order(schedule: Schedule) -> Triples:
    """Return the data dependencies (before, after, lag): nodes send what they have, and reductions stay complete."""
    timing = schedule.timing
    parts = [_arrival_before_send(schedule, timing)]
    if schedule.demand.reduces or np.any(schedule.topology.stores & ~schedule.topology.copies):
        parts.append(_send_before_next_arrival(schedule, timing))
    before, after, lag = (np.concatenate([part[i] for part in parts]) for i in range(3))
    return before, after, lag


def _hop_edges(schedule: Schedule, timing: Timing, x: I64, y: I64) -> Triples:
    """Hop y starts after hop x has ended."""
    before, after = timing.hop_transfer[x], timing.hop_transfer[y]
    lag = timing.hop_to_ps[x] - schedule.start_ps[before] - (timing.hop_from_ps[y] - schedule.start_ps[after])
    other = before != after
    return before[other], after[other], lag[other]


def _order_on_links(schedule: Schedule, timing: Timing) -> Triples:
    """Transfers on a link keep their order; on a shared link, those that do not overlap do, as with limits."""
    shared = timing.shared_links(schedule.topology)
    order = np.lexsort((timing.hop_from_ps, timing.hop_link))
    order = order[~shared[timing.hop_link[order]]]
    same = timing.hop_link[order[1:]] == timing.hop_link[order[:-1]]
    parts = [_hop_edges(schedule, timing, order[:-1][same], order[1:][same])]
    for link in np.flatnonzero(shared):
        rows = np.flatnonzero(timing.hop_link == link)
        x, y = _disjoint_pairs(timing.hop_from_ps[rows], timing.hop_to_ps[rows])
        parts.append(_hop_edges(schedule, timing, rows[x], rows[y]))
    before, after, lag = (np.concatenate([part[i] for part in parts]) for i in range(3))
    return before, after, lag


def _order_of_reducing(schedule: Schedule, timing: Timing) -> Triples:
    """A node that takes time to reduce processes one chunk after the other, in the same order."""
    rows = timing.reducing
    rows = rows[np.lexsort((timing.end_whole_ps[rows], timing.end_node[rows]))]
    same = timing.end_node[rows[1:]] == timing.end_node[rows[:-1]]
    x, y = rows[:-1][same], rows[1:][same]
    before, after = timing.end_transfer[x], timing.end_transfer[y]
    lag = timing.end_arrival_ps[x] - schedule.start_ps[before] - (timing.end_whole_ps[y] - schedule.start_ps[after])
    return before, after, lag


def _order_on_limits(schedule: Schedule, timing: Timing) -> list[Triples]:
    """Two transfers that do not overlap on a limit keep their order.

    Then any set of transfers that overlap afterwards overlapped pairwise before, and intervals that overlap pairwise
    share an instant. The limit was satisfied at that instant, so it still is.
    """
    result = []
    for limit in schedule.topology.limits:
        rows = np.flatnonzero(np.isin(timing.hop_link, limit.links))
        x, y = _disjoint_pairs(timing.hop_from_ps[rows], timing.hop_to_ps[rows])
        result.append(_hop_edges(schedule, timing, rows[x], rows[y]))
    return result


def _disjoint_pairs(begin: I64, end: I64) -> tuple[I64, I64]:
    """Pairs of intervals, the first ending before the second begins, without pairs that have a third in between."""
    rows = np.argsort(end, kind="stable")
    begin, end = begin[rows], end[rows]
    done = np.searchsorted(end, begin, side="right")  # the number of intervals that have ended when this one begins
    first = np.iinfo(np.int64).min
    latest = np.concatenate(([first], np.maximum.accumulate(begin)))
    low = np.searchsorted(end, latest[done], side="right")  # earlier ones have another interval in between
    size = np.maximum(done - low, 0)
    owner = np.repeat(np.arange(len(rows)), size)
    inside = np.arange(len(owner)) - np.repeat(np.cumsum(size) - size, size)
    return rows[low[owner] + inside], rows[owner]


def _order_in_buffers(schedule: Schedule, timing: Timing) -> list[Triples]:
    """Two relayed chunks that are not in a node's buffer at the same time keep their order, as with limits."""
    demand, nodes, result = schedule.demand, len(schedule.topology.nodes), []
    own = np.concatenate((demand.source_chunk, demand.destination_chunk)).astype(np.int64) * nodes
    own += np.concatenate((demand.source_rank, demand.destination_rank))
    for node in [n for n, what in enumerate(schedule.topology.nodes) if what.buffer_bytes is not None]:
        came, left = np.flatnonzero(timing.end_node == node), np.flatnonzero(timing.root_node == node)
        chunk = np.concatenate((schedule.chunk[timing.end_transfer[came]], schedule.chunk[timing.root_transfer[left]]))
        transfer = np.concatenate((timing.end_transfer[came], timing.root_transfer[left]))
        since = np.concatenate((timing.end_first_ps[came], timing.root_from_ps[left]))
        until = np.concatenate((timing.end_arrival_ps[came], timing.root_to_ps[left]))
        kept, stay = np.unique(chunk, return_inverse=True)
        first, last = np.full(len(kept), np.iinfo(np.int64).max), np.zeros(len(kept), dtype=np.int64)
        np.minimum.at(first, stay, since)
        np.maximum.at(last, stay, until)
        for x, y in zip(*_disjoint_pairs(first, last), strict=True):
            if not np.isin([kept[x] * nodes + node, kept[y] * nodes + node], own).any():
                a = np.repeat(np.flatnonzero(stay == x), np.sum(stay == y))
                b = np.tile(np.flatnonzero(stay == y), np.sum(stay == x))
                lag = until[a] - schedule.start_ps[transfer[a]] - (since[b] - schedule.start_ps[transfer[b]])
                other = transfer[a] != transfer[b]
                result.append((transfer[a][other], transfer[b][other], lag[other]))
    return result


def _arrival_before_send(schedule: Schedule, timing: Timing) -> Triples:
    """A root sends after the data it sends has arrived."""
    root, end = feeding(schedule)
    before, after = timing.end_transfer[end], timing.root_transfer[root]
    lag = (
        timing.end_arrival_ps[end] - schedule.start_ps[before] - (timing.root_from_ps[root] - schedule.start_ps[after])
    )
    return before, after, lag


def _send_before_next_arrival(schedule: Schedule, timing: Timing) -> Triples:
    """Data that arrives after a partial reduction or the only copy was sent still does; arrivals keep their order."""
    order, end_key, root_key = deliveries(schedule)
    low, high = _range(end_key, root_key)
    reduced = (np.diff(schedule.demand.source_ptr) > 1)[schedule.chunk[timing.root_transfer]]
    size = np.where(reduced | ~schedule.topology.copies[timing.root_node], high - low, 0)
    root = np.repeat(np.arange(len(root_key)), size)
    end = order[np.repeat(low, size) + np.arange(len(root)) - np.repeat(np.cumsum(size) - size, size)]
    later = timing.end_arrival_ps[end] > timing.root_from_ps[root]
    root, end = root[later], end[later]
    before, after = timing.root_transfer[root], timing.end_transfer[end]
    sent, came = (
        timing.root_from_ps[root] - schedule.start_ps[before],
        timing.end_arrival_ps[end] - schedule.start_ps[after],
    )
    parts = [(before, after, sent + 1 - came)]
    chain = np.flatnonzero(end_key[1:] == end_key[:-1])  # consecutive deliveries at one node
    x, y = order[chain], order[chain + 1]
    mixed = ~(schedule.reduce[timing.end_transfer[x]] & schedule.reduce[timing.end_transfer[y]])
    x, y = x[mixed], y[mixed]
    before, after = timing.end_transfer[x], timing.end_transfer[y]
    lag = timing.end_arrival_ps[x] - schedule.start_ps[before] - (timing.end_arrival_ps[y] - schedule.start_ps[after])
    parts.append((before, after, lag + (x > y)))  # at equal times, the first row comes first
    first, second, third = (np.concatenate([part[i] for part in parts]) for i in range(3))
    other = first != second
    return first[other], second[other], third[other]


def feeding(schedule: Schedule) -> tuple[I64, I64]:
    """Return pairs (root row, end row): the deliveries that each root needs for its send.

    For a reduction these are all earlier deliveries, otherwise the first one. For a node that cannot copy, the k-th
    send needs the k-th delivery. The result is kept in `schedule.cache`, because `prune` and `left_shift` both need it.
    """
    if "feeding" not in schedule.cache:
        schedule.cache["feeding"] = _feeding(schedule, schedule.timing)
    pairs: tuple[I64, I64] = schedule.cache["feeding"]
    return pairs


def _feeding(schedule: Schedule, timing: Timing) -> tuple[I64, I64]:
    order, end_key, root_key = deliveries(schedule)
    low, high = _range(end_key, root_key)
    chunk, demand = schedule.chunk[timing.root_transfer], schedule.demand
    reduced = (np.diff(demand.source_ptr) > 1)[chunk]
    owned = (demand.source_rank[demand.source_ptr[chunk]] == timing.root_node) & ~reduced
    turn = -owned.astype(np.int64)
    gives_away = np.flatnonzero(~schedule.topology.copies[timing.root_node] & ~reduced)
    turn[gives_away] += _turns(root_key[gives_away], timing.root_from_ps[gives_away])
    low = np.clip(low + turn, low, high)
    high = np.where(turn < 0, low, np.where(reduced, high, np.minimum(high, low + 1)))
    size = high - low
    root = np.repeat(np.arange(len(root_key)), size)
    end = order[np.repeat(low, size) + np.arange(len(root)) - np.repeat(np.cumsum(size) - size, size)]
    in_time = timing.end_arrival_ps[end] <= timing.root_from_ps[root]
    return root[in_time], end[in_time]


def deliveries(schedule: Schedule) -> Triples:
    """Return end rows in order of (chunk, node, arrival), their keys, and the keys of root rows; kept in the cache."""
    if "deliveries" not in schedule.cache:
        schedule.cache["deliveries"] = _deliveries(schedule, schedule.timing)
    rows: Triples = schedule.cache["deliveries"]
    return rows


def _deliveries(schedule: Schedule, timing: Timing) -> Triples:
    nodes = len(schedule.topology.nodes)
    end_key = schedule.chunk[timing.end_transfer].astype(np.int64) * nodes + timing.end_node
    order = np.lexsort((timing.end_arrival_ps, end_key))
    root_key = schedule.chunk[timing.root_transfer].astype(np.int64) * nodes + timing.root_node
    return order, end_key[order], root_key


def _range(keys: I64, asked: I64) -> tuple[I64, I64]:
    """For each key in `asked`, the range of equal keys in the sorted `keys`: (from, until)."""
    low = np.searchsorted(keys, asked)
    if not len(keys):
        return low, low
    last = np.searchsorted(keys, keys, side="right")  # fast, because the searched keys are sorted too
    place = np.minimum(low, len(keys) - 1)
    return low, np.where(keys[place] == asked, last[place], low)


def _turns(key: I64, time: I64) -> I64:
    """For each row, the number of earlier rows with the same key."""
    order = np.lexsort((time, key))
    place = np.arange(len(key))
    turn = np.empty(len(key), dtype=np.int64)
    turn[order] = place - np.searchsorted(key[order], key[order], side="left")
    return turn
