"""Reading logs piece by piece: lines, and the objects of a large JSON array, also from damaged or compressed files."""

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from flowccl.errors import FileError

_PIECE = 1 << 20  # bytes that are read at once
_LONGEST = 1 << 26  # bytes of one line or one object; longer ones are damaged
_DECODER = json.JSONDecoder()
_GZIP = 31  # the window of gzip files, for zlib
DAMAGED = "damaged"
"""Why a part was skipped: it is not what the format allows."""
PACKED_DAMAGED = "the compressed file breaks off or is damaged"
"""Why the end of a compressed file was skipped."""
NO_END = "the last line has no line end: the file may break off there"
"""A note on a file of lines."""


def opened(path: Path) -> BinaryIO:
    """Return a file to read, as it is on the disk."""
    try:
        if path.is_dir():
            raise FileError(f"{path}: is a folder, not a file")
        return path.open("rb")
    except FileNotFoundError:
        raise FileError(f"{path}: no such file") from None
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror or error}") from None


def head(path: Path, size: int = 1 << 16) -> bytes:
    """Return the first bytes of a file; as many as can be decompressed."""
    found = b""
    with opened(path) as file:
        for piece in unpacked(file, Counter(), size):
            found += piece
            if len(found) >= size:
                break
    return found[:size]


def whole_file(path: Path, most: int, skipped: Counter[str]) -> bytes:
    """Return all bytes of a file, decompressed if it is gzip; raises FileError if there are more than `most`."""
    found, size = [], 0
    with opened(path) as file:
        for piece in unpacked(file, skipped):
            found.append(piece)
            size += len(piece)
            if size > most:
                raise FileError(f"{path}: has more than {most:,} bytes")
    return b"".join(found)


