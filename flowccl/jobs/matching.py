"""Calls across ranks: which rows belong to one call, how far clocks differ, and when a call really started.

A call starts when its last rank arrives. The clocks of ranks are aligned by the ends of calls that end on all ranks at
about the same time.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.jobs.calls import Calls
from flowccl.jobs.names import CODE, COMMON_ENDS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_UNEVEN = CODE["alltoallv"]


@dataclass(frozen=True, eq=False)
class Clocks:
    """What must be subtracted from the clock of each rank, and the remaining uncertainty (95 % of all ends).

    `uncertainty_ns` is None where no two ranks have calls in common.
    """

    ranks: Ints
    offset_ns: Floats
    uncertainty_ns: float | None


@dataclass(frozen=True, eq=False)
class MatchedCalls:
    """One row for each call of a group. Times are nanoseconds since the first start; nan where unknown.

    `call` is the matched call of each row of the table of calls. `start_ns` is the arrival of the last rank,
    `duration_ns` the time from there to the end, `waiting_ns` how long ranks waited for the last one on average, and
    `ranks` how many ranks the logs have.
    """

    call: Ints
    collective: NDArray[np.int8]
    size_bytes: Ints
    group: Ints
    root: Ints
    start_ns: Floats
    duration_ns: Floats
    waiting_ns: Floats
    ranks: Ints
    clocks: Clocks
    unmatched: int

    def __len__(self) -> int:
        return len(self.collective)

    @property
    def end_ns(self) -> Floats:
        """When each call ended."""
        return self.start_ns + self.duration_ns


def matched(calls: Calls) -> MatchedCalls:
    """Return the calls with the rows of all their ranks."""
    call, count, unmatched = _call_of_rows(calls)
    order = np.argsort(call, kind="stable")
    first = order[np.searchsorted(call[order], np.arange(count))]
    began = calls.moving_since_ns()
    known = (began >= 0) & (calls.duration_ns >= 0)
    zero = int(began[known].min()) if known.any() else 0
    start = np.where(known, began - zero, np.nan).astype(np.float64)
    duration = np.where(calls.duration_ns >= 0, calls.duration_ns, np.nan).astype(np.float64)
    clocks = aligned(calls, call, start + duration)
    own = start - _offset_of(calls, clocks)
    size = np.zeros(count, dtype=np.int64)
    np.maximum.at(size, call, calls.size_bytes)
    root = np.full(count, -1, dtype=np.int64)
    np.maximum.at(root, call, calls.root)
    last, took, waiting = _times(calls, call, count, own, duration)
    return MatchedCalls(
        call,
        calls.collective[first],
        size,
        calls.group[first].astype(np.int64),
        root,
        last,
        took,
        waiting,
        np.bincount(call, minlength=count),
        clocks,
        unmatched,
    )


def _call_of_rows(calls: Calls) -> tuple[Ints, int, int]:
    """The call of each row, the number of calls, and the rows whose group has other ranks without this call.

    Rows of one call have the same group, collective and size, and the same number: that of the log, else they are the
    k-th such call of their rank. A row without a rank is a call of its own.
    """
    size = np.where(calls.collective == _UNEVEN, 0, calls.size_bytes)
    stream = _numbered(calls.group.astype(np.int64), calls.collective.astype(np.int64), size)
    number = calls.sequence.copy()
    counted = number < 0
    if counted.any():
        rows = np.flatnonzero(counted)
        place = np.where(calls.start_ns[rows] >= 0, calls.start_ns[rows], rows)
        order = rows[np.lexsort((place, calls.rank[rows], stream[rows]))]
        new = np.ones(len(order), dtype=np.bool_)
        new[1:] = (stream[order][1:] != stream[order][:-1]) | (calls.rank[order][1:] != calls.rank[order][:-1])
        begin = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
        number[order] = np.arange(len(order)) - begin
    alone = np.flatnonzero(calls.rank < 0)
    number[alone] = -1 - np.arange(len(alone))
    call = _numbered(stream, number)
    count = int(call.max()) + 1 if len(call) else 0
    ranks = np.bincount(call, minlength=count)
    widest = np.zeros(int(stream.max()) + 1 if len(stream) else 0, dtype=np.int64)
    np.maximum.at(widest, stream, ranks[call])
    return call, count, int((ranks[call] < widest[stream]).sum())


def _numbered(*columns: Ints) -> Ints:
    """A number for every distinct row of some columns, in the order of the columns."""
    order = np.lexsort(columns[::-1])
    new = np.zeros(len(order), dtype=np.int64)
    for column in columns:
        ordered = column[order]
        new[1:] |= ordered[1:] != ordered[:-1]
    found = np.empty(len(order), dtype=np.int64)
    found[order] = np.cumsum(new)
    return found


def aligned(calls: Calls, call: Ints, end_ns: Floats) -> Clocks:
    """Return the offsets of the clocks: medians of the differences of ends between pairs of ranks, least squares."""
    usable = np.isfinite(end_ns) & (calls.rank >= 0) & np.isin(calls.collective, list(COMMON_ENDS))
    rows = np.flatnonzero(usable)
    ranks = np.unique(calls.rank[rows]).astype(np.int64)
    none = Clocks(ranks, np.zeros(len(ranks)), None)
    if len(ranks) < 2:
        return none
    order = rows[np.lexsort((calls.rank[rows], call[rows]))]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = call[order][1:] != call[order][:-1]
    reference = order[np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))]
    others = ~new
    if not others.any():
        return none
    a = np.searchsorted(ranks, calls.rank[reference[others]])
    b = np.searchsorted(ranks, calls.rank[order[others]])
    difference = end_ns[order[others]] - end_ns[reference[others]]
    offset = _solved(len(ranks), *_medians(a, b, difference, len(ranks)))
    left = np.abs(difference - (offset[b] - offset[a]))
    return Clocks(ranks, offset, float(np.quantile(left, 0.95)))


def _medians(a: Ints, b: Ints, difference: Floats, ranks: int) -> tuple[Ints, Ints, Floats, Floats]:
    """The median difference and the number of calls of each pair of ranks."""
    pair = a * ranks + b
    order = np.lexsort((difference, pair))
    keys, start, count = np.unique(pair[order], return_index=True, return_counts=True)
    low, high = start + (count - 1) // 2, start + count // 2
    middle = (difference[order][low] + difference[order][high]) / 2
    return keys // ranks, keys % ranks, middle, count.astype(np.float64)


def _solved(ranks: int, a: Ints, b: Ints, difference: Floats, weight: Floats) -> Floats:
    """Offsets whose differences are those of the pairs, as well as possible; the median offset is 0."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.linalg import lsqr

    rows, scale = np.arange(len(a)), np.sqrt(weight)
    matrix = csr_matrix(
        (np.concatenate((scale, -scale)), (np.concatenate((rows, rows)), np.concatenate((b, a)))), (len(a), ranks)
    )
    found: Floats = lsqr(matrix, difference * scale, atol=1e-14, btol=1e-14, iter_lim=20 * ranks)[0]
    return found - float(np.median(found))


