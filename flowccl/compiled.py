"""What all compiled loops share: how they are compiled, a binary heap, a queue of events, arrays that grow."""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from flowccl.machine_code import DiskCache, part, with_parts

log = logging.getLogger(__name__)

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

_Function = TypeVar("_Function", bound=Callable[..., Any])


_SAME: dict[str, Any] = {"no_cfunc_wrapper": True, "error_model": "numpy"}  # no other library calls it
_ENTRY: dict[str, Any] = {"nogil": True, **_SAME}
_PART: dict[str, Any] = {"no_cpython_wrapper": True, **_SAME}  # Python does not call it
_INNER: dict[str, Any] = {"_nrt": False, **_PART}
_ENTRY_POINTS: list[Any] = []


def compiled(function: _Function) -> _Function:
    """Compile an entry point with numba, for Python to call; the machine code is kept on disk until its source changes.

    numba alone only looks at the function's own file. A change in a module that it imports, compiled into the entry
    point, would go unnoticed; here the stamp of the cache is a digest of the module and of all that it imports.
    """
    result: Any = njit(**_ENTRY)(function)
    if hasattr(result, "_cache"):  # not where NUMBA_DISABLE_JIT is set
        try:
            result._cache = DiskCache(function)
        except RuntimeError:
            log.warning("no folder for compiled loops is writable; set NUMBA_CACHE_DIR to one that is")
        result.compile = with_parts(result.compile)
        _ENTRY_POINTS.append(result)
    return result  # type: ignore[no-any-return]


def loaded_files() -> list[str]:
    """The files in the cache with the machine code of all entry points that were loaded or compiled so far."""
    used = (entry for entry in _ENTRY_POINTS if entry.overloads and isinstance(entry._cache, DiskCache))
    return [path for entry in used for path in entry._cache._cache_file.paths()]


def inner(function: _Function) -> _Function:
    """A part of an entry point that creates no arrays; its callers own the arrays that it receives.

    References to them are therefore not counted (numba's internal option `_nrt`). Counting takes longer than the work
    itself where tuples of many arrays are passed on. Tuples with named fields are passed by reference. It is compiled
    together with every entry point that calls it.
    """
    return part(njit(**_INNER)(function), by_reference=True)  # type: ignore[no-any-return]


def inlined(function: _Function) -> _Function:
    """As `inner`, but inlined at every call: for functions that are small, or that are called often in one place."""
    return njit(inline="always", **_INNER)(function)  # type: ignore[no-any-return]


def maker(function: _Function) -> _Function:
    """A part of an entry point that creates arrays."""
    return part(njit(**_PART)(function))  # type: ignore[no-any-return]


@inner
def heap_push(key: NDArray[Any], what: NDArray[Any], size: int, value: float, code: int) -> None:
    """Add an entry to a binary heap with `size` entries, the least key first; the arrays must have space for it."""
    i = size
    while i > 0 and key[(i - 1) >> 1] > value:
        key[i], what[i] = key[(i - 1) >> 1], what[(i - 1) >> 1]
        i = (i - 1) >> 1
    key[i], what[i] = value, code


@inner
def heap_pop(key: NDArray[Any], what: NDArray[Any], size: int) -> int:
    """Remove the first of `size` entries from a binary heap; return its code."""
    code: int = what[0]
    value, last = key[size - 1], what[size - 1]
    i, size = 0, size - 1
    while True:
        j = 2 * i + 1
        if j >= size:
            break
        if j + 1 < size and key[j + 1] < key[j]:
            j += 1
        if key[j] >= value:
            break
        key[i], what[i] = key[j], what[j]
        i = j
    key[i], what[i] = value, last
    return code


@maker
def grown(array: NDArray[Any]) -> NDArray[Any]:
    """Return the same entries in an array of twice the length."""
    longer = np.empty(2 * len(array), dtype=array.dtype)
    for i in range(len(array)):
        longer[i] = array[i]
    return longer


class Queue(NamedTuple):
    """A queue of events, the earliest first, as a binary heap."""

    size: I64  # one number
    time: I64
    what: I64


@maker
def new_queue(space: int) -> Queue:
    """An empty queue with space for a number of events."""
    return Queue(np.zeros(1, dtype=np.int64), np.empty(space, dtype=np.int64), np.empty(space, dtype=np.int64))


@inner
def put(queue: Queue, time: int, what: int) -> None:
    """Add an event; the queue must have space."""
    heap_push(queue.time, queue.what, queue.size[0], time, what)
    queue.size[0] += 1


@inner
def take(queue: Queue) -> int:
    """Remove the first event; return its code."""
    queue.size[0] -= 1
    return heap_pop(queue.time, queue.what, queue.size[0] + 1)


@inner
def lacks_space(queue: Queue, more: int) -> bool:
    """Whether `more` further events do not fit."""
    return bool(queue.size[0] + more > len(queue.time))


@maker
def larger(queue: Queue) -> Queue:
    """Return the same events in a queue of twice the space."""
    return Queue(queue.size, grown(queue.time), grown(queue.what))


@maker
def exponential(x: Any) -> Any:
    """As `portable.exponential`, for a number or an array."""
    result = 1.0 + x * 2.0**-30
    for _ in range(30):
        result = result * result
    return result
