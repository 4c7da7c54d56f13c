"""The table of calls: what every reader makes of a log, one row for each rank of each call."""

from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from flowccl.jobs.names import CODE, COLLECTIVES, NO_DATA

UNKNOWN = -1
"""In a column: the log does not say it."""
_LARGEST = 2**60
_COLUMNS = {
    "collective": np.int8,
    "size_bytes": np.int64,
    "group": np.int32,
    "start_ns": np.int64,
    "duration_ns": np.int64,
    "rank": np.int32,
    "sequence": np.int64,
    "root": np.int32,
    "splits": np.int32,
    "dtype": np.int8,
    "source": np.int16,
}
_START = list(_COLUMNS).index("start_ns")  # the duration stands behind the start


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: its size, and its ranks where they are known (they are then the ranks of the job).

    `name` is that of the log; a communicator that is known by its name only has one per process.
    """

    size: int
    ranks: tuple[int, ...] | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class LogSource:
    """A file: its format, the rows that were read, and what was skipped and why."""

    path: str
    format: str
    rows: int
    skipped: dict[str, int]
    notes: tuple[str, ...] = ()
    host_starts: bool = False
    """Whether starts are the times at which the host issued the calls: they order calls, but data move later."""


@dataclass(frozen=True, eq=False)
class Calls:
    """Calls of a job as columns; one row for each rank of each call. Times are whole nanoseconds, -1 is unknown.

    `size_bytes` is the size as nccl-tests counts it. `splits` is a row of `split_bytes`: the bytes that the rank sends
    to every rank of the group. `sequence` numbers the calls of a group where the log does. `root` is a rank of the job;
    of a send, the group is (from, to). In-place calls and average or pre-multiplied reductions are those of their
    collective. `steps_ns` are the starts of marked training steps.
    """

    collective: NDArray[np.int8]
    size_bytes: NDArray[np.int64]
    group: NDArray[np.int32]
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    rank: NDArray[np.int32]
    sequence: NDArray[np.int64]
    root: NDArray[np.int32]
    splits: NDArray[np.int32]
    dtype: NDArray[np.int8]
    source: NDArray[np.int16]
    groups: tuple[Group, ...]
    split_bytes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    sources: tuple[LogSource, ...] = ()
    steps_ns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.collective)

    def names(self) -> list[str]:
        """The collective of each row by name."""
        return [COLLECTIVES[code] for code in self.collective.tolist()]

    def moving_since_ns(self) -> NDArray[np.int64]:
        """When each row began on its GPU; -1 where the log has only the time at which the host issued the call."""
        of_host = np.array([source.host_starts for source in self.sources] + [False], dtype=np.bool_)
        found: NDArray[np.int64] = np.where(of_host[self.source], UNKNOWN, self.start_ns)
        return found

    def take(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> "Calls":
        """The table with some of its rows."""
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        rest = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _COLUMNS}
        return Calls(**columns, **rest)


class CallsBuilder:
    """Collects rows of one file; a reader adds calls, and says what it skips and why."""

    def __init__(self, path: str, format: str) -> None:
        self.path, self.format = path, format
        self.skipped: Counter[str] = Counter()
        self.notes: list[str] = []
        self.host_starts = False
        self.steps_ns: list[int] = []
        self._rows = array("q")  # one row behind the other: a million calls are 88 MB
        self._groups: dict[Group, int] = {}
        self._splits: dict[tuple[int, ...], int] = {}
        self._dtypes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._rows) // len(_COLUMNS)

    def group(self, group: Group) -> int:
        """Return the number of a group."""
        return self._groups.setdefault(group, len(self._groups))

    def add(
        self,
        collective: str,
        size_bytes: int,
        group: int,
        *,
        start_ns: int = UNKNOWN,
        duration_ns: int = UNKNOWN,
        rank: int = UNKNOWN,
        sequence: int = UNKNOWN,
        root: int = UNKNOWN,
        splits: tuple[int, ...] = (),
        dtype: str = "",
        repeat: int = 1,
    ) -> None:
        """Add a call of one rank, `repeat` times; impossible values are skipped and counted."""
        if not 0 <= size_bytes <= _LARGEST or not (size_bytes or collective == "barrier"):
            self.skipped["the size is 0 or out of range"] += repeat
            return
        if duration_ns > _LARGEST or start_ns > 2**62 or abs(sequence) > _LARGEST or abs(rank) > 2**30:
            self.skipped["a number is out of range"] += repeat
            return
        which = self._splits.setdefault(splits, len(self._splits)) if splits else UNKNOWN
        row = (
            CODE[collective],
            size_bytes,
            group,
            start_ns if start_ns >= 0 else UNKNOWN,
            duration_ns if duration_ns >= 0 else UNKNOWN,
            rank if rank >= 0 else UNKNOWN,
            sequence,
            root if root >= 0 else UNKNOWN,
            which,
            self._dtypes.setdefault(dtype[:40], min(len(self._dtypes), 127)),
            0,
        )
        self._rows.extend(row * repeat)

    def reach(self, row: int, start_ns: int, end_ns: int) -> None:
        """Let the time of a row reach from an earlier start or to a later end."""
        first = row * len(_COLUMNS) + _START
        begin = min(self._rows[first], start_ns)
        end = max(self._rows[first] + self._rows[first + 1], end_ns)
        self._rows[first], self._rows[first + 1] = begin, end - begin

    def add_rows(self, other: "CallsBuilder", rows: Iterable[int]) -> None:
        """Add rows of another table of the same file."""
        width, names = len(_COLUMNS), list(_COLUMNS)
        new = {
            names.index("group"): [self.group(group) for group in other._groups],
            names.index("splits"): [self._splits.setdefault(one, len(self._splits)) for one in other._splits],
            names.index("dtype"): [self._dtypes.setdefault(one, min(len(self._dtypes), 127)) for one in other._dtypes],
        }
        for at in rows:
            row = other._rows[at * width : (at + 1) * width]
            for column, numbers in new.items():
                row[column] = numbers[row[column]] if row[column] >= 0 else UNKNOWN
            self._rows.extend(row)

    def add_many(
        self,
        collective: NDArray[np.int64],
        size_bytes: NDArray[np.int64],
        group: NDArray[np.int64],
        start_ns: NDArray[np.int64],
        duration_ns: NDArray[np.int64],
        rank: NDArray[np.int64],
        sequence: NDArray[np.int64],
    ) -> None:
        """Add many calls at once, as columns of the table; impossible values are skipped and counted."""
        sized = (size_bytes > 0) & (size_bytes <= _LARGEST) | (collective == NO_DATA)
        fits = (duration_ns <= _LARGEST) & (start_ns <= 2**62) & (np.abs(sequence) <= _LARGEST) & (rank <= 2**30)
        for what, bad in (("the size is 0 or out of range", ~sized), ("a number is out of range", sized & ~fits)):
            if bad.any():
                self.skipped[what] += int(bad.sum())
        good = sized & fits
        rows = np.full((int(good.sum()), len(_COLUMNS)), UNKNOWN, dtype=np.int64)
        given = {"collective": collective, "size_bytes": size_bytes, "group": group, "sequence": sequence}
        given |= {"start_ns": start_ns, "duration_ns": duration_ns, "rank": rank}
        for at, name in enumerate(_COLUMNS):
            if name in given:
                kept = given[name][good]
                rows[:, at] = kept if name == "sequence" else np.maximum(kept, UNKNOWN)
        rows[:, list(_COLUMNS).index("source")] = 0
        rows[:, list(_COLUMNS).index("dtype")] = self._dtypes.setdefault("", len(self._dtypes))
        self._rows.frombytes(rows.tobytes())

    def left_out(self) -> int:
        """Return how many numbers of calls are left out between others.

        Some libraries number the calls of a group, others those of each collective of a group: the fewer count.
        """
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, len(_COLUMNS))
        names = list(_COLUMNS)
        number = rows[:, names.index("sequence")]
        rows, number = rows[number >= 0], number[number >= 0]
        found = []
        for keys in (("group", "rank"), ("group", "rank", "collective")):
            columns = [number, *(rows[:, names.index(key)] for key in keys)]
            order = np.lexsort(columns)
            step = np.diff(number[order])
            same = np.all([np.diff(column[order]) == 0 for column in columns[1:]], axis=0)
            found.append(int((step[same & (step > 1)] - 1).sum()))
        return min(found)

    def done(self, *, base_ns: int = 0, rank: int = UNKNOWN, groups: Mapping[str, Group] | None = None) -> Calls:
        """Return the table of this file.

        Facts that stand behind the calls in the file: the base of all starts, the rank, and groups by name.
        """
        matrix = np.array(self._rows, dtype=np.int64).reshape(-1, len(_COLUMNS))
        columns: dict[str, NDArray[Any]] = {
            name: matrix[:, at].astype(kind) for at, (name, kind) in enumerate(_COLUMNS.items())
        }
        columns["start_ns"][columns["start_ns"] >= 0] += base_ns
        columns["rank"][columns["rank"] < 0] = rank
        known = {} if groups is None else groups
        named = tuple(known.get(group.name, group) if group.ranks is None else group for group in self._groups)
        source = LogSource(self.path, self.format, len(matrix), dict(self.skipped), tuple(self.notes), self.host_starts)
        return Calls(
            **columns,
            groups=named,
            split_bytes=tuple(self._splits),
            dtypes=tuple(self._dtypes),
            sources=(source,),
            steps_ns=np.array(sorted(self.steps_ns), dtype=np.int64) + base_ns,
        )


def note_gaps(table: CallsBuilder) -> None:
    """Add a note if numbers of calls are left out between others, more than were skipped: calls were lost."""
    missing = table.left_out() - sum(table.skipped.values())
    if missing > 0:
        table.notes.append(f"the numbers of {missing:,} calls between others are not in the file: it lost them")


def concatenated(tables: Sequence[Calls]) -> Calls:
    """Return one table of all files; equal groups become one."""
    groups: dict[Hashable, int] = {}
    splits: dict[Hashable, int] = {}
    dtypes: dict[Hashable, int] = {}
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in _COLUMNS}
    sources: list[LogSource] = []
    for table in tables:
        new = {
            "group": _renumbered(table.group, table.groups, groups),
            "splits": _renumbered(table.splits, table.split_bytes, splits),
            "dtype": _renumbered(table.dtype, table.dtypes, dtypes),
            "source": table.source.astype(np.int64) + len(sources),
        }
        for name in _COLUMNS:
            parts[name].append(new.get(name, getattr(table, name)))
        sources += table.sources
    columns: dict[str, NDArray[Any]] = {
        name: np.concatenate([part.astype(kind) for part in parts[name]]) if tables else np.zeros(0, kind)
        for name, kind in _COLUMNS.items()
    }
    steps = [table.steps_ns for table in tables if len(table.steps_ns)]
    return Calls(
        **columns,
        groups=tuple(cast(dict[Group, int], groups)),
        split_bytes=tuple(cast(dict[tuple[int, ...], int], splits)),
        dtypes=tuple(cast(dict[str, int], dtypes)),
        sources=tuple(sources),
        steps_ns=max(steps, key=len) if steps else np.zeros(0, dtype=np.int64),
    )


def _renumbered(column: NDArray[Any], own: Iterable[Hashable], every: dict[Hashable, int]) -> NDArray[np.int64]:
    """The column with the numbers that its values have in the table of all files."""
    places = np.array([every.setdefault(value, len(every)) for value in own] + [UNKNOWN], dtype=np.int64)
    found: NDArray[np.int64] = places[column]  # -1, unknown, is the last place
    return found
