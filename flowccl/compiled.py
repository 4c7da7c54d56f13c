"""What all compiled loops share: how they are compiled, a binary heap, a queue of events, arrays that grow."""

import inspect
import re
import sys
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

_Function = TypeVar("_Function", bound=Callable[..., Any])


_PART: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # no door for Python to come in by
_INNER: dict[str, Any] = {"_nrt": False, **_PART}


def compiled(function: _Function) -> _Function:
    """A function compiled by numba for Python to call, and kept on disk until a module changes that it is made from.

    numba alone asks only whether the function's own file has changed: a new version of what that imports would not be
    seen, and the old one, compiled into its callers, would go on.
    """
    result: Any = njit(cache=True, nogil=True)(function)
    if hasattr(result, "_cache"):  # not where NUMBA_DISABLE_JIT is set
        result._cache._cache_file._source_stamp = _digest(function.__module__)
    return result  # type: ignore[no-any-return]


def inner(function: _Function) -> _Function:
    """A part of compiled functions that makes no arrays; those that it gets stay with its callers.

    So nobody has to count references to them, which takes longer than the work where tuples of many arrays are handed
    on (`_nrt` is numba's own name for that). Compiled anew with everything that is made from it.
    """
    return njit(**_INNER)(function)  # type: ignore[no-any-return]


def inlined(function: _Function) -> _Function:
    """As `inner`, but put in at the place of the call: for what is small, or called in one place and often."""
    return njit(inline="always", **_INNER)(function)  # type: ignore[no-any-return]


def maker(function: _Function) -> _Function:
    """A part of compiled functions that makes arrays."""
    return njit(**_PART)(function)  # type: ignore[no-any-return]


@cache
def _digest(module: str) -> str:
    """Of the source of a module of ours, and of all that it imports of ours."""
    source = inspect.getsource(sys.modules[module])
    imported = re.findall(r"^from (flowccl[\w.]*) import", source, re.MULTILINE)
    return sha256("".join((source, *map(_digest, imported))).encode()).hexdigest()


@inner
def heap_push(key: NDArray[Any], what: NDArray[Any], size: int, value: float, code: int) -> None:
    """Add to a binary heap with so many entries, the least key first; the arrays must have room."""
    i = size
    while i > 0 and key[(i - 1) >> 1] > value:
        key[i], what[i] = key[(i - 1) >> 1], what[(i - 1) >> 1]
        i = (i - 1) >> 1
    key[i], what[i] = value, code


@inner
def heap_pop(key: NDArray[Any], what: NDArray[Any], size: int) -> int:
    """Take the first of so many entries off a binary heap; returns what it is."""
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
    """The same entries, in an array twice as long."""
    longer = np.empty(2 * len(array), dtype=array.dtype)
    for i in range(len(array)):
        longer[i] = array[i]
    return longer


class Queue(NamedTuple):
    """Events, the earliest first: a binary heap."""

    size: I64  # one number
    time: I64
    what: I64


@maker
def new_queue(room: int) -> Queue:
    """No events yet, and room for so many."""
    return Queue(np.zeros(1, dtype=np.int64), np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64))


@inner
def put(queue: Queue, time: int, what: int) -> None:
    """Add an event; the queue must have room."""
    heap_push(queue.time, queue.what, queue.size[0], time, what)
    queue.size[0] += 1


@inner
def take(queue: Queue) -> int:
    """Remove the first event; returns what it is."""
    queue.size[0] -= 1
    return heap_pop(queue.time, queue.what, queue.size[0] + 1)


@inner
def lacks_space(queue: Queue, more: int) -> bool:
    """Whether so many more events do not fit."""
    return bool(queue.size[0] + more > len(queue.time))


@maker
def larger(queue: Queue) -> Queue:
    """The same events, and room for as many again."""
    return Queue(queue.size, grown(queue.time), grown(queue.what))
