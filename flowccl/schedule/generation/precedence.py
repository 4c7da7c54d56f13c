"""Precedence constraints of a schedule: the order on links, on limits and in buffers, and the data dependencies.

A triple of arrays (before, after, lag) means start[after] >= start[before] + lag.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER
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


@dataclass(frozen=True, eq=False)
class RowPairs:
    """Constraints of one kind between rows of a timing: column `later` of row y >= column `sooner` of row x + `extra`.

    The columns are those of `Timing`, such as "hop_from_ps" and "hop_to_ps". The pairs say only what comes first: with
    the timing of other bandwidths, the same pairs give other lags.
    """

    kind: str
    sooner: str
    x: I64
    later: str
    y: I64
    extra: I64 | int = 0

    def triples(self, start_ps: I64, timing: Timing) -> Triples:
        """Return (before, after, lag) for a timing of the same transfers from these starts."""
        before, after = (
            getattr(timing, f"{column.split('_')[0]}_transfer")[rows]
            for column, rows in ((self.sooner, self.x), (self.later, self.y))
        )
        first, second = getattr(timing, self.sooner)[self.x], getattr(timing, self.later)[self.y]
        lag = first - start_ps[before] - (second - start_ps[after]) + self.extra
        other = before != after
        return before[other], after[other], lag[other]


def precedences(schedule: Schedule) -> Triples:
    """Return all constraints (before, after, lag)."""
    return stacked(schedule, precedence_pairs(schedule))


def precedence_pairs(schedule: Schedule) -> list[RowPairs]:
    """Return all constraints by kind: "link", "reduce rate", "limit", "buffer", "data" and "reduction order"."""
    timing = schedule.timing
    return [
        *_order_on_links(schedule, timing),
        _order_of_reducing(timing),
        *_order_on_limits(schedule, timing),
        *_order_in_buffers(schedule, timing),
        *data_pairs(schedule),
    ]


def stacked(schedule: Schedule, pairs: list[RowPairs], timing: Timing | None = None) -> Triples:
    """Return the constraints (before, after, lag) of several kinds as one; by default, with the schedule's timing."""
    parts = [part.triples(schedule.start_ps, timing or schedule.timing) for part in pairs]
    before, after, lag = (np.concatenate([part[i] for part in parts]) for i in range(3))
    return before, after, lag


def between_messages(schedule: Schedule, triples: Triples) -> Triples:
    """Return the constraints between the first transfers of messages, which start together."""
    if not schedule.has_messages:
        return triples
    before, after, lag = schedule.leader[triples[0]], schedule.leader[triples[1]], triples[2]
    other = before != after
    return before[other], after[other], lag[other]


def data_order(schedule: Schedule) -> Triples:
    """Return the data dependencies (before, after, lag): nodes send what they have, and reductions stay complete."""
    return stacked(schedule, data_pairs(schedule))


def data_pairs(schedule: Schedule) -> list[RowPairs]:
    """Return the data dependencies by kind: "data" and "reduction order"."""
    root, end = feeding(schedule)
    parts = [RowPairs("data", "end_arrival_ps", end, "root_from_ps", root)]
    if schedule.demand.reduces or np.any(schedule.topology.stores & ~schedule.topology.copies):
        parts += _send_before_next_arrival(schedule, schedule.timing)
    return parts


def _hop_pairs(kind: str, x: I64, y: I64) -> RowPairs:
    """Hop y starts after hop x has ended."""
    return RowPairs(kind, "hop_to_ps", x, "hop_from_ps", y)


def _order_on_links(schedule: Schedule, timing: Timing) -> list[RowPairs]:
    """Transfers on a link keep their order; on a shared link, those that do not overlap do, as with limits."""
    shared = timing.shared_links(schedule.topology)
    order = np.lexsort((timing.hop_from_ps, timing.hop_link))
    order = order[~shared[timing.hop_link[order]]]
    same = timing.hop_link[order[1:]] == timing.hop_link[order[:-1]]
    parts = [_hop_pairs("link", order[:-1][same], order[1:][same])]
    for link in np.flatnonzero(shared):
        rows = np.flatnonzero(timing.hop_link == link)
        x, y = _disjoint_pairs(timing.hop_from_ps[rows], timing.hop_to_ps[rows])
        parts.append(_hop_pairs("link", rows[x], rows[y]))
    return parts


def _order_of_reducing(timing: Timing) -> RowPairs:
    """A node that takes time to reduce processes one chunk after the other, in the same order."""
    rows = timing.reducing
    rows = rows[np.lexsort((timing.end_whole_ps[rows], timing.end_node[rows]))]
    same = timing.end_node[rows[1:]] == timing.end_node[rows[:-1]]
    return RowPairs("reduce rate", "end_arrival_ps", rows[:-1][same], "end_whole_ps", rows[1:][same])


