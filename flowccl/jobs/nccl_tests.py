"""Output of nccl-tests: a table with one row for each size, or the JSON file of its option -J."""

import json
import re
from pathlib import Path
from typing import Any

from flowccl.errors import FileError
from flowccl.files import read_bytes
from flowccl.jobs.calls import Calls, CallsBuilder, Group
from flowccl.jobs.names import bytes_of_type, collective_of
from flowccl.jobs.text import DAMAGED, lines
from flowccl.jobs.values import nanoseconds, whole

FORMAT = "nccl-tests"
_RANK = re.compile(r"#\s+Rank\s+(\d+)")
_NAME = re.compile(r"(\w+_perf)\b|Collective test (?:starting|concluded): (\w+)")
_ROW = re.compile(r"\s*(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+)\s+(\S.*)")
_MAX_BYTES = 200_000_000


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
    ranks, name, rows = 0, "", []
    for line in lines(path, table.skipped):
        if line.lstrip().startswith("#"):
            if found := _RANK.match(line.lstrip()):
                ranks = max(ranks, whole(found[1]) + 1)
        elif found := _ROW.fullmatch(line.rstrip()):
            rows.append(found.groups())
            continue
        elif line.strip()[:1].isdecimal():
            table.skipped[f"{DAMAGED} row"] += 1
        if found := _NAME.search(line):
            name = found[1] or found[2]
    collective = collective_of(name or path.stem)
    if collective is None:
        table.skipped["the collective is not named: keep the lines of nccl-tests that start with #"] += len(rows)
    elif not 1 < ranks < 1 << 20:
        table.skipped["the ranks are not listed: keep the lines of nccl-tests that start with #"] += len(rows)
    else:
        group = table.group(Group(ranks, tuple(range(ranks))))
        for row in rows:
            _add_row(table, collective, group, *row)
    return table.done()


def _add_row(
    table: CallsBuilder, collective: str, group: int, size: str, _: str, kind: str, __: str, root: str, rest: str
) -> None:
    """A row: size, count, type, reduction and root, then time, algbw, busbw and #wrong out of place and in place."""
    cells = rest.split()
    times = [nanoseconds(cell) for at, cell in enumerate(cells) if at in (0, 4)]
    if not times or times[0] < 0 or len(size) > 18:
        table.skipped[f"{DAMAGED} row"] += 1
        return
    for duration in times:
        if duration >= 0:
            table.add(collective, int(size), group, duration_ns=duration, root=whole(root), dtype=kind)


def _json(path: Path) -> dict[str, Any] | None:
    data = read_bytes(path, _MAX_BYTES)
    if data.lstrip()[:1] != b"{":
        return None
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
