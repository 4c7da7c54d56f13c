"""Damaged logs of every format: what was lost is said, nothing hangs, and only known errors are raised."""

import gzip
import json
import pickle
import re
import time
import zlib

import numpy as np
import pytest

from flowccl.errors import InputError
from flowccl.jobs.reading import read_logs
from tests.jobs.samples import SAMPLES, write_sample

# The fields of a record, with what a damage makes of them. None of them can be read, so the record must be counted.
FIELDS = {
    "csv": [
        (r"(?m)^allgather(?=,8192,0 1 2 3,1,20.001,0)", "allxgather"),
        (r"8192(?=,0 1 2 3,1,20.001,0)", "8x192"),
        (r"0 1 2 3(?=,1,20.001,0)", "0 1 2 x"),
        (r"(?<=,)1(?=,20.001,0)", "one"),
        (r"20\.001(?=,0)", "20.0?1"),
        (r"(?<=20\.001,)0", "?"),
        (r"1100\.000", "1100.0.0"),
        (r"(?<=8192,0 1 2 3,1,20.001),", ""),
        (r"1100\.000", '"1100.000'),
    ],
    "inspector": [
        (r'"AllGather"', '"AllGathe?"'),
        (r'"coll_msg_size_bytes": 2048', '"coll_msg_size_bytes": "?"'),
        (r'"coll_msg_size_bytes": 2048', '"coll_msg_size_byt": 2048'),
        (r'"coll_exec_time_us": 20', '"coll_exec_time_us": "2?"'),
        (r'"coll_perf"', '"coll_pe"'),
        (r'"n_ranks": 4', '"n_ranks": null'),
        (r'"header": \{', '"header": '),
    ],
    "profiler": [
        (r'"Collective name": "_allgather_base"', '"Collective name": "_allga?"'),
        (r'"Collective name": "_allgather_base"', '"Collective name": 7'),
        (r'"Collective name": "_allgather_base"', '"Coll": "_allgather_base"'),
        (r'"dtype": "Float"', '"dtype": "Flo?t"'),
        (r'"In msg nelems": 1024,\s+"Out msg nelems": 1024', '"In": 1024'),
        (r'"dur": 20.0', '"dur": "?", "was": 20.0'),
        (r'"ts": 1000.0', '"t": 1000.0'),
        (r'"args": \{\s+"Collective', '"args": 1, "was": {"Collective'),
        (r'"name": "nccl\w+AllReduce\w+"', '"name": 5'),
        (r'"ph": "X"', '"ph": "?"'),
        (r'"ph": "X"', '"ph": '),
    ],
    "flight recorder, JSON": [
        (r'"nccl:_allgather_base"', '"nccl:_allgath?"'),
        (r'"profiling_name"', '"profiling"'),
        (r'"input_sizes": \[\[1024\]\], "input_dtypes"(.*?)"output_sizes": \[\[1024\]\]', '"a": 0, "b"\\1"c": 0'),
        (r'"input_dtypes": \["Float"\](.*?)"output_dtypes": \["Float"\]', '"a": 0\\1"c": 0'),
        (r'"duration_ms": 0.02,', '"duration_ms": "?",'),
        (r'\{"frames"', '"frames"'),
    ],
    "execution trace": [
        (r'"shapes": \[\s+\[\s+\[\s+1000', '"shapes": [[["?"'),
        (r'"types": \[\s+"GenericList\[Tensor\(float\)\]"', '"types": ["GenericList[Tensor(flo?t)]"'),
        (r'"name": "c10d::allreduce_"', '"name": 3'),
        (r'"inputs": \{\s+"values": \[\s+\[\s+\[\s+1', '"inputs": {"values": [[[?'),
    ],
    "clog": [
        (r"C1\|S\|\+0\.001000000\n", "C1|S|+0.0?\n"),
        (r"C1\|E\|\+0\.001020000\n", "C1|E|+0.0?\n"),
        (r"C1\|E\|\+0\.001020000\n", "C?|E|+0.001020000\n"),
        (r"C1\|E\|\+0\.001020000\n", "C1|?|+0.001020000\n"),
    ],
    "NCCL log": [
        (r"count 1024 datatype 7", "count 1x24 datatype 7"),
        (r"count 1024 datatype 7", "count 1024 datatype 77"),
        (r"opCount 0 ", "opCount ? "),
        (r"AllReduce: opCount 0", "AllR?: opCount 0"),
        (r"\[nranks=4\]", "[nranks=?]"),
    ],
    "nccl-tests": [
        (r"1048576(?= )", "1x48576"),
        (r"27\.00", "2?.00"),
        (r" 262144", " 26x144"),
        (r"27\.00[^\n]*26\.95[^\n]*\n", "27.00\n"),
    ],
}
CASES = [(name, at) for name, rows in FIELDS.items() for at in range(len(rows))]
PART = {"nccl-tests": 2}  # a row of nccl-tests is two calls