def _order_on_limits(schedule: Schedule, timing: Timing) -> list[RowPairs]:
    """Two transfers that do not overlap on a limit keep their order.

    Then any set of transfers that overlap afterwards overlapped pairwise before, and intervals that overlap pairwise
    share an instant. The limit was satisfied at that instant, so it still is.
    """
    result = []
    for limit in schedule.topology.limits:
        rows = np.flatnonzero(np.isin(timing.hop_link, limit.links))
        x, y = _disjoint_pairs(timing.hop_from_ps[rows], timing.hop_to_ps[rows])
        result.append(_hop_pairs("limit", rows[x], rows[y]))
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


def _order_in_buffers(schedule: Schedule, timing: Timing) -> list[RowPairs]:
    """Two relayed chunks that are not in a node's buffer at the same time keep their order, as with limits."""
    demand, nodes, result = schedule.demand, len(schedule.topology.nodes), []
    own = np.concatenate((demand.source_chunk, demand.destination_chunk)).astype(np.int64) * nodes
    own += np.concatenate((demand.source_rank, demand.destination_rank))
    for node in [n for n, what in enumerate(schedule.topology.nodes) if what.buffer_bytes is not None]:
        came, left = np.flatnonzero(timing.end_node == node), np.flatnonzero(timing.root_node == node)
        chunk = np.concatenate((schedule.chunk[timing.end_transfer[came]], schedule.chunk[timing.root_transfer[left]]))
        since = np.concatenate((timing.end_first_ps[came], timing.root_from_ps[left]))
        until = np.concatenate((timing.end_arrival_ps[came], timing.root_to_ps[left]))
        row = np.concatenate((came, left))
        kept, stay = np.unique(chunk, return_inverse=True)
        first, last = np.full(len(kept), NEVER), np.zeros(len(kept), dtype=np.int64)
        np.minimum.at(first, stay, since)
        np.maximum.at(last, stay, until)
        for x, y in zip(*_disjoint_pairs(first, last), strict=True):
            if not np.isin([kept[x] * nodes + node, kept[y] * nodes + node], own).any():
                a = np.repeat(np.flatnonzero(stay == x), np.sum(stay == y))
                b = np.tile(np.flatnonzero(stay == y), np.sum(stay == x))
                result += _buffer_pairs(row, len(came), a, b)
    return result


def _buffer_pairs(row: I64, came: int, a: I64, b: I64) -> list[RowPairs]:
    """Pairs of arrivals, the first `came` entries of `row`, and of sends, the other entries."""
    result = []
    for x_came, sooner in ((True, "end_arrival_ps"), (False, "root_to_ps")):
        for y_came, later in ((True, "end_first_ps"), (False, "root_from_ps")):
            both = ((a < came) == x_came) & ((b < came) == y_came)
            result.append(RowPairs("buffer", sooner, row[a[both]], later, row[b[both]]))
    return result


def _send_before_next_arrival(schedule: Schedule, timing: Timing) -> list[RowPairs]:
    """Data that arrives after a partial reduction or the only copy was sent still does; arrivals keep their order."""
    order, end_key, root_key = deliveries(schedule)
    low, high = _range(end_key, root_key)
    reduced = (np.diff(schedule.demand.source_ptr) > 1)[schedule.chunk[timing.root_transfer]]
    size = np.where(reduced | ~schedule.topology.copies[timing.root_node], high - low, 0)
    root = np.repeat(np.arange(len(root_key)), size)
    end = order[np.repeat(low, size) + np.arange(len(root)) - np.repeat(np.cumsum(size) - size, size)]
    later = timing.end_arrival_ps[end] > timing.root_from_ps[root]
    kind = "reduction order"
    sends = RowPairs(kind, "root_from_ps", root[later], "end_arrival_ps", end[later], 1)
    chain = np.flatnonzero(end_key[1:] == end_key[:-1])  # consecutive deliveries at one node
    x, y = order[chain], order[chain + 1]
    mixed = ~(schedule.reduce[timing.end_transfer[x]] & schedule.reduce[timing.end_transfer[y]])
    x, y = x[mixed], y[mixed]
    at_equal_times = (x > y).astype(np.int64)  # the first row comes first
    return [sends, RowPairs(kind, "end_arrival_ps", x, "end_arrival_ps", y, at_equal_times)]


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


def stages_of(schedule: Schedule) -> NDArray[np.int64]:
    """Return how many transfers must come before each one, in a chain; transfers of one message have the same stage."""
    root, end = feeding(schedule)
    leader, timing = schedule.leader, schedule.timing
    before, after = leader[timing.end_transfer[end]], leader[timing.root_transfer[root]]
    stage = np.zeros(len(schedule), dtype=np.int64)
    while True:
        later = stage.copy()
        np.maximum.at(later, after, stage[before] + 1)
        if np.array_equal(later, stage):
            return stage[leader]
        stage = later


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
