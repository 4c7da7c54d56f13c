"""Reading the logs of a job: the format of each file is recognized, and all files become one table of calls."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import FileError, InputError
from flowccl.jobs import (
    clog,
    csv_calls,
    execution_trace,
    flight_recorder,
    inspector,
    nccl_log,
    nccl_tests,
    profiler,
)
from flowccl.jobs.calls import UNKNOWN, Calls, LogSource, concatenated
from flowccl.jobs.communicators import resolved
from flowccl.jobs.text import head
from flowccl.units import format_bytes
from flowccl.wording import counted


class Reader(Protocol):
    """A module that reads one format."""

    FORMAT: str

    def recognized(self, start: bytes, name: str) -> bool:
        """Whether a file with this start and name looks like the format."""

    def read(self, path: Path) -> Calls:
        """The calls of a file."""


READERS = tuple(
    cast(Reader, module)
    for module in (
        profiler,
        flight_recorder,
        execution_trace,
        inspector,
        nccl_tests,
        clog,
        nccl_log,
        csv_calls,
    )
)
"""The readers, in the order in which they are asked whether they know a file."""


class UnknownFormatError(FileError):
    """A file that no reader knows."""


@dataclass(frozen=True, eq=False)
class Logs:
    """The calls of all files with complete groups, sentences about what was assumed, and files that failed."""

    calls: Calls
    notes: tuple[str, ...]
    failed: tuple[str, ...]


def read_logs(
    paths: Iterable[str | Path], format: str | None = None, on_file: Callable[[str], None] = lambda path: None
) -> Logs:
    """Return the calls of files and of all files in folders. Raises InputError if no call could be read."""
    tables, failed = [], []
    unknown: list[str] = []
    for path in _files(paths):
        on_file(str(path))
        try:
            tables.append(read_file(path, format))
        except UnknownFormatError:
            unknown.append(str(path))
        except FileError as error:
            failed.append(str(error))
    if unknown:
        failed.append(_unknown_in_words(unknown))
    calls, notes = resolved(concatenated(tables))
    calls, more = _one_format_per_rank(calls)
    if not len(calls):
        reasons = [*failed, *(words for table in tables for words in skipped_in_words(table.sources))]
        raise InputError("no call could be read" + (": " + "; ".join(reasons[:5]) if reasons else ""))
    return Logs(calls, (*notes, *more), tuple(failed))


def read_file(path: Path, format: str | None = None) -> Calls:
    """Return the calls of a file, in a given format or in the one that it looks like."""
    if format is not None:
        reader = next((reader for reader in READERS if format == reader.FORMAT), None)
        if reader is None:
            raise InputError(f"unknown format {format!r}; known are {', '.join(known.FORMAT for known in READERS)}")
        return reader.read(path)
    start = head(path)
    reader = next((reader for reader in READERS if reader.recognized(start, path.name)), None)
    if reader is None:
        raise UnknownFormatError(_unknown_in_words([str(path)]))
    return reader.read(path)


def _unknown_in_words(paths: list[str]) -> str:
    known = ", ".join(reader.FORMAT for reader in READERS)
    if len(paths) == 1:
        return f"{paths[0]}: none of the known formats: {known}"
    return f"{len(paths)} files, first {paths[0]}: none of the known formats: {known}"


def _files(paths: Iterable[str | Path]) -> list[Path]:
    found: list[Path] = []
    for text in paths:
        path = Path(text)
        if path.is_dir():
            inside = sorted(item for item in path.iterdir() if item.is_file() and not item.name.startswith("."))
            if not inside:
                raise InputError(f"{path}: the folder has no files")
            found += inside
        else:
            found.append(path)
    return found


def _one_format_per_rank(calls: Calls) -> tuple[Calls, list[str]]:
    """Of a rank with calls from files of several formats, keep those of the format with most times."""
    formats = [source.format for source in calls.sources]
    names = sorted(set(formats))
    if len(names) < 2 or not len(calls):
        return calls, []
    kind = np.array([names.index(name) for name in formats], dtype=np.int64)[calls.source]
    with_time: NDArray[np.float64] = np.array(
        [(calls.duration_ns[kind == n] >= 0).mean() if (kind == n).any() else -1 for n in range(len(names))]
    )
    order = np.argsort(-with_time, kind="stable")
    keep = np.ones(len(calls), dtype=np.bool_)
    notes: list[str] = []
    seen: dict[int, int] = {}  # the format that is used for a rank
    for at in order.tolist():
        rows = kind == at
        again = rows & np.isin(calls.rank, list(seen)) & (calls.rank != UNKNOWN)
        if again.any():
            keep &= ~again
            ranks = np.unique(calls.rank[again]).tolist()
            others = sorted({names[seen[rank]] for rank in ranks})
            notes.append(
                f"{counted(int(again.sum()), 'call')} of {counted(len(ranks), 'rank')} in files of format {names[at]} "
                f"not used: these ranks are also in files of format {', '.join(others)}"
            )
        seen = dict.fromkeys(np.unique(calls.rank[rows]).tolist(), at) | seen
        seen.pop(UNKNOWN, None)
    return calls.take(keep), notes


def skipped_in_words(sources: Iterable[LogSource]) -> list[str]:
    """Return one line for each reason: how often something was skipped, and in which files."""
    found: dict[str, list[tuple[int, str]]] = {}
    for source in sources:
        for reason, count in source.skipped.items():
            found.setdefault(reason, []).append((count, source.path))
    totals = {reason: sum(count for count, _ in rows) for reason, rows in found.items()}
    order = sorted(found, key=lambda reason: (-totals[reason], reason))
    return [f"{totals[reason]:,} x {reason} ({_files_in_words([p for _, p in found[reason]])})" for reason in order]


def notes_in_words(sources: Iterable[LogSource]) -> list[str]:
    """Return what the readers say about files, each sentence once."""
    found: dict[str, list[str]] = {}
    for source in sources:
        for note in source.notes:
            found.setdefault(note, []).append(source.path)
    return [f"{note} ({_files_in_words(paths)})" for note, paths in found.items()]


def _files_in_words(paths: list[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{len(paths):,} files, first {paths[0]}"


def read_in_words(calls: Calls) -> str:
    """Return what was read in one sentence: files, formats, calls and ranks."""
    formats = sorted({source.format for source in calls.sources if source.rows})
    ranks = len(np.unique(calls.rank[calls.rank >= 0]))
    total = format_bytes(float(calls.size_bytes.sum()))
    return (
        f"{counted(len(calls.sources), 'file')} ({', '.join(formats)}): {len(calls):,} rows of "
        f"{counted(ranks, 'rank') if ranks else 'unnamed ranks'}, {total} of buffers"
    )
