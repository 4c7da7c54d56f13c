"""Output of nccl-tests: a table with one row for each size, or the JSON file of its option -J."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from flowccl.errors import FileError
from flowccl.jobs.calls import Calls, CallsBuilder, Group
from flowccl.jobs.names import bytes_of_type, collective_of
from flowccl.jobs.text import DAMAGED, head, lines, whole_file
from flowccl.jobs.values import nanoseconds, number, whole
from flowccl.wording import counted

FORMAT = "nccl-tests"
_RANK = re.compile(r"#\s+Rank\s+(\d+)")
_NAME = re.compile(r"(\w+_perf)\b|Collective test (?:starting|concluded): (\w+)")
_ROW = re.compile(r"\s*(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+)\s+(\S.*)")
_MAX_BYTES = 200_000_000
_CELLS = 4  # time, algbw, busbw and #wrong, out of place and in place
_NUMBERS = 5  # a line with so many numbers is a row


def recognized(start: bytes, name: str) -> bool:
    """Whether a file looks like this format."""
    table = b"#" in start and (b"algbw" in start or b"nThread" in start)
    return table or (start.lstrip()[:1] == b"{" and b'"out_of_place"' in start)


def read(path: Path) -> Calls:
    """Return the calls of a run: of each size, the time out of place and in place."""
    table = CallsBuilder(str(path), FORMAT)
    with_json = _json(path)
    if with_json is not None:
        _from_json(table, with_json)
        return table.done()
    ranks, name, rows, ended = set[int](), "", [], False
    for line in lines(path, table.skipped, table.notes):
        if found := _ROW.fullmatch(line.rstrip()):
            rows.append(found.groups())
        elif found := _RANK.match(line.lstrip()):
            ranks.add(whole(found[1]))
        elif _looks_like_row(line):
            table.skipped[f"{DAMAGED} row"] += 1
        ended = ended or "Avg bus bandwidth" in line
        if found := _NAME.search(line):
            name = found[1] or found[2]
    collective, count = collective_of(name or path.stem), max(ranks, default=-1) + 1
    if collective is None:
        table.skipped["the collective is not named: keep the lines of nccl-tests that start with #"] += len(rows)
    elif not 1 < count < 1 << 20:
        table.skipped["the ranks are not listed: keep the lines of nccl-tests that start with #"] += len(rows)
    else:
        group = table.group(Group(count, tuple(range(count))))
        for row in rows:
            _add_row(table, collective, group, *row)
        _note_missing(table, count - len(ranks), ended)
    return table.done()


def _looks_like_row(line: str) -> bool:
    """Whether a line that is no row has as many numbers as a row: it is a damaged one."""
    words = line.split()
    return "nThread" not in line and sum(number(word) is not None for word in words) >= _NUMBERS


def _note_missing(table: CallsBuilder, ranks: int, ended: bool) -> None:
    if ranks:
        table.notes.append(f"the list of ranks lacks {counted(ranks, 'line')}: the file lost them")
    if not ended:
        table.notes.append('there is no line "Avg bus bandwidth": the run was ended, or the file breaks off')


def _add_row(
    table: CallsBuilder, collective: str, group: int, size: str, _: str, kind: str, __: str, root: str, rest: str
) -> None:
    """A row: size, count, type, reduction and root, then time, algbw, busbw and #wrong out of place and in place."""
    cells = rest.split()
    durations = [nanoseconds(cells[at]) if at < len(cells) else -1 for at in (0, 4)]
    if len(cells) != 2 * _CELLS or len(size) > 18:
        table.skipped[f"{DAMAGED} row"] += 1
    for duration in durations if len(size) <= 18 else ():
        if duration >= 0:
            table.add(collective, int(size), group, duration_ns=duration, root=whole(root), dtype=kind)
        elif len(cells) == 2 * _CELLS:
            table.skipped[f"{DAMAGED} row: a time cannot be read"] += 1


def _json(path: Path) -> dict[str, Any] | None:
    if head(path, 64).lstrip()[:1] != b"{":
        return None
    data = whole_file(path, _MAX_BYTES, Counter())
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: cannot be read: {str(error)[:80]}") from None
    return value if isinstance(value, dict) else None


def _from_json(table: CallsBuilder, value: dict[str, Any]) -> None:
    """The JSON file: facts of the run and a list of results; keys are looked for at every depth."""
    rows = _found(value, "results")
    config = _found(value, "config") or value
    name = next((str(found) for key in ("collective", "name", "test", "args") if (found := _found(config, key))), "")
    matched = _NAME.search(name)
    collective = collective_of(matched[1] or matched[2] if matched else name)
    ranks = whole(_found(value, "ranks") or _found(value, "nranks") or _found(value, "n_ranks"), 0)
    devices = _found(value, "devices")
    ranks = ranks if ranks > 1 else len(devices) if isinstance(devices, list) else 0
    if collective is None or not 1 < ranks < 1 << 20 or not isinstance(rows, list):
        table.skipped["the collective, the ranks or the list of results is missing"] += 1
        return
    group = table.group(Group(ranks, tuple(range(ranks))))
    for row in rows:
        sides = [row.get(side) for side in ("out_of_place", "in_place")] if isinstance(row, dict) else []
        for side in sides:
            if not isinstance(side, dict) or (duration := nanoseconds(side.get("time"))) < 0:
                table.skipped[f"{DAMAGED} row"] += 1
                continue
            kind = str(row.get("type", "")) if bytes_of_type(str(row.get("type", ""))) else ""
            table.add(collective, whole(row.get("size")), group, duration_ns=duration, dtype=kind)


def _found(value: Any, key: str, depth: int = 0) -> Any:
    """The first value of a key in nested dictionaries."""
    if not isinstance(value, dict) or depth > 4:
        return None
    if key in value:
        return value[key]
    return next((found for item in value.values() if (found := _found(item, key, depth + 1)) is not None), None)
