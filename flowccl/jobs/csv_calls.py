"""CSV: one row for each call or each kind of call, for everything that has no reader of its own.

Columns are found by their names: collective, bytes, and microseconds are needed; ranks (a count, or a list such as
"0-7" or "0 8 16 24"), count (how often), rank, start_us, step and root may be there. Without a header, the columns are
collective, bytes, ranks, count, microseconds.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

from flowccl.errors import InputError
from flowccl.jobs.calls import Calls, CallsBuilder, Group
from flowccl.jobs.names import collective_of, plain
from flowccl.jobs.text import DAMAGED, lines
from flowccl.jobs.values import nanoseconds, whole
from flowccl.units import parse_bytes

FORMAT = "csv"
_ORDER = ("collective", "bytes", "ranks", "count", "microseconds")
_NAMES = {
    "collective": "collective",
    "coll": "collective",
    "op": "collective",
    "bytes": "bytes",
    "sizebytes": "bytes",
    "size": "bytes",
    "ranks": "ranks",
    "group": "ranks",
    "count": "count",
    "calls": "count",
    "microseconds": "microseconds",
    "us": "microseconds",
    "timeus": "microseconds",
    "durationus": "microseconds",
    "rank": "rank",
    "startus": "start",
    "sequence": "sequence",
    "root": "root",
    "dtype": "dtype",
}
_MOST_RANKS = 1 << 20


def recognized(start: bytes, name: str) -> bool:
    """Whether a file looks like this format."""
    first = start.decode("utf-8", "replace").lstrip("\ufeff").split("\n", 1)[0]
    cells = [cell.strip() for cell in first.split(",")]
    known = {_NAMES.get(plain(cell)) for cell in cells}
    return {"collective", "bytes"} <= known or (len(cells) >= 3 and collective_of(cells[0]) is not None)


def read(path: Path) -> Calls:
    """Return the calls of a CSV file."""
    table = CallsBuilder(str(path), FORMAT)
    source = (line.replace("\0", "") for line in lines(path, table.skipped))
    rows = csv.reader(line for line in source if line.strip() and not line.startswith("#"))
    columns: dict[str, int] = {}
    groups: dict[str, int | None] = {}
    names: dict[str, str | None] = {}
    sizes: dict[str, int | None] = {}
    for row in _safe(rows, table):
        if not columns:
            columns = _columns(row)
            if "collective" in columns and plain(row[columns["collective"]].lstrip("\ufeff")) in _NAMES:
                continue
        _add(table, row, columns, groups, names, sizes)
    return table.done()


def _safe(rows: "Iterator[list[str]]", table: CallsBuilder) -> Iterator[list[str]]:
    while True:
        try:
            yield next(rows)
        except StopIteration:
            return
        except csv.Error:
            table.skipped[f"{DAMAGED} line"] += 1


def _columns(first: list[str]) -> dict[str, int]:
    """The place of each column, from the header or the usual order."""
    names = [_NAMES.get(plain(cell)) for cell in first]
    if "collective" in names and "bytes" in names:
        return {name: at for at, name in reversed(list(enumerate(names))) if name is not None}
    return {name: at for at, name in enumerate(_ORDER)}


def _add(
    table: CallsBuilder,
    row: list[str],
    columns: dict[str, int],
    groups: dict[str, int | None],
    names: dict[str, str | None],
    sizes: dict[str, int | None],
) -> None:
    def cell(name: str) -> str:
        at = columns.get(name, len(row))
        return row[at] if at < len(row) else ""

    word, size, members = cell("collective"), cell("bytes"), cell("ranks")
    if word not in names:
        names[word] = collective_of(word)
    if size not in sizes:
        sizes[size] = _size(size)
    if members not in groups:
        ranks = _ranks(members)
        groups[members] = None if ranks is None else table.group(ranks)
    collective, size_bytes, group = names[word], sizes[size], groups[members]
    if collective is None:
        table.skipped[f"unknown collective {word[:30]!r}"] += 1
        return
    if size_bytes is None or group is None:
        table.skipped[f"{DAMAGED} line: the {'bytes' if size_bytes is None else 'ranks'} cannot be read"] += 1
        return
    time, repeat = cell("microseconds"), whole(cell("count") or 1, 0)
    duration = nanoseconds(time) if time.strip() else -1
    if (time.strip() and duration < 0) or not 0 < repeat <= 10_000_000:
        table.skipped[f"{DAMAGED} line: the {'count' if duration >= 0 else 'microseconds'} cannot be read"] += 1
        return
    table.add(
        collective,
        size_bytes,
        group,
        start_ns=nanoseconds(cell("start")) if cell("start") else -1,
        duration_ns=duration,
        rank=whole(cell("rank")),
        sequence=whole(cell("sequence")),
        root=whole(cell("root")),
        dtype=cell("dtype").strip(),
        repeat=repeat,
    )


def _size(text: str) -> int | None:
    try:
        return parse_bytes(text)
    except InputError:
        return None


def _ranks(text: str) -> Group | None:
    """A count of ranks, or the ranks themselves: "0-7", "0 8 16 24"."""
    text = text.strip()
    if text.isdecimal() and len(text) < 8:
        return Group(int(text)) if 2 <= int(text) <= _MOST_RANKS else None
    found: list[int] = []
    for part in text.replace(",", " ").replace(";", " ").split():
        ends = part.split("-")
        if len(ends) > 2 or not all(end.isdecimal() and len(end) < 8 for end in ends):
            return None
        if not 0 <= int(ends[-1]) - int(ends[0]) <= _MOST_RANKS:
            return None
        found += range(int(ends[0]), int(ends[-1]) + 1)
    return Group(len(found), tuple(found)) if len(found) > 1 and len(set(found)) == len(found) else None