def pieces(path: Path, skipped: Counter[str]) -> Iterator[str]:
    """Yield the text of a file in pieces, none empty but the last; bytes that are not UTF-8 are replaced.

    A compressed file that breaks off is said to.
    """
    import codecs

    decoder = None
    with opened(path) as file:
        for piece in unpacked(file, skipped):
            if decoder is None:
                wide = piece[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
                decoder = codecs.getincrementaldecoder("utf-16" if wide else "utf-8-sig")("replace")
            if text := decoder.decode(piece):
                yield text
    if decoder is not None:
        yield decoder.decode(b"", True)


def lines(path: Path, skipped: Counter[str], notes: list[str] | None = None) -> Iterator[str]:
    """Yield the lines of a file without their ends; a note says if the last one has no end."""
    for block in blocks(path, skipped, notes):
        found = block.split("\n")
        if not found[-1]:
            found.pop()
        yield from found


def blocks(path: Path, skipped: Counter[str], notes: list[str] | None = None) -> Iterator[str]:
    """Yield whole lines, many at once; a note says if the last one has no end."""
    rest = ""
    for piece in pieces(path, skipped):
        end = piece.rfind("\n") + 1
        if end:
            yield rest + piece[:end]
            rest = piece[end:]
        else:
            rest += piece
        if len(rest) > _LONGEST:
            skipped["a line is too long"] += 1
            rest = ""
    if rest:
        if notes is not None:
            notes.append(NO_END)
        yield rest


def unpacked(file: BinaryIO, skipped: Counter[str], piece: int = _PIECE) -> Iterator[bytes]:
    """Yield the bytes of a file piece by piece, decompressed if it is gzip: all of them up to a damage."""
    try:
        first = file.read(piece)
        packed = first[:2] == b"\x1f\x8b"
        source = chain((first,), iter(lambda: file.read(piece), b""))
        yield from _gunzipped(source, skipped) if packed else (data for data in source if data)
    except OSError as error:
        raise FileError(f"{file.name}: cannot be read: {error.strerror or error}") from None


def _gunzipped(source: Iterable[bytes], skipped: Counter[str]) -> Iterator[bytes]:
    """The decompressed bytes of the members of a gzip file; what comes before a damage is not lost."""
    decoder, inside = zlib.decompressobj(wbits=_GZIP), False
    for data in source:
        left = data
        while left:
            before, inside = decoder.copy(), True
            try:
                found = decoder.decompress(left, _PIECE)
            except zlib.error:
                yield from _up_to_damage(before, memoryview(left))
                skipped[PACKED_DAMAGED] += 1
                return
            yield found
            left = decoder.unconsumed_tail
            if decoder.eof:
                left, inside = decoder.unused_data.lstrip(b"\0"), False
                decoder = zlib.decompressobj(wbits=_GZIP)
    if inside:
        yield decoder.flush()
        if not decoder.eof:
            skipped[PACKED_DAMAGED] += 1


def _up_to_damage(decoder: "zlib._Decompress", data: memoryview) -> Iterator[bytes]:
    """The bytes that can be decompressed before a damage, found in smaller and smaller steps."""
    for size in (4096, 64, 1):
        while data:
            before = decoder.copy()
            try:
                found = decoder.decompress(data[:size])
            except zlib.error:
                decoder = before
                break
            yield found
            data = data[size:]


class JsonArray:
    """The objects of the array behind a key of a JSON file, such as "traceEvents", one after the other.

    `rest` has the other keys of the file once all objects were read. A damaged object is counted, and reading goes on
    with the next one. A file that is only an array works too.
    """

    def __init__(self, path: Path, key: str, skipped: Counter[str]) -> None:
        self.path, self.key, self.skipped = path, key, skipped
        self.rest: dict[str, Any] = {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        source = pieces(self.path, self.skipped)
        text, at = self._to_array(source)
        while True:
            at = _after_space(text, at)
            if at < len(text) and text[at] == "]":
                self._tail(text[at + 1 :] + _all_of(source))
                return
            whole = at < len(text)
            if whole and text[at] == "{":
                value, end, whole = _decoded(text, at)
                if end >= 0:
                    at = end
                    yield value
                    continue
            if not whole and len(text) - at < _LONGEST and (more := next(source, "")):
                text, at = text[at:] + more, 0
                continue
            following = _next_object(text, at + 1)
            if at < len(text):
                self.skipped[f"{DAMAGED}: not a JSON object"] += 1
            if following < 0:
                self.skipped["the file breaks off"] += 1
                return
            at = following

    def _to_array(self, source: Iterator[str]) -> tuple[str, int]:
        """Read up to the "[" of the array; the keys before it go to `rest`."""
        text, mark = "", f'"{self.key}"'
        for piece in source:
            text += piece
            if text.lstrip()[:1] == "[":
                return text, text.index("[") + 1
            found = text.find(mark)
            start = text.find("[", found + len(mark)) if found >= 0 else -1
            if start >= 0:
                self._keys(text[:found].rstrip() + '"": 0}')
                return text, start + 1
            if len(text) > _LONGEST:
                break
        self.skipped[f"there is no list {mark}"] += 1
        return "]", 0

    def _tail(self, text: str) -> None:
        text = text.strip()
        if text.startswith(","):
            self._keys("{" + text[1:])
        elif text not in ("", "}"):
            self.skipped[f"{DAMAGED}: facts before or behind the list {self.key}"] += 1

    def _keys(self, text: str) -> None:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            self.skipped[f"{DAMAGED}: facts before or behind the list {self.key}"] += 1
            return
        if isinstance(value, dict):
            self.rest |= value


def _decoded(text: str, at: int) -> tuple[Any, int, bool]:
    """The value that starts here, where it ends (-1: it is damaged or not whole), and whether all of its text is here.

    A value whose text ends too early fails at the end of the text, or in a string that does not end.
    """
    try:
        value, end = _DECODER.raw_decode(text, at)
        return value, end, True
    except RecursionError:
        return None, -1, True
    except ValueError as error:
        place, reason = getattr(error, "pos", 0), getattr(error, "msg", "")
        return None, -1, place < len(text) - 8 and not reason.startswith("Unterminated")


def _after_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n,":
        at += 1
    return at


def _next_object(text: str, at: int) -> int:
    """Where the next object of the array may start: a "{" behind a comma or at the start of a line; -1 if none."""
    while (at := text.find("{", at)) >= 0:
        before = text[max(at - 40, 0) : at].rstrip(" \t")
        if before.endswith((",", "\n")):
            return at
        at += 1
    return -1


def _all_of(source: Iterator[str]) -> str:
    found, size = [], 0
    for piece in source:
        found.append(piece)
        size += len(piece)
        if size > _LONGEST:
            break
    return "".join(found)
