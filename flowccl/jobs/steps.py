"""Training steps and overlap: the period of the calls of a rank, and how much of its time they really take."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.jobs.calls import Calls
from flowccl.jobs.matching import Floats, Ints, MatchedCalls

_MOST_PERIODS = 400  # periods that are tried
_SAME = 0.95  # part of the calls that must repeat after a period
_LEAST_STEPS = 2.5  # repetitions that make a period


@dataclass(frozen=True, slots=True)
class Steps:
    """The number of steps in the logs, their length where it is known, and how both were found."""

    count: float
    step_ns: float | None
    how: str


def steps_of(calls: Calls, found: MatchedCalls, given: int | None = None) -> Steps:
    """Return the steps: as given, as marked in the trace, or from the period of the calls of one rank."""
    span = _span_ns(found)
    if given is not None:
        return Steps(given, span / given if span else None, "as given")
    marks = calls.steps_ns
    if len(marks) > 1:
        step = float(np.median(np.diff(marks)))
        return Steps(len(marks), step, f"{len(marks)} steps are marked in the trace")
    rows = _rows_of_one_rank(calls)
    if not len(rows):
        return Steps(1, span, "the calls name no ranks: the logs count as one step; give --steps")
    period = _period(_tokens(calls, rows)) or _period(_tokens(calls, rows, with_size=False))
    if period is None:
        return Steps(1, span, "no period found: the logs count as one step; give --steps")
    start = calls.start_ns[rows]
    known = (start >= 0).all()
    step_ns = float(np.median((start[period:] - start[:-period]).astype(np.float64))) if known else None
    return Steps(len(rows) / period, step_ns, f"the calls of a rank repeat after {period}")


def _span_ns(found: MatchedCalls) -> float | None:
    """From the first start to the last end."""
    with_time = np.isfinite(found.start_ns) & np.isfinite(found.duration_ns)
    if not with_time.any():
        return None
    return float(found.end_ns[with_time].max() - found.start_ns[with_time].min()) or None


def _rows_of_one_rank(calls: Calls) -> Ints:
    """The rows of the rank with most calls, in the order of their starts."""
    ranks, count = np.unique(calls.rank[calls.rank >= 0], return_counts=True)
    if not len(ranks):
        return np.zeros(0, dtype=np.int64)
    rows = np.flatnonzero(calls.rank == ranks[np.argmax(count)])
    start = calls.start_ns[rows]
    return rows[np.argsort(start, kind="stable")] if (start >= 0).all() else rows


def _tokens(calls: Calls, rows: Ints, with_size: bool = True) -> Ints:
    columns = [calls.group[rows].astype(np.int64), calls.collective[rows].astype(np.int64)]
    columns += [calls.size_bytes[rows]] if with_size else []
    found: Ints = np.zeros(len(rows), dtype=np.int64)
    for column in columns:
        found = found * (len(rows) + 1) + np.unique(column, return_inverse=True)[1].reshape(-1)
        found = np.unique(found, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return found


def _period(tokens: Ints) -> int | None:
    """The least number of calls after which the calls repeat; a start-up at the front may differ.

    A period is the distance between two equal calls, so only the distances from the last one to those before count.
    """
    count = len(tokens)
    same = np.flatnonzero(tokens[:-1] == tokens[-1])[::-1] if count else np.zeros(0, dtype=np.int64)
    for before in same[:_MOST_PERIODS].tolist():
        period = count - 1 - int(before)
        if period * _LEAST_STEPS > count:
            return None
        later = max(count // 3, period)  # calls at the end that must repeat: a start-up at the front may differ
        if float((tokens[-later:] == tokens[-later - period : -period]).mean()) >= _SAME:
            return period
    return None


@dataclass(frozen=True, eq=False)
class Exposure:
    """The time of each row that no other call of its rank takes as well, and how many rows overlap another one.

    `alone_ns` of k calls that run at the same time is a k-th of that time each, so that all of them add up to the time
    in which a rank communicates.
    """

    alone_ns: Floats
    overlapping: int


def per_rank_ns(calls: Calls, busy: Exposure, ranks: int) -> float:
    """Return the time in which a rank of the job communicates, on average over `ranks`.

    Ranks whose logs are missing count like the others of their groups; a row without a rank is one of its whole group.
    """
    alone, named = np.nan_to_num(busy.alone_ns), calls.rank >= 0
    sizes = np.array([group.size for group in calls.groups], dtype=np.int64)
    everywhere = float((alone * sizes[calls.group])[~named].sum()) if len(calls) else 0.0
    seen = len(np.unique(calls.rank[named & np.isfinite(busy.alone_ns)]))
    used = np.unique(calls.group[named & np.isfinite(busy.alone_ns)]).tolist()
    members = len({rank for at in used for rank in calls.groups[at].ranks or ()})
    return (everywhere + float(alone[named].sum()) * max(members, seen) / max(seen, 1)) / max(ranks, 1)


def exposure(calls: Calls) -> Exposure:
    """Return the time that calls take without counting overlapping ones twice."""
    began = calls.moving_since_ns()
    with_time = (began >= 0) & (calls.duration_ns >= 0) & (calls.rank >= 0)
    alone = np.where(calls.duration_ns >= 0, calls.duration_ns, np.nan).astype(np.float64)
    ranks = np.unique(calls.rank[calls.duration_ns >= 0])
    overlapping = 0
    order = np.argsort(calls.rank, kind="stable")
    ends = np.searchsorted(calls.rank[order], ranks, side="right")
    begins = np.searchsorted(calls.rank[order], ranks, side="left")
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        rows = order[begin:end]
        rows = rows[with_time[rows]]
        if len(rows) > 1:
            share, several = _shared(began[rows], calls.duration_ns[rows])
            alone[rows] = share
            overlapping += several
    return Exposure(alone, overlapping)


def _shared(start: Ints, duration: Ints) -> tuple[Floats, int]:
    """The time of each interval, divided by the number of intervals at each moment; and how many overlap another."""
    zero = int(start.min())
    begin, end = (start - zero).astype(np.float64), (start - zero + duration).astype(np.float64)
    moments = np.unique(np.concatenate((begin, end)))
    first, last = np.searchsorted(moments, begin), np.searchsorted(moments, end)
    step: NDArray[np.int64] = np.zeros(len(moments) + 1, dtype=np.int64)
    np.add.at(step, first, 1)
    np.add.at(step, last, -1)
    active = np.maximum(np.cumsum(step)[: len(moments) - 1], 1)
    passed = np.concatenate(([0.0], np.cumsum(np.diff(moments) / active)))
    share = passed[last] - passed[first]
    return share, int((share < (end - begin) * (1 - 1e-9) - 0.5).sum())
