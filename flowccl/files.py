"""Reading files with a size limit and writing them atomically. Each format is defined next to the data it stores."""

import gzip
import json
import os
import re
import tempfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from flowccl.errors import FileError
from flowccl.units import format_bytes


def read_json(path: str | Path, max_bytes: int) -> Any:
    """Return the value in a JSON file (.json or .json.gz). FileError gives the position of a syntax error."""
    path = Path(path)
    return parse_json(read_bytes(path, max_bytes), str(path))


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Return the bytes of a file, decompressed if it is gzip. Files of more than `max_bytes` bytes are refused."""
    try:
        if path.is_dir():
            raise FileError(f"{path}: is a folder, not a file")
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            if path.suffix == ".gz" and not packed:
                raise FileError(f"{path}: is not a gzip file; compress it or remove .gz from its name")
            if not packed and os.fstat(raw.fileno()).st_size > max_bytes:
                raise FileError(f"{path}: larger than {format_bytes(max_bytes)}, the size limit")
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise FileError(f"{path}: no such file") from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise FileError(f"{path}: cannot be read: {error}") from None
    if len(data) > max_bytes:
        raise FileError(f"{path}: larger than {format_bytes(max_bytes)}, the size limit")
    return data


def parse_json(data: bytes | str, name: str) -> Any:
    """Return the value in JSON text. NaN, Infinity and duplicate keys are refused."""
    if not data:
        raise FileError(f"{name}: not JSON: the file is empty")
    try:
        return json.loads(data, parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" starting at").removesuffix(" at")  # some messages end before the place
        raise FileError(f"{name}: not JSON: {what} at line {error.lineno}, column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise FileError(f"{name}: not JSON: byte {error.start} is not UTF-8") from None
    except RecursionError:
        raise FileError(f"{name}: cannot be read: nested too deeply") from None
    except ValueError as error:
        raise FileError(f"{name}: {error}") from None


def json_format(path: str | Path) -> str | None:
    """Return the `format` of a JSON file ("flowccl-schedule") from its first bytes; None if it has none."""
    path = Path(path)
    try:
        if not path.is_file():
            return None
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(4096)
    except (OSError, EOFError, ValueError, zlib.error):
        return None
    found = re.search(rb'"format"\s*:\s*"([a-z-]+)"', head)
    return found[1].decode() if found else None


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number that JSON allows")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise ValueError(f"key {twice!r} appears twice in one object")
    return result


def write_json(path: str | Path, value: Any, *, indent: int | None = None) -> None:
    """Write a value as JSON atomically; compressed if the name ends in .gz."""
    write_bytes(path, json_bytes(value, indent=indent))


def json_bytes(value: Any, *, indent: int | None = None) -> bytes:
    """Return a value as JSON text that ends with a newline."""
    separators = (",", ": ") if indent else (",", ":")
    text = json.dumps(value, indent=indent, separators=separators, allow_nan=False, ensure_ascii=False)
    return (text + "\n").encode()


def make_folder(path: Path) -> Path:
    """Create a folder, if there is none, inside one that exists; return its path."""
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise FileError(f"{path}: cannot be made: {error.strerror or error}") from None
    return path


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a file atomically: write a temporary file in the same folder, then rename it.

    The path must be free or name a regular file, which is replaced; a link is followed. Devices and pipes are refused,
    since renaming a file to /dev/null would replace the device itself.
    """
    path = Path(path)
    if path.suffix == ".gz":
        data = gzip.compress(data, compresslevel=6, mtime=0)
    try:
        if path.is_dir():
            raise FileError(f"{path}: is a folder, not a file")
        if path.exists() and not path.is_file():
            raise FileError(f"{path}: is a device or a pipe; give the name of a file")
        if not path.parent.is_dir():
            raise FileError(f"{path}: cannot be written: there is no folder {path.parent}")
        target = path.resolve()
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror or error}") from None
