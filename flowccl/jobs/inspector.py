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
from flowccl.jobs.text import DAMAGED, blocks
from flowccl.jobs.values import nanoseconds, whole

FORMAT = "inspector"
# A line without starts. What stands before the numbers is the same in all lines of a communicator and a process, but
# for what stands before the host: a time stamp.
_LINE = re.compile(
    r'(\{"header": ?\{[^}]*+\}, ?"metadata": ?\{)[^}]*("hostname"[^}]*+\}, ?)"coll_perf": ?\{"coll": ?"(\w++)", ?'
    r'"coll_sn": ?(\d{1,15}), ?"coll_msg_size_bytes": ?(\d{1,12}), ?"coll_exec_time_us": ?(\d{1,15})'
    r"(?:,[^}]*+)?\}\}\r?\n"
)
_PER_RANK = ("allgather", "reduce_scatter", "alltoall", "gather", "scatter")

_WORDS = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AlltoAll", "Gather", "Scatter")
_CODES = {word: CODE[name] for word in _WORDS if (name := collective_of(word)) is not None}
_PARTS = frozenset(CODE[name] for name in _PER_RANK)


Seat = tuple[int, int]  # the number of a group, and its ranks
Groups = dict[tuple[Any, ...], int]
_NOBODY: Seat = (-1, -1)


def recognized(start: bytes, name: str) -> bool:
    """Whether a file looks like this format."""
    return start.lstrip()[:1] == b"{" and (b'"coll_perf"' in start or b'"p2p_perf"' in start)


def read(path: Path) -> Calls:
    """Return the calls of a log; a file may have several ranks."""
    table = CallsBuilder(str(path), FORMAT)
    groups: Groups = {}
    seen: dict[tuple[str, str], Seat] = {}
    for block in blocks(path, table.skipped, table.notes):
        if not _quickly(table, block, groups, seen):
            for line in block.split("\n"):
                if line and not line.isspace():
                    _read_line(table, line, groups)
    note_gaps(table)
    return table.done()


def _parsed(table: CallsBuilder, text: str, groups: Groups) -> tuple[dict[str, Any], Seat] | None:
    """The object in a line, with its communicator; None where it is damaged."""
    try:
        row = json.loads(text)
        header, about = row["header"], row["metadata"]
        key = (header["id"], header["rank"], header["n_ranks"], about.get("hostname"), about.get("pid"))
        if key not in groups:
            groups[key] = _group(table, key)
        return row, (groups[key], whole(header["n_ranks"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _read_line(table: CallsBuilder, line: str, groups: Groups) -> None:
    found = _parsed(table, line, groups)
    if found is None:
        table.skipped[f"{DAMAGED} line"] += max(line.count('"header"'), 1)  # a lost line end joins lines
        return
    row, (group, ranks) = found
    if group < 0:
        table.skipped["a communicator of one rank, or without a size"] += 1
    elif isinstance(row.get("coll_perf"), dict):
        _add(table, row["coll_perf"], group, ranks)
    elif isinstance(row.get("p2p_perf"), dict):
        table.skipped["sends and receives: the Inspector does not say when their pairs belong together"] += 1
    else:
        table.skipped["a line without coll_perf"] += 1


def _quickly(table: CallsBuilder, block: str, groups: Groups, seen: dict[tuple[str, str], Seat]) -> bool:
    """Read lines as the Inspector writes them without starts, which is several times faster than reading their JSON.

    All of them must be whole; else they are read one by one.
    """
    rows = _LINE.findall(block)
    if not rows or len(rows) != block.count("\n"):
        return False
    heads, tails, words, numbers, sizes, times = zip(*rows, strict=True)
    keys = list(zip(heads, tails, strict=True))
    for key in set(keys) - seen.keys():
        found = _parsed(table, key[0] + key[1].rstrip(", \t") + "}", groups)
        seen[key] = _NOBODY if found is None or found[1][0] < 0 else found[1]
    seats = [seen[key] for key in keys]
    codes = [_CODES.get(word, -1) for word in words]
    if _NOBODY in seats or -1 in codes:
        return False
    group, ranks = np.array(seats, dtype=np.int64).T
    code = np.array(codes, dtype=np.int64)
    sequence, size, took = (np.fromstring(" ".join(column), np.int64, sep=" ") for column in (numbers, sizes, times))
    none = np.full(len(rows), -1, dtype=np.int64)
    data = np.where(np.isin(code, list(_PARTS)), size * ranks, size)
    table.add_many(code, data, group, none, took * 1000, none, sequence)
    return True


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
