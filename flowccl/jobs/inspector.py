"""Logs of NCCL's Inspector, its profiler plugin: one JSON object per line for each call of each rank.

Sizes are the count times the element size, which for allgather and reduce_scatter is the part of one rank. Times are
whole microseconds; starts are there with NCCL_INSPECTOR_DUMP_VERBOSE=1.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from flowccl.jobs.calls import Calls, CallsBuilder, Group, note_gaps
from flowccl.jobs.communicators import seat_name
from flowccl.jobs.names import CODE, collective_of
from flowccl.jobs.text import DAMAGED, lines
from flowccl.jobs.values import nanoseconds, whole

FORMAT = "inspector"
_BATCH = 50_000  # lines that are added at once
_PERF = re.compile(
    r'"coll_perf":\s*{"coll":\s*"(\w+)",\s*"coll_sn":\s*(\d{1,15}),\s*"coll_msg_size_bytes":\s*(\d{1,18}),'
    r'\s*"coll_exec_time_us":\s*(\d{1,15}),[^{}]*}}\s*$'
)
_PER_RANK = ("allgather", "reduce_scatter", "alltoall", "gather", "scatter")

_WORDS = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AlltoAll", "Gather", "Scatter")
_CODES = {word: CODE[name] for word in _WORDS if (name := collective_of(word)) is not None}
_PARTS = frozenset(CODE[name] for name in _PER_RANK)


Seat = tuple[int, int]  # the number of a group, and its ranks


def recognized(start: bytes, name: str) -> bool:
    """Whether a file looks like this format."""
    return start.lstrip()[:1] == b"{" and (b'"coll_perf"' in start or b'"p2p_perf"' in start)


def read(path: Path) -> Calls:
    """Return the calls of a log; a file may have several ranks."""
    table = CallsBuilder(str(path), FORMAT)
    groups: dict[tuple[Any, ...], int] = {}
    seen: dict[tuple[str, str], Seat] = {}
    quick: list[tuple[int, ...]] = []
    for line in lines(path, table.skipped, table.notes):
        if not line or line.isspace() or _quickly(table, line, seen, quick):
            continue
        try:
            row = json.loads(line)
            header, about = row["header"], row["metadata"]
            key = (header["id"], header["rank"], header["n_ranks"], about.get("hostname"), about.get("pid"))
            group = groups.get(key)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            table.skipped[f"{DAMAGED} line"] += max(line.count('"header"'), 1)  # a lost line end joins lines
            continue
        if group is None:
            group = groups[key] = _group(table, key)
        if group < 0:
            table.skipped["a communicator of one rank, or without a size"] += 1
        elif isinstance(row.get("coll_perf"), dict):
            _add(table, row["coll_perf"], group, whole(header["n_ranks"]))
            about, host, perf = (line.find(f'"{word}"') for word in ("metadata", "hostname", "coll_perf"))
            seen[line[:about], line[host:perf]] = group, whole(header["n_ranks"])
        elif isinstance(row.get("p2p_perf"), dict):
            table.skipped["sends and receives: the Inspector does not say when their pairs belong together"] += 1
        else:
            table.skipped["a line without coll_perf"] += 1
    _flush(table, quick)
    note_gaps(table)
    return table.done()


def _quickly(table: CallsBuilder, line: str, seen: dict[tuple[str, str], Seat], quick: list[tuple[int, ...]]) -> bool:
    """Read a line as the Inspector writes it without starts, which is several times faster than reading its JSON.

    What stands before the numbers is the same in all lines of a communicator and a process, but for a time stamp.
    """
    about = line.find('"metadata"')
    host = line.find('"hostname"', about)
    perf = line.find('"coll_perf"', host)
    if not 0 < about < host < perf:
        return False
    key = line[:about], line[host:perf]
    seat = seen.get(key)
    found = _PERF.match(line, perf) if seat is not None else None
    if found is None or seat is None:
        return False
    code = _CODES.get(found[1], -1)
    if code < 0:
        return False
    data = int(found[3]) * (seat[1] if code in _PARTS else 1)
    quick.append((code, data, seat[0], int(found[4]) * 1000, int(found[2])))
    if len(quick) >= _BATCH:
        _flush(table, quick)
    return True


def _flush(table: CallsBuilder, quick: list[tuple[int, ...]]) -> None:
    if quick:
        rows = np.array(quick, dtype=np.int64)
        none = np.full(len(rows), -1, dtype=np.int64)
        table.add_many(rows[:, 0], rows[:, 1], rows[:, 2], none, rows[:, 3], none, rows[:, 4])
        quick.clear()


def _group(table: CallsBuilder, key: tuple[Any, ...]) -> int:
    place, size = whole(key[1]), whole(key[2], 0)
    if not 1 < size < 1 << 20 or not 0 <= place < size:
        return -1
    return table.group(Group(size, None, seat_name(str(key[0]), f"{key[3]}:{key[4]}", place, size)))


def _add(table: CallsBuilder, row: dict[str, Any], group: int, ranks: int) -> None:
    collective = collective_of(str(row.get("coll")))
    if collective is None:
        table.skipped[f"unknown collective {str(row.get('coll'))[:30]!r}"] += 1
        return
    size, duration = whole(row.get("coll_msg_size_bytes")), nanoseconds(row.get("coll_exec_time_us"))
    trace = row.get("event_trace_ts")
    if duration < 0:
        table.skipped[f"{DAMAGED} line: the time cannot be read"] += 1
        return
    table.add(
        collective,
        size * ranks if collective in _PER_RANK else size,
        group,
        start_ns=_start(trace) if isinstance(trace, dict) else -1,
        duration_ns=duration,
        sequence=whole(row.get("coll_sn")),
    )


def _start(trace: dict[str, Any]) -> int:
    """The start of the first kernel, else that of the call on the host."""
    events = trace.get("kernel_events")
    starts = [
        at
        for event in (events if isinstance(events, list) else ())
        if isinstance(event, dict) and (at := nanoseconds(event.get("kernel_start_ts"))) > 0
    ]
    return min(starts) if starts else nanoseconds(trace.get("coll_start_ts"))
