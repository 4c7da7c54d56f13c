"""Dumps of PyTorch's flight recorder, one file per rank: pickle or JSON.

A pickle is read by an unpickler that accepts plain containers, text and numbers only: it never runs code.
"""

import pickle
import re
from io import BytesIO
from pathlib import Path
from typing import Any, NoReturn

from flowccl.errors import FileError
from flowccl.jobs.calls import Calls, CallsBuilder, Group, note_gaps
from flowccl.jobs.names import buffer_bytes, bytes_of_type, collective_of
from flowccl.jobs.text import DAMAGED, JsonArray, head, whole_file
from flowccl.jobs.values import elements, integers, number, whole

FORMAT = "flight recorder"
_MAX_BYTES = 2_000_000_000
_RANK = re.compile(r"(\d+)\D*$")


class PlainUnpickler(pickle._Unpickler):
    """Unpickles dictionaries, lists, tuples, text and numbers; every class and function is refused.

    It is the one in Python: what it has read before a damage can be looked at, and a damaged number cannot make it
    reserve gigabytes, as the one in C does for the memo.
    """

    metastack: list[list[Any]]
    stack: list[Any]

    def find_class(self, module: str, name: str, /) -> NoReturn:
        """Refuse."""
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")

    def persistent_load(self, pid: Any) -> NoReturn:
        """Refuse."""
        raise pickle.UnpicklingError("a reference to outside data is not plain data")

    def read_so_far(self) -> list[Any]:
        """Return what was read before a damage: the values that are not yet part of another one."""
        return [value for part in (*self.metastack, self.stack) for value in part]


def recognized(start: bytes, name: str) -> bool:
    """Whether a file looks like this format."""
    is_pickle = start[:1] == b"\x80" and b"entries" in start + b"entries" * (len(start) >= 1 << 16)
    return is_pickle or (start.lstrip()[:1] == b"{" and b'"entries"' in start and b"profiling_name" in start)


def read(path: Path) -> Calls:
    """Return the calls of one rank; the rank is the number at the end of the file's name."""
    table = CallsBuilder(str(path), FORMAT)
    start = head(path)
    dump = _json(path, table) if start.lstrip()[:1] == b"{" else _pickle(path, table)
    entries = dump.get("entries")
    groups = _groups(dump.get("pg_config"), table)
    found = _RANK.search(Path(path.name).stem if path.suffix in (".pkl", ".json", ".pickle", ".gz") else path.name)
    rank = whole(dump.get("rank"), int(found[1]) if found and len(found[1]) < 8 else -1)
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict):
            _add(table, entry, groups, rank)
        else:
            table.skipped[f"{DAMAGED} entry"] += 1
    if not isinstance(entries, list):
        table.skipped["there is no list of entries"] += 1
    table.host_starts = True  # a thread looks now and then whether a call began: that time is no better
    note_gaps(table)
    return table.done()


def _json(path: Path, table: CallsBuilder) -> dict[str, Any]:
    """A dump in JSON; damaged entries are counted, and the others kept."""
    array = JsonArray(path, "entries", table.skipped)
    entries = list(array)
    return {**array.rest, "entries": entries}


def _pickle(path: Path, table: CallsBuilder) -> dict[str, Any]:
    """A pickled dump; of a damaged one, what stands before the damage."""
    unpickler = PlainUnpickler(BytesIO(whole_file(path, _MAX_BYTES, table.skipped)))
    try:
        value = unpickler.load()
    except Exception as error:  # whatever a damaged pickle does to its stack
        if "plain data" in str(error):
            raise FileError(f"{path}: the pickle was refused: {error}") from None
        return _recovered(path, table, unpickler)
    if not isinstance(value, dict):
        raise FileError(f"{path}: holds a {type(value).__name__}, not the dictionary of a dump")
    return value


