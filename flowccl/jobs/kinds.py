"""Kinds of calls: the same collective, size class and group; each is one row of an audit."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.jobs.calls import Calls
from flowccl.jobs.matching import Floats, Ints, MatchedCalls
from flowccl.jobs.names import COLLECTIVES

_MOST_SIZES = 64  # sizes of one collective and group that are kinds of their own; more are put into classes
_CLASSES = 4  # size classes per factor of 2, where there are classes
_BESIDE = 0.5  # part of the calls during which the calls of another group run, so that both count as simultaneous
Matrix = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Kind:
    """Calls of one collective, size class and group.

    `group` are ranks of the job. `least_bytes` and `most_bytes` are the sizes of the class, `size_bytes` its median.
    Times are nanoseconds: medians of the calls, nan where no call has a time; `spread_ns` is the distance between the
    quartiles. `matrix` has the mean bytes that each rank of the group sends to each other one, for an alltoallv.
    `calls` are rows of the matched calls. `exposed` is the part of the time in which no other call of the same rank
    runs.
    """

    collective: str
    group: tuple[int, ...]
    root: int
    size_bytes: int
    least_bytes: int
    most_bytes: int
    calls: Ints
    measured_ns: float
    total_ns: float
    waiting_ns: float
    ranks_seen: float
    exposed: float
    matrix: Matrix | None = None
    spread_ns: float = 0.0

    @property
    def count(self) -> int:
        """The number of calls."""
        return len(self.calls)


def kinds_of(calls: Calls, found: MatchedCalls, alone_ns: Floats) -> list[Kind]:
    """Return the kinds of all calls, in the order of their first call."""
    size = _size_classes(found)
    key = np.stack((found.collective.astype(np.int64), size, found.group, found.root), axis=1)
    if not len(key):
        return []
    _, first, kind = np.unique(key, axis=0, return_index=True, return_inverse=True)
    kind = kind.reshape(-1)
    order = np.argsort(kind, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(kind))[:-1])
    rows = np.argsort(kind[found.call], kind="stable")
    row_parts = np.split(rows, np.cumsum(np.bincount(kind[found.call], minlength=len(parts)))[:-1])
    exposed = _exposed(calls, kind[found.call], alone_ns, len(parts))
    return [
        _kind(calls, found, parts[at], row_parts[at], float(exposed[at])) for at in np.argsort(first, kind="stable")
    ]


def _size_classes(found: MatchedCalls) -> Ints:
    """The size of each call, or its class where a collective of a group has very many sizes.

    An alltoallv has another size in every call, so it always has classes.
    """
    classes = np.round(np.log2(np.maximum(found.size_bytes, 1).astype(np.float64)) * _CLASSES).astype(np.int64)
    stream = found.group * len(COLLECTIVES) + found.collective
    result = found.size_bytes.copy()
    uneven = found.collective == COLLECTIVES.index("alltoallv")
    pairs = np.unique(np.stack((stream, found.size_bytes), axis=1), axis=0)[:, 0]
    names, sizes = np.unique(pairs, return_counts=True)
    many = np.isin(stream, names[sizes > _MOST_SIZES]) | uneven
    result[many] = -1 - classes[many]
    return result


def _exposed(calls: Calls, kind: Ints, alone_ns: Floats, kinds: int) -> Floats:
    known = np.isfinite(alone_ns) & (calls.duration_ns > 0)
    alone = np.bincount(kind[known], alone_ns[known], kinds)
    every = np.bincount(kind[known], calls.duration_ns[known].astype(np.float64), kinds)
    return np.where(every > 0, alone / np.maximum(every, 1e-9), 1.0)


def _kind(calls: Calls, found: MatchedCalls, part: Ints, rows: Ints, exposed: float) -> Kind:
    at = int(part[0])
    group = calls.groups[int(found.group[at])].ranks or ()
    name = COLLECTIVES[int(found.collective[at])]
    took = found.duration_ns[part]
    known = took[np.isfinite(took)]
    waits = found.waiting_ns[part][np.isfinite(found.waiting_ns[part])]
    sizes = found.size_bytes[part]
    return Kind(
        name,
        tuple(group),
        int(found.root[at]),
        int(np.median(sizes)),
        int(sizes.min()),
        int(sizes.max()),
        part,
        float(np.median(known)) if len(known) else float("nan"),
        float(known.sum()),
        float(np.mean(waits)) if len(waits) else 0.0,
        float(found.ranks[part].mean()),
        exposed,
        _matrix(calls, rows, tuple(group)) if name == "alltoallv" else None,
        float(np.subtract(*np.quantile(known, (0.75, 0.25)))) if len(known) else 0.0,
    )


def _matrix(calls: Calls, rows: Ints, group: tuple[int, ...]) -> Matrix | None:
    """The mean bytes from rank to rank; rows of ranks that are not in the logs are like the mean of the others."""
    place = {rank: at for at, rank in enumerate(group)}
    total = np.zeros((len(group), len(group)))
    seen = np.zeros(len(group))
    usable = rows[calls.splits[rows] >= 0]
    pairs, times = np.unique(np.stack((calls.rank[usable], calls.splits[usable])), axis=1, return_counts=True)
    for (rank, split), repeated in zip(pairs.T.tolist(), times.tolist(), strict=True):
        sent = calls.split_bytes[split]
        if rank in place and len(sent) == len(group):
            total[place[rank]] += np.array(sent, dtype=np.float64) * repeated
            seen[place[rank]] += repeated
    if not seen.any():
        return None
    total[seen > 0] /= seen[seen > 0][:, None]
    total[seen == 0] = total[seen > 0].mean(axis=0)
    np.fill_diagonal(total, 0)
    mean = np.rint(total).astype(np.int64)
    return mean if mean.any() else None


def simultaneous(kinds: list[Kind], found: MatchedCalls) -> list[tuple[int, ...]]:
    """Return for each kind the kinds of other, disjoint groups whose calls run at the same time, itself included."""
    families: dict[tuple[str, int, int], list[int]] = {}
    for at, kind in enumerate(kinds):
        if kind.collective not in ("send", "barrier") and kind.group:
            families.setdefault((kind.collective, kind.size_bytes, len(kind.group)), []).append(at)
    result: list[tuple[int, ...]] = [(at,) for at in range(len(kinds))]
    for members in families.values():
        if len(members) < 2:
            continue
        for at in members:
            taken, beside = set(kinds[at].group), [at]
            for other in members:
                disjoint = not taken & set(kinds[other].group)
                if other != at and disjoint and _runs_beside(kinds[at], kinds[other], found):
                    taken |= set(kinds[other].group)
                    beside.append(other)
            result[at] = tuple(sorted(beside))
    return result


def _runs_beside(one: Kind, other: Kind, found: MatchedCalls) -> bool:
    """Whether most calls of a kind have a call of the other kind at their middle."""
    start, end = found.start_ns[other.calls], found.end_ns[other.calls]
    order = np.argsort(start, kind="stable")
    middle = (found.start_ns[one.calls] + found.end_ns[one.calls]) / 2
    known = np.isfinite(middle)
    if not known.any() or not np.isfinite(end).all():
        return False
    before = np.searchsorted(start[order], middle[known], side="right") - 1
    inside = (before >= 0) & (end[order][np.maximum(before, 0)] >= middle[known])
    return float(inside.mean()) > _BESIDE


def window_ns(kinds: list[Kind], beside: tuple[int, ...], found: MatchedCalls) -> float:
    """Return the median time from the first start to the last end of calls that run together."""
    count = min(kinds[at].count for at in beside)
    starts = np.stack([np.sort(found.start_ns[kinds[at].calls])[:count] for at in beside])
    ends = np.stack([np.sort(found.end_ns[kinds[at].calls])[:count] for at in beside])
    return float(np.median(ends.max(axis=0) - starts.min(axis=0)))
