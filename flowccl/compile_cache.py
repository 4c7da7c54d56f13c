"""The on-disk cache of compiled loops: where it is, how entries are written, and which methods are in it.

Entries lie in `__pycache__` beside each module, as numba's do. Where that is not writable they lie in the user's cache
folder: `$XDG_CACHE_HOME/flowccl/numba`, `~/.cache/flowccl/numba`, or what the platform has instead. `NUMBA_CACHE_DIR`
overrides both. This module does not import numba, so asking which methods are compiled takes milliseconds.
"""

import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

_PACKAGE = Path(__file__).parent
_IMPORTED = re.compile(r"^from (flowccl[\w.]*) import", re.MULTILINE)


def user_folder() -> Path:
    """The folder for entries of modules that have no writable `__pycache__`."""
    if sys.platform == "win32":
        parent = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin" and not os.environ.get("XDG_CACHE_HOME"):
        parent = Path.home() / "Library" / "Caches"
    else:
        parent = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return parent / "flowccl" / "numba"


def folder() -> Path | None:
    """The folder with the records of compiled methods and the locks; None where no folder is writable."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    places = [Path(given)] if given else [_PACKAGE / "__pycache__", user_folder()]
    return next(filter(is_writable, places), None)


def is_writable(path: Path) -> bool:
    """Whether files can be created in a folder, which is created where it is missing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError:
        return False
    return True


def source_digest(modules: Iterable[str], root: Path = _PACKAGE.parent) -> str:
    """A digest of the source of modules of flowccl and of everything of flowccl that they import, directly or not."""
    seen: dict[str, bytes] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            path = root / Path(*name.split("."))
            path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            seen[name] = path.read_bytes()
            waiting += _IMPORTED.findall(seen[name].decode())
    return hashlib.sha256(b"".join(seen[name] for name in sorted(seen))).hexdigest()


def is_compiled(method: str) -> bool:
    """Whether all loops of a method are in the cache, for this processor and this source."""
    record = _record_of(method)
    if record is None or not record.is_file():
        return False
    try:
        found = json.loads(record.read_text())
    except (OSError, ValueError):
        return False
    return bool(found["fingerprint"] == _fingerprint() and all(map(os.path.exists, found["files"])))


def record_compiled(method: str, files: Iterable[str]) -> None:
    """Record that all loops of a method are in the cache, in these files. Call it when they have been written."""
    record = _record_of(method)
    if record is not None:
        write_whole(record, json.dumps({"fingerprint": _fingerprint(), "files": sorted(files)}).encode())


def write_whole(path: Path, data: bytes) -> None:
    """Write a file such that other processes see all of it or nothing."""
    temporary = path.with_name(f"{path.name}.{uuid4().hex[:16]}.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)


@contextmanager
def lock(name: str, *, wait: bool) -> Iterator[bool]:
    """Hold a lock that all processes with the same cache share; yields False where another process holds it.

    The lock ends with the process. Where the platform has none, everybody gets it.
    """
    where = folder()
    try:
        import fcntl
    except ImportError:  # Windows
        where = None
    if where is None:
        yield True
        return
    with (where / f"flowccl-{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def _record_of(method: str) -> Path | None:
    where = folder()
    return None if where is None else where / f"flowccl-{method}.{sys.implementation.cache_tag}.json"


@cache
def _fingerprint() -> str:
    """Everything that the machine code depends on: the source of the loops, the compiler, and the processor."""
    import llvmlite.binding as llvm

    paths = _PACKAGE.rglob("*kernels.py")
    names = (".".join(path.relative_to(_PACKAGE.parent).with_suffix("").parts) for path in paths)
    processor = os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()
    facts = [version("numba"), version("llvmlite"), processor, llvm.get_process_triple(), sys.version]
    return hashlib.sha256("\n".join([*facts, source_digest(names)]).encode()).hexdigest()
