"""Damaged logs of every format: what was lost is said, nothing hangs, and only known errors are raised."""

import json
import time

import numpy as np
import pytest

from flowccl.errors import InputError
from flowccl.jobs.reading import read_logs
from tests.jobs.samples import SAMPLES, write_sample


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


@pytest.mark.parametrize("name", SAMPLES)
def test_damaged_logs(name, tmp_path):
    assert _silent(name, tmp_path, 25) <= 8


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_200_damaged_logs(name, tmp_path):
    silent = _silent(name, tmp_path, 200)
    print(f"{name}: {silent} of 200 lost calls and said nothing")
    assert silent <= 40  # what is missing between two whole lines cannot be seen


def _silent(name, folder, count) -> int:
    """Read damaged logs; return how many of them lost calls without a word."""
    path = write_sample(name, folder)
    data = path.read_bytes()
    whole = len(read_logs([path]).calls)
    assert whole > 0
    random, silent = np.random.default_rng(0), 0
    for _ in range(count):
        path.write_bytes(damaged(data, random))
        began = time.monotonic()
        try:
            logs = read_logs([path])
        except InputError:
            continue
        finally:
            assert time.monotonic() - began < 5
        lost = sum(sum(source.skipped.values()) for source in logs.calls.sources)
        silent += len(logs.calls) < whole and not lost and not logs.failed
        assert len(logs.calls) <= 3 * whole
    return silent


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
    import pickle

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
