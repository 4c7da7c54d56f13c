"""Logs of torchcomms' ClogHook, one file per rank: signatures of calls, and the events of each call.

`C3|sig|all_to_all_v_single|in_splits=...|out_splits=...|dtype=bf16|async_op=t|comm=ep` declares a signature;
`C3|S|+1.25` and `C3|E|+1.26` are the start and the end of a call on the GPU, in seconds behind the base.
"""

from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path

from flowccl.jobs.calls import Calls, CallsBuilder, Group
from flowccl.jobs.names import buffer_bytes, bytes_of_type, collective_of
from flowccl.jobs.text import DAMAGED, lines
from flowccl.jobs.values import integers, number, whole

FORMAT = "clog"


def recognized(start: bytes, name: str) -> bool:
    """Whether a file looks like this format."""
    return start[:2] == b"V|" or b"|sig|" in start[:4096] or b"|in_splits=" in start[:4096]


@dataclass(frozen=True, slots=True)
class _Signature:
    collective: str
    in_bytes: int
    out_bytes: int
    splits: tuple[int, ...]
    root: int
    peer: int
    receives: bool
    communicator: str
    dtype: str


class _State:
    """What the lines so far have said."""

    def __init__(self) -> None:
        self.base_ns = 0
        self.signatures: dict[str, _Signature] = {}
        self.groups: dict[str, Group] = {}
        self.places: dict[str, int] = {}
        self.started: dict[str, deque[int]] = defaultdict(deque)
        self.queued: dict[str, int] = defaultdict(int)
        self.rank = -1


def read(path: Path) -> Calls:
    """Return the calls of one rank."""
    table, state = CallsBuilder(str(path), FORMAT), _State()
    for line in lines(path, table.skipped, table.notes):
        parts = line.rstrip("\r").split("|")
        if len(parts) < 2:
            if line.strip():
                table.skipped[f"{DAMAGED} line"] += 1
        elif parts[0] == "V":
            base = number(_fields(parts).get("base_timestamp"))
            state.base_ns = round((base or 0.0) * 1e9)
        elif parts[0] in ("new_comm", "split"):
            _communicator(state, parts[0], _fields(parts))
        elif parts[0] != "WARN":
            _event(table, state, parts)
    for key, count in state.queued.items():  # without lifecycle events, enqueued calls have no time
        for _ in range(count if key in state.signatures else 0):
            _add(table, state, state.signatures[key], -1, -1)
    open_calls = sum(len(starts) for starts in state.started.values())
    if open_calls:
        table.notes.append(f"{open_calls:,} calls start and do not end in the file: they have no time")
    return table.done()


def _fields(parts: list[str]) -> dict[str, str]:
    return dict(part.split("=", 1) for part in parts if "=" in part)


def _communicator(state: _State, what: str, fields: dict[str, str]) -> None:
    if what == "split":
        ranks = integers(fields.get("ranks", ""))
        if ranks and len(set(ranks)) == len(ranks) and min(ranks) >= 0:
            state.groups[fields.get("child", "")] = Group(len(ranks), ranks)
        return
    name, size, place = fields.get("comm", ""), whole(fields.get("world_size"), 0), whole(fields.get("rank"))
    if 0 < size < 1 << 20:
        largest = max((group.size for group in state.groups.values()), default=0)
        if size >= largest:
            state.rank = place
        state.groups.setdefault(name, Group(size, None, name) if size < largest else Group(size, tuple(range(size))))


def _event(table: CallsBuilder, state: _State, parts: list[str]) -> None:
    """A signature, or an event of a call; calls of graphs have a prefix with the graph and the replay."""
    at = next((n for n, part in enumerate(parts[:3]) if part[:1] == "C" and part[1:].isdecimal()), -1)
    if at < 0 or len(parts) < at + 2:
        collective = collective_of(parts[0])
        if collective is not None:  # a bare signature: a call without a time
            _signature(table, state, "", parts)
            if "" in state.signatures:
                _add(table, state, state.signatures.pop(""), -1, -1)
            return
        table.skipped[f"{DAMAGED} line"] += 1
        return
    number_of, key, what = parts[at], "|".join(parts[: at + 1]), parts[at + 1]
    if what == "sig":
        _signature(table, state, number_of, parts[at + 2 :])
        return
    signature = state.signatures.get(number_of)
    time_s = number(parts[-1][1:]) if parts[-1].startswith("+") else None
    if signature is None or what not in ("Q", "S", "E", "W") or time_s is None:
        table.skipped[f"{DAMAGED} line, or an event without its signature"] += 1
        return
    moment = state.base_ns + round(time_s * 1e9)
    if what == "Q":
        state.queued[number_of] += 1
    elif what == "S":
        state.started[key].append(moment)
    elif what == "E":
        if not state.started[key]:
            table.skipped["an end without a start"] += 1
            return
        start = state.started[key].popleft()
        if "|" not in key:
            state.queued[number_of] -= 1
        _add(table, state, signature, start, moment - start)


def _signature(table: CallsBuilder, state: _State, number_of: str, parts: list[str]) -> None:
    collective = collective_of(parts[0].replace("_v", "v")) if parts else None
    fields = _fields(parts)
    element = bytes_of_type(fields.get("dtype", ""))
    if collective is None or (element is None and collective != "barrier"):
        table.skipped[f"unknown collective or type in the signature of {parts[0][:30] if parts else ''!r}"] += 1
        return
    size = element or 1
    splits = tuple(part * size for part in integers(fields.get("in_splits", "")) or ())
    in_bytes, out_bytes = (_bytes(fields, side, size) for side in ("in", "out"))
    state.signatures[number_of] = _Signature(
        collective,
        in_bytes,
        out_bytes,
        splits if collective == "alltoallv" else (),
        whole(fields.get("root")),
        whole(fields.get("peer")),
        parts[0].startswith("recv"),
        fields.get("comm", ""),
        fields.get("dtype", ""),
    )


def _bytes(fields: dict[str, str], side: str, element: int) -> int:
    """The bytes that a rank gives or gets: a count, or a list of counts or splits."""
    count = whole(fields.get(f"{side}_count"))
    if count >= 0:
        return count * element
    parts = integers(fields.get(f"{side}_counts", "")) or integers(fields.get(f"{side}_splits", "")) or ()
    return sum(parts) * element


def _add(table: CallsBuilder, state: _State, one: _Signature, start: int, duration: int) -> None:
    group = state.groups.get(one.communicator) or Group(len(one.splits), None, one.communicator)
    if group.size == 1:
        table.skipped["a communicator of one rank moves nothing"] += 1
        return
    ranks = group.ranks
    root = ranks[one.root] if ranks and 0 <= one.root < group.size else -1
    rank = state.rank
    if one.collective == "send" and ranks and 0 <= one.peer < group.size and rank >= 0 and ranks[one.peer] != rank:
        group = Group(2, (ranks[one.peer], rank) if one.receives else (rank, ranks[one.peer]))
    size = buffer_bytes(one.collective, one.in_bytes, one.out_bytes, max(group.size, 1))
    table.add(
        one.collective,
        0 if one.collective == "barrier" else size,
        table.group(group),
        start_ns=start,
        duration_ns=duration,
        rank=rank,
        root=root,
        splits=one.splits,
        dtype=one.dtype,
    )
