"""CSV: one row for each call or each kind of call, for everything that has no reader of its own.

Columns are found by their names: collective, bytes, and microseconds are needed; ranks (a count, or a list such as
"0-7" or "0 8 16 24"), count (how often), rank, start_us, step and root may be there. Without a header, the columns are
collective, bytes, ranks, count, microseconds.
"""

import csv
import re
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import InputError
from flowccl.jobs.calls import Calls, CallsBuilder, Group
from flowccl.jobs.names import CODE, collective_of, plain
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
_WORD = re.compile(r"[\w -]+")
_MOST_RANKS = 1 << 20
_NEEDED = ("collective", "bytes", "ranks", "microseconds")
_BATCH = 50_000  # lines that are read at once


def recognized(start: bytes, name: str) -> bool:
    """Whether a file looks like this format."""
    first = start.decode("utf-8", "replace").lstrip("\ufeff").split("\n", 1)[0]
    cells = [cell.strip() for cell in first.split(",")]
    known = {_NAMES.get(plain(cell)) for cell in cells}
    is_row = len(cells) >= 3 and _WORD.fullmatch(cells[0]) is not None and _size(cells[1]) is not None
    return {"collective", "bytes"} <= known or (is_row and collective_of(cells[0]) is not None)


Cells = tuple[str | None, int | None, int | None]


class _KnownCells:
    """Cells that were read before: logs repeat them very often."""

    def __init__(self) -> None:
        self.collectives: dict[str, str | None] = {}
        self.sizes: dict[str, int | None] = {}
        self.groups: dict[str, int | None] = {}

    def cells(
        self, table: CallsBuilder, word: str, size: str, members: str
    ) -> tuple[str | None, int | None, int | None]:
        """The collective, the size and the group of a line; None for what cannot be read."""
        if word not in self.collectives:
            self.collectives[word] = collective_of(word)
        if size not in self.sizes:
            self.sizes[size] = _size(size)
        if members not in self.groups:
            ranks = _ranks(members)
            self.groups[members] = None if ranks is None else table.group(ranks)
        return self.collectives[word], self.sizes[size], self.groups[members]


def read(path: Path) -> Calls:
    """Return the calls of a CSV file."""
    table, known = CallsBuilder(str(path), FORMAT), _KnownCells()
    rows = _safe(csv.reader(_whole_lines(path, table)), table)
    first = next(rows, None)
    if first is None:
        return table.done()
    columns = _columns(first)
    if plain(first[columns["collective"]].lstrip("\ufeff")) not in _NAMES:
        rows = chain([first], rows)
    else:
        _note_columns(table, first, columns)
    rows = _of_width(rows, len(first), table)
    while batch := list(islice(rows, _BATCH)):
        if not _add_batch(table, batch, columns, known):
            for row in batch:
                _add(table, row, columns, known)
    return table.done()


def _whole_lines(path: Path, table: CallsBuilder) -> Iterator[str]:
    """The lines that are no comments. A cell never goes on in the next line: a quote without its end is a damage."""
    for line in lines(path, table.skipped, table.notes):
        if "\0" in line or ('"' in line and line.count('"') % 2):
            table.skipped[f"{DAMAGED} line: a quote without its end, or a zero byte"] += 1
        elif line.strip() and line[0] != "#":
            yield line


def _of_width(rows: Iterator[list[str]], width: int, table: CallsBuilder) -> Iterator[list[str]]:
    """The lines with as many cells as the first one; others are damaged."""
    for row in rows:
        if len(row) == width:
            yield row
        else:
            lost = max(round((len(row) - 1) / max(width - 1, 1)), 1)  # a lost line end joins lines
            table.skipped[f"{DAMAGED} line: {'too few' if len(row) < width else 'too many'} cells"] += lost


def _add_batch(table: CallsBuilder, rows: list[list[str]], columns: dict[str, int], known: _KnownCells) -> bool:
    """Add lines all at once if they are all alike and whole; else say so, and they are read one by one."""
    width = len(rows[0])
    if {"count", "root", "dtype"} & {n for n, at in columns.items() if at < width and rows[0][at] not in ("", "1")}:
        return False
    if max(columns[name] for name in _NEEDED if name in columns) >= width:
        return False
    cells = list(zip(*rows, strict=True))
    if "count" in columns and columns["count"] < width and set(cells[columns["count"]]) - {"1", ""}:
        return False
    if any(set(cells[columns[name]]) - {""} for name in ("root", "dtype") if columns.get(name, width) < width):
        return False
    blank = ("",) * len(rows)
    keys = list(zip(*(cells[columns[name]] if name in columns else blank for name in _NEEDED[:3]), strict=True))
    found = {key: known.cells(table, *key) for key in set(keys)}
    if any(None in value for value in found.values()):
        return False
    try:
        times = {
            name: _numbers(cells[columns[name]]) if columns.get(name, width) < width else np.full(len(rows), -1.0)
            for name in ("microseconds", "start", "rank", "sequence")
        }
    except ValueError:
        return False
    codes = {key: (CODE[value[0] or ""], value[1] or 0, value[2] or 0) for key, value in found.items()}
    table_of = np.array([codes[key] for key in keys], dtype=np.int64)
    start, took = (
        np.where(times[name] >= 0, np.rint(times[name] * 1000), -1).astype(np.int64)
        for name in ("start", "microseconds")
    )
    rank, sequence = (times[name].astype(np.int64) for name in ("rank", "sequence"))
    table.add_many(table_of[:, 0], table_of[:, 1], table_of[:, 2], start, took, rank, sequence)
    return True


def _numbers(cells: tuple[str, ...]) -> NDArray[np.float64]:
    found = np.array(cells, dtype=np.float64)
    if not (np.isfinite(found) & (found >= 0) & (found < 1e15)).all():
        raise ValueError
    return found


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


def _note_columns(table: CallsBuilder, first: list[str], columns: dict[str, int]) -> None:
    """Say which columns are not used, and if there are no times."""
    unknown = [cell.strip()[:30] for cell in first if plain(cell) not in _NAMES]
    if unknown:
        table.notes.append(f"unknown columns are not used: {', '.join(unknown[:5])}")
    if "microseconds" not in columns:
        table.notes.append("there is no column microseconds: the calls have no times")


def _add(table: CallsBuilder, row: list[str], columns: dict[str, int], known: _KnownCells) -> None:
    def cell(name: str) -> str:
        at = columns.get(name, len(row))
        return row[at] if at < len(row) else ""

    word = cell("collective")
    collective, size_bytes, group = known.cells(table, word, cell("bytes"), cell("ranks"))
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
    start = nanoseconds(cell("start")) if cell("start").strip() else -1
    rank, sequence, root = (whole(cell(name)) for name in ("rank", "sequence", "root"))
    for name, value in (("start", start), ("rank", rank), ("sequence", sequence)):
        if value < 0 and cell(name).strip() not in ("", "-1"):
            table.skipped[f"{DAMAGED} line: the {name} cannot be read"] += repeat
            return
    table.add(
        collective,
        size_bytes,
        group,
        start_ns=start,
        duration_ns=duration,
        rank=rank,
        sequence=sequence,
        root=root,
        dtype=cell("dtype").strip(),
        repeat=repeat,
    )


def _size(text: str) -> int | None:
    try:
        return 0 if text.strip() in ("", "0") else parse_bytes(text)
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