def said_in(logs) -> int:
    """How many parts were counted as skipped; the sentences on lost calls count once each."""
    words = ("line end", "lost", "breaks off", "do not end")
    return sum(
        sum(source.skipped.values()) + sum(any(word in note for word in words) for note in source.notes)
        for source in logs.calls.sources
    )


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_record_with_a_damaged_field_is_counted(name, number, tmp_path):
    """Records that are read and parts that are said to be skipped are together as many as were written."""
    path = write_sample(name, tmp_path)
    written = len(read_logs([path]).calls)
    text = path.read_text()
    pattern, damage = FIELDS[name][number]
    changed = re.sub(pattern, damage, text, count=1, flags=re.DOTALL)
    assert changed != text
    path.write_bytes(changed.encode())
    logs = read_logs([path])
    with_time = int((logs.calls.duration_ns >= 0).sum()) if name not in ("NCCL log", "execution trace") else 0
    lost = written - (with_time or len(logs.calls))
    assert 1 <= lost <= PART.get(name, 1)
    assert 1 <= said_in(logs) <= 2


def damaged(data: bytes, random: np.random.Generator) -> bytes:
    """Cut off, overwrite, remove, repeat or insert parts."""
    kind, at = int(random.integers(6)), int(random.integers(max(len(data), 1)))
    length = int(random.integers(1, max(len(data) // 4, 2)))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes(random.integers(0, 256, min(length, 200)).astype(np.uint8).tolist()) + data[at:]
    if kind == 2:
        return data[:at] + data[at + length :]
    if kind == 3:
        return data[:at] + data[at : at + length] * 2 + data[at + length :]
    changed = bytearray(data)
    for place in random.integers(0, max(len(data), 1), 1 + length // 50).tolist():
        if changed:
            changed[place] = int(random.integers(256)) if kind == 4 else ord('{}[]",:-9'[int(random.integers(9))])
    return bytes(changed)


LINES = {
    "csv": rb"(collective,.*|#.*|(all|reduce_)(reduce|gather|scatter|toall),\d+,[\d -]+,\d+,[\d.]+,\d+,[\d.]+)\r?",
    "clog": rb"V\|.*|new_comm\|.*|split\|.*|(C\d+\|sig\|.*)|C\d+\|[QSE]\|.*\+[\d.]+",
    "inspector": rb'\{"header".*"coll_perf".*\}\}\}?',
    "nccl-tests": rb"#.*|\s*\d+\s+\d+\s+\w+\s+\w+\s+-?\d+(\s+\S+){8}",
    "NCCL log": rb"\w+:\d+:\d+ \[\d+\] NCCL INFO .*",
}


def could_be_whole(name: str, data: bytes) -> bool:
    """Whether a file of this format could have been written like this: nothing then shows that a part is missing."""
    name = name.removesuffix(", real")
    if name in LINES:
        return data.endswith(b"\n") and all(re.fullmatch(LINES[name], line) for line in data.split(b"\n")[:-1])
    try:
        if name == "flight recorder":
            pickle.loads(data)
        else:
            json.loads(gzip.decompress(data) if "gzip" in name else data)
    except (ValueError, EOFError, OSError, zlib.error, pickle.UnpicklingError, KeyError, IndexError, TypeError):
        return False
    return True


@pytest.mark.parametrize("name", SAMPLES)
def test_200_damaged_logs(name, tmp_path):
    refused, lost = _check(name, tmp_path, 200)
    print(f"{name}: of 200, {refused} had nothing readable, {lost} lost calls")


def _check(name, folder, count):
    """Read damaged logs: none is lost without a word, but for files that look whole."""
    path = write_sample(name, folder)
    data = path.read_bytes()
    whole = len(read_logs([path]).calls)
    assert whole > 0
    random, refused, lost = np.random.default_rng(0), 0, 0
    for _ in range(count):
        broken = damaged(data, random)
        path.write_bytes(broken)
        began = time.process_time()
        try:
            logs = read_logs([path])
        except InputError:
            refused += 1
            continue
        finally:
            assert time.process_time() - began < 5
        lost += len(logs.calls) < whole
        assert len(logs.calls) >= whole or said_in(logs) or could_be_whole(name, broken), broken
        assert len(logs.calls) <= 3 * whole
        if name in ("csv", "inspector"):
            records = sum(bool(line.strip()) and line[:1] != b"#" for line in broken.split(b"\n"))
            assert len(logs.calls) + said_in(logs) >= records - 1
    return refused, lost


def test_a_compressed_trace_that_breaks_off_keeps_what_came_before(tmp_path):
    path = write_sample("profiler, gzip", tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 3 // 4])
    logs = read_logs([path])
    assert len(logs.calls) > 0
    assert "the compressed file breaks off or is damaged" in logs.calls.sources[0].skipped


def test_a_flight_recorder_pickle_that_breaks_off_keeps_whole_entries(tmp_path):
    """A job that is killed while it writes its dump leaves such a file."""
    path = write_sample("flight recorder", tmp_path)
    data = path.read_bytes()
    whole = read_logs([path]).calls
    path.write_bytes(data[: len(data) // 2])
    logs = read_logs([path])
    assert 5 <= len(logs.calls) < len(whole)
    assert logs.calls.groups == whole.groups
    assert any("the pickle breaks off" in reason for reason in logs.calls.sources[0].skipped)


def test_lost_calls_between_others_are_seen_by_their_numbers(tmp_path):
    path = write_sample("inspector", tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:5] + lines[8:]))
    assert read_logs([path]).calls.sources[0].notes == (
        "the numbers of 3 calls between others are not in the file: it lost them",
    )


def test_a_damaged_event_does_not_hide_the_others(tmp_path):
    path = write_sample("profiler", tmp_path)
    data = path.read_text()
    whole = len(read_logs([path]).calls)
    at = data.index('"cat": "kernel"', len(data) // 2)
    path.write_text(data[:at] + '"cat" oops' + data[at + 4 :])
    logs = read_logs([path])
    assert whole - 2 <= len(logs.calls) < whole
    assert sum(logs.calls.sources[0].skipped.values()) >= 1


def test_a_pickle_with_code_is_refused(tmp_path):
    import os

    class Bad:
        def __reduce__(self):
            return os.system, ("true",)

    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"entries": [Bad()]}))
    with pytest.raises(InputError, match="is not plain data"):
        read_logs([path])


def test_nothing_readable_is_an_error(tmp_path):
    (tmp_path / "a.txt").write_text("hello\n")
    with pytest.raises(InputError, match=r"no call could be read: .*none of the known formats"):
        read_logs([tmp_path])
    (tmp_path / "a.txt").write_text(json.dumps({"traceEvents": []}))
    with pytest.raises(InputError, match="no call could be read"):
        read_logs([tmp_path])
