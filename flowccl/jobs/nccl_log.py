"""Logs of NCCL with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING: what was called, and NCCL's choice.

They have no times. The lines of INIT say which rank a process has in which communicator.
"""

import re
from collections import Counter
from pathlib import Path

from flowccl.jobs.calls import Calls, CallsBuilder, Group
from flowccl.jobs.communicators import seat_name
from flowccl.jobs.names import NCCL_TYPES, buffer_bytes, bytes_of_type, collective_of
from flowccl.jobs.text import DAMAGED, lines
from flowccl.wording import counted

FORMAT = "NCCL log"
_SEAT = re.compile(r"comm (0x[0-9a-f]+) rank (\d+) n[rR]anks (\d+) .*?commId (0x[0-9a-f]+)")
_CALL = re.compile(
    r"(\S+?):(\d+):\d+ \[\d+\] NCCL INFO (\w+): opCount ([0-9a-f]+) sendbuff \S+ recvbuff \S+ count (\d+) "
    r"datatype (\d+) op (\d+) root (-?\d+) comm (0x[0-9a-f]+) \[nranks=(\d+)\]"
)
_SPLIT = re.compile(
    r"comm (0x[0-9a-f]+) rank (\d+) n[rR]anks (\d+) .*?parent (0x[0-9a-f]+) \w+Count (\d+) color (-?\d+)"
)
_SEAT_WORDS = ("commId", "Init COMPLETE")
_MARK = " NCCL INFO "
_CALL_WORDS = ("opCount", "sendbuff", "recvbuff", "datatype", "[nranks=")
_NAMED = re.compile(r" NCCL INFO (\w+): ")
_CHOICE = re.compile(r"NCCL INFO (\w+): (\d+) Bytes -> Algo (\w+) proto (\w+)\b")
_ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
_PROTOCOLS = ("LL", "LL128", "Simple")
_PER_RANK = ("allgather", "reduce_scatter", "alltoall", "gather", "scatter")


def recognized(start: bytes, name: str) -> bool:
    """Whether a file looks like this format."""
    return b" NCCL INFO " in start


def read(path: Path) -> Calls:
    """Return the calls of a log; it may have the lines of several processes."""
    table = CallsBuilder(str(path), FORMAT)
    seats: dict[tuple[str, str], tuple[str, int, int]] = {}  # (process, address): communicator, rank, size
    chosen: Counter[str] = Counter()
    others = 0
    for line in lines(path, table.skipped, table.notes):
        if "\ufffd" in line or line.count(_MARK) > 1:  # a lost line end joins lines
            table.skipped[f"{DAMAGED} line"] += max(line.count(_MARK), 1)
        elif _MARK not in line:
            others += bool(line.strip()) and " NCCL " not in line
        elif any(word in line for word in _CALL_WORDS):
            _call(table, line, seats)
        elif any(word in line for word in _SEAT_WORDS):
            _seat(table, line, seats)
        elif "Bytes -> Algo" in line:
            if found := _CHOICE.search(line):
                chosen[f"{found[1]} {_name(found[3], _ALGORITHMS)} {_name(found[4], _PROTOCOLS)}"] += 1
            else:
                table.skipped[f"{DAMAGED} line of a choice"] += 1
        elif (found := _NAMED.search(line)) and collective_of(found[1]):
            table.skipped[f"{DAMAGED} line of a call"] += 1
    if chosen:
        words = ", ".join(f"{name} {count} times" for name, count in chosen.most_common(8))
        table.notes.append(f"NCCL chose {words}")
    if others:
        words = counted(others, "line is", "lines are")
        table.notes.append(f"{words} not of NCCL: output of the job, or what is left of lost lines")
    if len(table):
        table.notes.append("NCCL's log has no times: there is no measured column")
    return table.done()


def _seat(table: CallsBuilder, line: str, seats: dict[tuple[str, str], tuple[str, int, int]]) -> None:
    """A new communicator: by its identifier, or by its parent and its color where it was split off.

    One without calls is kept too: that of all processes says which rank of the job a process is.
    """
    process, name = _process(line), ""
    if found := _SEAT.search(line):
        name = found[4]
    elif found := _SPLIT.search(line):
        name = f"{seats.get((process, found[4]), (found[4], 0, 0))[0]}/{found[5]}/{found[6]}"
    if found is None or len(found[2]) > 6 or len(found[3]) > 6:
        table.skipped[f"{DAMAGED} line of a communicator"] += 1
        return
    place, size = int(found[2]), int(found[3])
    seats[process, found[1]] = name, place, size
    table.group(Group(size, None, seat_name(name, process, place, size)))


def _call(table: CallsBuilder, line: str, seats: dict[tuple[str, str], tuple[str, int, int]]) -> None:
    found = _CALL.search(line)
    if found is None:
        table.skipped[f"{DAMAGED} line of a call"] += 1
        return
    host, pid, name, sequence, count, kind, _, _, address, size = found.groups()
    collective = collective_of(name)
    dtype = NCCL_TYPES[int(kind)] if len(kind) < 3 and int(kind) < len(NCCL_TYPES) else ""
    element = bytes_of_type(dtype)
    if collective is None or element is None or len(count) > 18 or len(size) > 6:
        table.skipped["unknown collective or data type"] += 1
        return
    process, ranks = f"{host}:{pid}", int(size)
    communicator, place, _ = seats.get((process, address), (address, 0, ranks))
    if ranks < 2:
        table.skipped["a communicator of one rank moves nothing"] += 1
        return
    data = int(count) * element
    if collective == "send":
        table.skipped["sends and receives: the log does not say which belong together"] += 1
        return
    total = buffer_bytes(collective, data, data, ranks) if collective not in _PER_RANK else data * ranks
    table.add(
        collective,
        total,
        table.group(Group(ranks, None, seat_name(communicator, process, place, ranks))),
        sequence=int(sequence, 16) if len(sequence) < 15 else -1,
        root=-1,
        dtype=dtype,
    )


def _process(line: str) -> str:
    head = line.split(" NCCL INFO", 1)[0].split()
    parts = head[0].split(":") if head else []
    return ":".join(parts[:2])


def _name(text: str, names: tuple[str, ...]) -> str:
    """Newer versions write names in capitals, older ones numbers."""
    if text.isdecimal():
        return names[int(text)] if int(text) < len(names) else text
    return next((name for name in names if name.lower() == text.replace("_", "").lower()), text)