def _recovered(path: Path, table: CallsBuilder, unpickler: PlainUnpickler) -> dict[str, Any]:
    """What a damaged pickle had before its damage: whole entries, and the groups."""
    table.skipped["the pickle breaks off or is damaged: what follows is lost"] += 1
    dump: dict[str, Any] = {"entries": []}
    todo = unpickler.read_so_far()
    for value, following in zip(todo, [*todo[1:], None], strict=False):
        if isinstance(value, dict) and "profiling_name" in value:
            dump["entries"].append(value)
        elif isinstance(value, dict) and isinstance(value.get("entries"), list):
            dump |= value
        elif isinstance(value, list) and value and isinstance(value[0], dict) and "profiling_name" in value[0]:
            dump["entries"] += value
        elif value == "pg_config" and isinstance(following, dict):
            dump["pg_config"] = following
    if not dump["entries"]:
        raise FileError(f"{path}: cannot be read: the pickle is damaged before its first entry")
    return dump


def _groups(config: Any, table: CallsBuilder) -> dict[str, Group]:
    """The process groups by name; a dump of gloo does not list them."""
    found = {}
    for name, row in config.items() if isinstance(config, dict) else ():
        ranks = integers(row.get("ranks")) if isinstance(row, dict) else None
        if ranks and min(ranks) >= 0 and len(set(ranks)) == len(ranks):
            found[str(name)] = Group(len(ranks), ranks)
        else:
            table.skipped["the ranks of a process group cannot be read"] += 1
    return found


def _add(table: CallsBuilder, entry: dict[str, Any], groups: dict[str, Group], rank: int) -> None:
    word = str(entry.get("profiling_name", ""))
    words = word.split(" ")  # "nccl:send 0->1": from and to as ranks of the group
    collective = collective_of(words[0])
    if collective is None:
        table.skipped[f"unknown collective {word[:30]!r}"] += 1
        return
    pair = entry.get("process_group")
    name = str(pair[0] if isinstance(pair, list | tuple) and pair else entry.get("pg_name", ""))
    in_bytes, dtype = _bytes(entry, "input")
    out_bytes, other = _bytes(entry, "output")
    if max(in_bytes, out_bytes) < 0 and collective != "barrier":
        table.skipped["the sizes or types of the tensors are missing"] += 1
        return
    group = groups.get(name) or Group(_size(collective, in_bytes, out_bytes), None, name)
    if collective == "send" and len(words) > 1 and group.ranks:
        ends = [whole(end) for end in re.split(r"<-|->", words[1])]
        if len(ends) == 2 and all(0 <= end < group.size for end in ends) and ends[0] != ends[1]:
            ends = ends[::-1] if "<-" in words[1] else ends
            group = Group(2, (group.ranks[ends[0]], group.ranks[ends[1]]))
    if group.size == 1:
        table.skipped["a group of one rank moves nothing"] += 1
        return
    took_ms = number(entry.get("duration_ms"))
    if took_ms is None and entry.get("duration_ms") is not None:
        table.skipped[f"{DAMAGED} entry: the time cannot be read"] += 1
        return
    sizes = max(in_bytes, 0), max(out_bytes, 0)
    table.add(
        collective,
        0 if collective == "barrier" else buffer_bytes(collective, *sizes, max(group.size, 1)),
        table.group(group),
        start_ns=whole(entry.get("time_created_ns")),
        duration_ns=-1 if took_ms is None or took_ms < 0 else round(took_ms * 1e6),
        rank=rank,
        sequence=-1 if collective == "send" else whole(entry.get("collective_seq_id")),
        dtype=dtype or other,
    )


def _bytes(entry: dict[str, Any], side: str) -> tuple[int, str]:
    """The bytes of all tensors of a side, -1 where unknown, and the type of the first one."""
    dims, kinds = entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")
    if not isinstance(dims, list | tuple) or not isinstance(kinds, list | tuple) or not dims or not kinds:
        return -1, ""
    total = 0
    for at, shape in enumerate(dims):
        kind = str(kinds[min(at, len(kinds) - 1)])
        count, element = elements(shape), bytes_of_type(kind)
        if count < 0 or element is None:
            return -1, kind
        total += count * element
    return total, str(kinds[0])


def _size(collective: str, in_bytes: int, out_bytes: int) -> int:
    """The size of a group of which only the name is known, where the tensors tell it; 0 is unknown."""
    small, large = sorted((in_bytes, out_bytes))
    if collective in ("allgather", "reduce_scatter") and small > 0 and large % small == 0:
        return large // small
    return 0
