"""What all compiled loops share: how they are compiled, a binary heap, a queue of events, arrays that grow."""

import inspect
import logging
import re
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from glob import escape as glob_escape
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba import njit
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    InTreeCacheLocator,
    UserProvidedCacheLocator,
    UserWideCacheLocator,
)
from numpy.typing import NDArray

from flowccl.compile_cache import lock, user_folder

log = logging.getLogger(__name__)

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

_Function = TypeVar("_Function", bound=Callable[..., Any])


_ENTRY: dict[str, Any] = {"nogil": True, "no_cfunc_wrapper": True}  # no other library calls it
_PART: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # Python does not call it
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
            result._cache = _Cache(function)
        except RuntimeError:
            log.warning("no folder for compiled loops is writable; set NUMBA_CACHE_DIR to one that is")
        _ENTRY_POINTS.append(result)
    return result  # type: ignore[no-any-return]


def loaded_files() -> list[str]:
    """The files in the cache with the machine code of all entry points that were loaded or compiled so far."""
    used = (entry for entry in _ENTRY_POINTS if entry.overloads and isinstance(entry._cache, _Cache))
    return [path for entry in used for path in entry._cache._cache_file.paths()]


class _UserFolderLocator(UserWideCacheLocator):  # type: ignore[misc]
    """Puts entries in flowccl's folder in the user's cache folder, where `__pycache__` is not writable."""

    def __init__(self, py_func: Any, py_file: str) -> None:
        super().__init__(py_func, py_file)
        self._cache_path = str(user_folder() / self.get_suitable_cache_subpath(py_file))


class _CacheImplementation(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (UserProvidedCacheLocator, InTreeCacheLocator, _UserFolderLocator)


class _Cache(FunctionCache):  # type: ignore[misc]
    _impl_class = _CacheImplementation

    """Holds a lock while a function is compiled: another process that needs the function waits and loads it."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._cache_file = _CacheFile(self._cache_path, self._impl.filename_base, _digest(function.__module__))
        self._lock_name = f"{function.__module__}.{function.__qualname__}"
        self._locked = ExitStack()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The machine code for a signature, or None; the caller then compiles it and calls `save_overload`."""
        found = super().load_overload(sig, target_context)
        if found is None:
            self._locked.close()  # of a compilation that failed
            self._locked.enter_context(lock(self._lock_name, wait=True))
            found = super().load_overload(sig, target_context)
            if found is not None:
                self._locked.close()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write what was compiled, and let other processes go on."""
        super().save_overload(sig, data)
        self._locked.close()


class _CacheFile(IndexDataCacheFile):  # type: ignore[misc]
    """Writes the machine code before the index that names it, and treats an index that cannot be read as empty.

    numba writes the index first, and gives the machine code of new source the file name of the old one: another process
    that reads between the two writes runs the old code. It also numbers the files, so that two processes that compile
    two signatures at once choose the same name. Here names contain digests of the source and of the signature. An index
    of an older version may name classes that no longer exist.
    """

    def save(self, key: Any, data: Any) -> None:
        """Add an entry."""
        names = self._load_index()
        stem = f"{Path(self._index_name).stem}.{self._source_stamp[:12]}"
        name = f"{stem}.{sha256(repr(key).encode()).hexdigest()[:12]}.nbc"  # two processes never choose the same one
        self._save_data(name, data)
        self._save_index({**self._load_index(), key: name})
        if not names:
            self._remove_others(stem)

    def paths(self) -> list[str]:
        """The index and what it names."""
        return [self._index_path, *map(self._data_path, self._load_index().values())]

    def _load_index(self) -> dict[Any, str]:
        try:
            return dict(super()._load_index())
        except (AttributeError, ImportError, EOFError):  # written by another version of flowccl
            return {}

    def _remove_others(self, stem: str) -> None:
        """Remove machine code that was compiled from other source."""
        for path in Path(self._cache_path).glob(f"{glob_escape(Path(self._index_name).stem)}.*.nbc"):
            if not path.name.startswith(stem):
                path.unlink(missing_ok=True)


def inner(function: _Function) -> _Function:
    """A part of an entry point that creates no arrays; its callers own the arrays that it receives.

    References to them are therefore not counted (numba's internal option `_nrt`). Counting takes longer than the work
    itself where tuples of many arrays are passed on. It is compiled together with every entry point that calls it.
    """
    return njit(**_INNER)(function)  # type: ignore[no-any-return]


def inlined(function: _Function) -> _Function:
    """As `inner`, but inlined at every call: for functions that are small, or that are called often in one place."""
    return njit(inline="always", **_INNER)(function)  # type: ignore[no-any-return]


def maker(function: _Function) -> _Function:
    """A part of an entry point that creates arrays."""
    return njit(**_PART)(function)  # type: ignore[no-any-return]


@cache
def _digest(module: str) -> str:
    """A digest of the source of a module and of all modules of flowccl that it imports, directly or not."""
    source = inspect.getsource(sys.modules[module])
    imported = re.findall(r"^from (flowccl[\w.]*) import", source, re.MULTILINE)
    return sha256("".join((source, *map(_digest, imported))).encode()).hexdigest()


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
