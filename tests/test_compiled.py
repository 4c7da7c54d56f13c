"""What compiled loops share."""

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba.core.caching import NullCache

from flowccl.compiled import compiled, heap_pop, heap_push, inner, larger, maker, new_queue, put, take

PART = "from flowccl.compiled import inner\n\n@inner\ndef part(x):\n    return x + {}\n"
WHOLE = (
    "from flowccl.compiled import compiled\nfrom flowccl_part import part\n\n"
    "@compiled\ndef whole(x):\n    return part(x)\n"
)


@compiled
def _sorted(keys):
    """The places of the keys in their order, through a heap."""
    key, what = np.empty(len(keys)), np.empty(len(keys), dtype=np.int64)
    for i in range(len(keys)):
        heap_push(key, what, i, keys[i], i)
    result = np.empty(len(keys), dtype=np.int64)
    for i in range(len(keys)):
        result[i] = heap_pop(key, what, len(keys) - i)
    return result


@compiled
def _queued(times):
    """The same through a queue that starts with room for one event."""
    queue = new_queue(1)
    for i in range(len(times)):
        if queue.size[0] == len(queue.time):
            queue = larger(queue)
        put(queue, times[i], i)
    result = np.empty(len(times), dtype=np.int64)
    for i in range(len(times)):
        result[i] = take(queue)
    return result


def test_a_heap_gives_the_least_first():
    keys = np.random.default_rng(0).permutation(100).astype(np.float64)
    assert _sorted(keys).tolist() == np.argsort(keys).tolist()


def test_a_queue_grows_and_gives_the_earliest_first():
    times = np.random.default_rng(1).permutation(100)
    assert _queued(times).tolist() == np.argsort(times).tolist()


@inner
def _times(factor, value):
    return factor * value


@maker
def _filled(count, value):
    result = np.empty(count, dtype=np.int64)
    for i in range(count):
        result[i] = _times(3, value)
    return result


@compiled
def _first(values):
    return _times(2, values[0])


@compiled
def _all(values):
    return _filled(_times(1, 4), _first(values)).sum()


def test_parts_are_compiled_once_for_all_constants_and_integers():
    """Two entry points share a part, and one of them calls the other."""
    assert _all(np.array([5], dtype=np.int32)) == 4 * 3 * 2 * 5
    assert _first(np.array([7])) == 14

    @compiled
    def several(values):
        return _times(2, values[0]) + _times(3, 4) + _times(np.int32(5), 6)

    several._cache = NullCache()  # compiled now
    assert several(np.array([7])) == 14 + 12 + 30
    assert len(_times.signatures) == 1


class _Inside(NamedTuple):
    number: int
    is_odd: bool
    share: float


class _Outside(NamedTuple):
    values: Any
    inside: _Inside
    table: Any
    marks: Any


@inner
def _mark(outside, i):
    """Change arrays of a tuple; a slice and an array with two dimensions are as usual."""
    outside.marks[i] = outside.inside.is_odd
    outside.table[i, 1] = outside.inside.number
    return outside.values[: i + 1].sum() * outside.inside.share


@inner
def _number_of(inside):
    return inside.number


@inner
def _longest(outside, other):
    """The same tuple may be received twice, and passed on; a tuple in it too."""
    return len(outside.values) + 100 * len(other.values) + 10_000 * _number_of(other.inside)


@compiled
def _through_tuples(outside):
    """Parts see what a variable holds when they are called, also in a loop that replaces it."""
    total = 0.0
    for i in range(len(outside.marks)):
        total += _mark(outside, i)
    lengths = np.zeros(4, dtype=np.int64)
    now = outside
    for i in range(4):
        lengths[i] = _longest(now, outside)
        now = _Outside(now.values[: len(now.values) - 1], _Inside(i, True, 1.0), now.table, now.marks)
    return total, lengths, _longest(now, now)


def test_parts_receive_tuples_by_reference():
    table, marks = np.zeros((3, 2), dtype=np.int64), np.zeros(3, dtype=np.bool_)
    outside = _Outside(np.arange(8), _Inside(7, True, 0.5), table, marks)
    total, lengths, last = _through_tuples(outside)
    assert total == 0.5 * (0 + 1 + 3)
    assert marks.all()
    assert table[:, 1].tolist() == [7, 7, 7]
    assert lengths.tolist() == [70_808, 70_807, 70_806, 70_805]
    assert last == 30_404


@compiled
def _assigned(target, source):
    target[:2] = source
    return target


def test_a_slice_of_another_shape_is_an_error():
    assert _assigned(np.zeros(3), np.ones(2)).tolist() == [1, 1, 0]
    with pytest.raises(ValueError, match="shape"):
        _assigned(np.zeros(3), np.ones(3))


OTHER = """
import numpy as np
from numba import njit
from flowccl.compiled import new_queue, put, compiled

@compiled
def first(values):
    queue = new_queue(4)
    put(queue, values[0], 7)
    return queue.what[0]

@njit
def part(a, b):
    return a // b

@njit
def whole(a, b):
    return part(a, b)

assert first(np.array([3])) == 7
assert whole(7, 2) == part(7, 2) == 3
try:
    whole(1, 0)
except ZeroDivisionError:
    print("define" in part.inspect_llvm(part.signatures[0]))
"""


def test_other_code_is_compiled_as_numba_does(tmp_path: Path):
    """Machine code of its own, a division by zero that is an error, a loop that Python can call.

    In a process of its own: loops of flowccl that are compiled after other code may crash.
    """
    (tmp_path / "other.py").write_text(OTHER)
    done = subprocess.run([sys.executable, str(tmp_path / "other.py")], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]


def test_what_is_on_disk_is_compiled_again_when_a_module_it_imports_changes(tmp_path: Path):
    """numba alone looks only at the module of the function itself."""
    (tmp_path / "flowccl_whole.py").write_text(WHOLE)
    said = []
    for number in (1, 1, 2):
        (tmp_path / "flowccl_part.py").write_text(PART.format(number))
        code = (
            "import sys; sys.path.insert(0, sys.argv[1]); from flowccl_whole import whole; "
            "print(whole(40), sum(whole.stats.cache_hits.values()))"
        )
        asked = [sys.executable, "-c", code, str(tmp_path)]
        said.append(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split())
    assert said == [["41", "0"], ["41", "1"], ["42", "0"]]