def _offset_of(calls: Calls, clocks: Clocks) -> Floats:
    if not len(clocks.ranks):
        return np.zeros(len(calls))
    place = np.minimum(np.searchsorted(clocks.ranks, calls.rank), len(clocks.ranks) - 1)
    return np.where(clocks.ranks[place] == calls.rank, clocks.offset_ns[place], 0.0)


def _times(calls: Calls, call: Ints, count: int, start: Floats, duration: Floats) -> tuple[Floats, Floats, Floats]:
    """Arrival of the last rank, time from there to the end, and the mean wait, of each call.

    Where all ranks end together, the time is that of the rank that arrived last, on its own clock. Without starts it
    is the shortest one, for the same reason. In other collectives, the last end counts.
    """
    arrived, ended = np.where(np.isfinite(start), start, -np.inf), start + duration
    last, end = np.full(count, -np.inf), np.full(count, -np.inf)
    np.maximum.at(last, call, arrived)
    np.maximum.at(end, call, np.where(np.isfinite(ended), ended, -np.inf))
    shortest = np.full(count, np.inf)
    is_last = np.isfinite(duration) & ((arrived >= last[call]) | ~np.isfinite(start))
    np.minimum.at(shortest, call, np.where(is_last, duration, np.inf))
    common = np.zeros(count, dtype=np.bool_)
    common[call] = np.isin(calls.collective, list(COMMON_ENDS))
    with_time = np.isfinite(last) & np.isfinite(end)
    with np.errstate(invalid="ignore"):
        took = np.where(common | ~with_time, shortest, np.maximum(end - last, 0.0))
    known = np.isfinite(duration)
    total, rows = np.bincount(call[known], duration[known], count), np.bincount(call[known], minlength=count)
    with np.errstate(invalid="ignore", divide="ignore"):
        by_start = last - np.bincount(call, np.where(np.isfinite(start), start, 0.0), count) / np.bincount(call)
        waiting = np.where(with_time, by_start, total / rows - took)
    waiting = np.where(rows > 1, np.maximum(waiting, 0.0), 0.0)
    return (
        np.where(np.isfinite(last), last, np.nan),
        np.where(np.isfinite(took), took, np.nan),
        np.where(rows > 0, waiting, np.nan),
    )
