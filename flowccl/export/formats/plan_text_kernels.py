"""Reads the operations in the text of an MSCCL++ plan, compiled; gives up on everything that is not quite usual.

The text of all operations is read here, the rest is left to `json`. Where this gives up, the reader of single
operations reads the whole file, and says what is wrong with it.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowccl.compiled import F64, I64, compiled, grown, inner, maker

U8 = NDArray[np.uint8]
TYPE, BUFFER_ID, SWITCH_ID = range(3)
"""How the text names a buffer: by its type, as a remote one, or as one of a switch."""
_NAME, _SOURCES, _TARGETS, _CHANNELS, _CHANNEL_TYPE, _SEMAPHORES, _MESSAGE, _START, _RATE, _LEAVES = range(10)
_LINKS = 10
KEYS = [
    "name",
    "src_buff",
    "dst_buff",
    "channel_ids",
    "channel_type",
    "semaphore_ids",
    "message",
    "start_ps",
    "GBps",
    "leaves",
    "links",
    "type",
    "buffer_id",
    "switch_channel_id",
    "index",
    "size",
    "ops",
    "memory",
    "port",
    "switch",
]
_OPS, _MEMORY = KEYS.index("ops"), KEYS.index("memory")
_TYPE_KEY, _INDEX_KEY, _SIZE_KEY = KEYS.index("type"), KEYS.index("index"), KEYS.index("size")
_FAILED = -1
_MOST_IDS = 64  # in one operation
_MOST_DIGITS = 15
_EXACT = 22  # powers of ten up to this one are exact


class Words(NamedTuple):
    """Some words, one after the other."""

    text: U8
    ptr: I64


class PlanText(NamedTuple):
    """The operations of a plan: columns per operation, per buffer that they name, and their lists of numbers."""

    name: I64
    channel_type: I64  # 0: memory, 1: port, 2: switch, -1: none
    channels: I64  # two columns: from, until
    semaphores: I64
    links: I64
    sources: I64
    targets: I64
    message: I64
    start_ps: I64
    GBps: F64
    leaves: I64
    kind: I64
    value: I64
    offset: I64
    size: I64


@maker
def with_space(array: Any, least: int) -> Any:
    """Return the same entries in an array of at least a length."""
    while len(array) < least:
        array = grown(array)
    return array


@inner
def _skip(data: U8, at: int) -> int:
    """Skip white space."""
    while at < len(data) and (data[at] == 32 or data[at] == 10 or data[at] == 13 or data[at] == 9):
        at += 1
    return at


@inner
def _expect(data: U8, at: int, character: int) -> int:
    """Return the place after a character and the white space around it."""
    at = _skip(data, at)
    if at >= len(data) or data[at] != character:
        return _FAILED
    return _skip(data, at + 1)


@inner
def _word_end(data: U8, at: int) -> int:
    """Return the place of the quote that ends a string; its first character is at `at`."""
    while at < len(data) and data[at] != 34:
        if data[at] == 92 or data[at] < 32:
            return _FAILED
        at += 1
    return at if at < len(data) else _FAILED


@inner
def _find(data: U8, begin: int, end: int, words: Words) -> int:
    """Return the number of a word, or -1."""
    for w in range(len(words.ptr) - 1):
        if words.ptr[w + 1] - words.ptr[w] == end - begin:
            same = True
            for i in range(end - begin):
                if data[begin + i] != words.text[words.ptr[w] + i]:
                    same = False
                    break
            if same:
                return w
    return -1


@inner
def _integer(data: U8, at: int, out: I64) -> int:
    """Read a whole number of at least 0 into `out[0]`; return the place after it."""
    begin, value = at, 0
    while at < len(data) and 48 <= data[at] <= 57 and at - begin < 18:
        value = 10 * value + (int(data[at]) - 48)
        at += 1
    if at == begin or at >= len(data) or (data[begin] == 48 and at > begin + 1):
        return _FAILED
    after = data[at]
    out[0] = value
    return at if after in (44, 93, 125, 32, 10) else _FAILED


@inner
def _decimal(data: U8, at: int, out: F64) -> int:
    """Read a number of few digits, such as 12.5 or 1.5e-05, into `out[0]`; return the place after it."""
    begin, value, digits, behind = at, 0, 0, -1
    while at < len(data) and (48 <= data[at] <= 57 or (data[at] == 46 and behind < 0 and at > begin)):
        if data[at] == 46:
            behind = 0
        else:
            value, digits = 10 * value + (int(data[at]) - 48), digits + 1
            behind += 1 if behind >= 0 else 0
        at += 1
    padded = data[begin] == 48 and at > begin + 1 and data[begin + 1] != 46
    if digits == 0 or digits > _MOST_DIGITS or behind == 0 or padded:
        return _FAILED
    power = -max(behind, 0)
    if at < len(data) and (data[at] == 101 or data[at] == 69):
        at += 1
        sign = 1
        if at < len(data) and (data[at] == 43 or data[at] == 45):
            sign = -1 if data[at] == 45 else 1
            at += 1
        first, more = at, 0
        while at < len(data) and 48 <= data[at] <= 57 and at - first < 4:
            more = 10 * more + (int(data[at]) - 48)
            at += 1
        if at == first:
            return _FAILED
        power += sign * more
    if at >= len(data) or power < -_EXACT or power > _EXACT:
        return _FAILED
    after = data[at]
    if after not in (44, 93, 125, 32, 10):
        return _FAILED
    scale = 1.0
    for _ in range(abs(power)):
        scale *= 10.0
    out[0] = value / scale if power < 0 else value * scale
    return at


@inner
def _numbers(data: U8, at: int, ids: I64, count: I64, number: I64) -> int:
    """Read a list of whole numbers to the end of `ids`; return the place after it."""
    at = _expect(data, at, 91)
    if at < 0:
        return _FAILED
    if at < len(data) and data[at] == 93:
        return at + 1
    for _ in range(_MOST_IDS):
        at = _integer(data, at, number)
        if at < 0:
            return _FAILED
        ids[count[1]] = number[0]
        count[1] += 1
        at = _skip(data, at)
        if at < len(data) and data[at] == 93:
            return at + 1
        at = _expect(data, at, 44)
        if at < 0:
            return _FAILED
    return _FAILED


@inner
def _buffer(data: U8, at: int, keys: Words, row: int, text: PlanText, number: I64) -> int:
    """Read a buffer: which one, from where, and how many chunks."""
    at = _expect(data, at, 123)
    seen = 0
    for _ in range(3):
        if at < 0 or at >= len(data) or data[at] != 34:
            return _FAILED
        end = _word_end(data, at + 1)
        key = _find(data, at + 1, end, keys) if end >= 0 else -1
        at = _expect(data, end + 1, 58) if key >= _TYPE_KEY and key <= _SIZE_KEY else _FAILED
        field = 1 if key == _INDEX_KEY else 2 if key == _SIZE_KEY else 0
        if at < 0 or seen >> field & 1:
            return _FAILED
        seen |= 1 << field
        if key == _TYPE_KEY:
            if at + 2 >= len(data) or data[at] != 34 or data[at + 2] != 34:
                return _FAILED
            text.kind[row], text.value[row] = TYPE, data[at + 1]
            at += 3
        else:
            at = _integer(data, at, number)
            if field == 0:
                text.kind[row], text.value[row] = key - _TYPE_KEY, number[0]
            elif field == 1:
                text.offset[row] = number[0]
            else:
                text.size[row] = number[0]
        if at < 0:
            return _FAILED
        at = _skip(data, at)
        if seen != 7:
            at = _expect(data, at, 44)
    return at + 1 if 0 <= at < len(data) and data[at] == 125 else _FAILED


@inner
def _buffers(data: U8, at: int, keys: Words, text: PlanText, count: I64, number: I64) -> int:
    """Read a list of buffers; return the place after it."""
    at = _expect(data, at, 91)
    if at < 0:
        return _FAILED
    if at < len(data) and data[at] == 93:
        return at + 1
    while True:
        if count[2] >= len(text.kind):
            return _FAILED
        at = _buffer(data, at, keys, count[2], text, number)
        if at < 0:
            return _FAILED
        count[2] += 1
        at = _skip(data, at)
        if at < len(data) and data[at] == 93:
            return at + 1
        at = _expect(data, at, 44)
        if at < 0:
            return _FAILED


@inner
def _field(
    data: U8, at: int, key: int, keys: Words, names: Words, text: PlanText, ids: I64, count: I64, number: I64, rate: F64
) -> int:
    """Read one field of an operation; return the place after it."""
    n = count[0]
    if key in (_NAME, _CHANNEL_TYPE):
        if at >= len(data) or data[at] != 34:
            return _FAILED
        end = _word_end(data, at + 1)
        word = _find(data, at + 1, end, names if key == _NAME else keys) if end >= 0 else -1
        if key == _NAME:
            text.name[n] = word
        else:
            word -= _MEMORY
            text.channel_type[n] = word
        return end + 1 if word >= 0 else _FAILED
    if key in (_SOURCES, _TARGETS):
        column = text.sources if key == _SOURCES else text.targets
        column[n, 0] = count[2]
        at = _buffers(data, at, keys, text, count, number)
        column[n, 1] = count[2]
        return at
    if key in (_CHANNELS, _SEMAPHORES, _LINKS):
        column = text.channels if key == _CHANNELS else text.semaphores if key == _SEMAPHORES else text.links
        column[n, 0] = count[1]
        at = _numbers(data, at, ids, count, number)
        column[n, 1] = count[1]
        return at
    if key in (_MESSAGE, _START):
        at = _integer(data, at, number)
        if key == _MESSAGE:
            text.message[n] = number[0]
        else:
            text.start_ps[n] = number[0]
        return at
    if key == _RATE:
        at = _decimal(data, at, rate)
        text.GBps[n] = rate[0]
        return at
    if at + 4 >= len(data) or data[at] != 116 or data[at + 1] != 114 or data[at + 2] != 117 or data[at + 3] != 101:
        return _FAILED
    text.leaves[n] = 1
    return at + 4


@inner
def _operation(
    data: U8, at: int, keys: Words, names: Words, text: PlanText, ids: I64, count: I64, number: I64, rate: F64
) -> int:
    """Read one operation; return the place after it."""
    at = _expect(data, at, 123)
    seen = 0
    while at >= 0:
        if at >= len(data) or data[at] != 34:
            return _FAILED
        end = _word_end(data, at + 1)
        key = _find(data, at + 1, end, keys) if end >= 0 else -1
        if key < 0 or key > _LINKS or seen >> key & 1:
            return _FAILED
        seen |= 1 << key
        at = _expect(data, end + 1, 58)
        if at < 0:
            return _FAILED
        at = _field(data, at, key, keys, names, text, ids, count, number, rate)
        if at < 0:
            return _FAILED
        at = _skip(data, at)
        if at < len(data) and data[at] == 125:
            return at + 1 if seen >> _NAME & 1 else _FAILED
        at = _expect(data, at, 44)
    return _FAILED


@compiled
def scan_plan(data: U8, keys: Words, names: Words, text: PlanText, places: I64) -> tuple[int, I64, I64]:
    """Read all lists of operations; return their number or -1, the lists of numbers, and the counts of what was read.

    `places` gets (begin of its text, end, first operation) of each list. Lists are where plans have them: five levels
    deep, under "ops".
    """
    count, number, rate = np.zeros(3, dtype=np.int64), np.zeros(1, dtype=np.int64), np.zeros(1)
    ids = np.empty(4096, dtype=np.int64)
    at, depth, lists = 0, 0, 0
    while at < len(data):
        character = data[at]
        if character == 34:
            end = _word_end(data, at + 1)
            if end < 0:
                return _FAILED, ids, count
            after = _expect(data, end + 1, 58)
            is_list = after >= 0 and after < len(data) and data[after] == 91
            if depth == 5 and is_list and _find(data, at + 1, end, keys) == _OPS:
                if lists >= len(places):
                    return _FAILED, ids, count
                places[lists, 0], places[lists, 2] = after, count[0]
                at = _skip(data, after + 1)
                while at < len(data) and data[at] != 93:
                    while count[1] + 4 * _MOST_IDS > len(ids):
                        ids = grown(ids)
                    if count[0] >= len(text.name):
                        return _FAILED, ids, count
                    at = _operation(data, at, keys, names, text, ids, count, number, rate)
                    if at < 0:
                        return _FAILED, ids, count
                    count[0] += 1
                    at = _skip(data, at)
                    if at < len(data) and data[at] == 44:
                        at = _skip(data, at + 1)
                        if at < len(data) and data[at] == 93:
                            return _FAILED, ids, count
                    elif at >= len(data) or data[at] != 93:
                        return _FAILED, ids, count
                at += 1
                places[lists, 1] = at
                lists += 1
            else:
                at = end + 1
        else:
            if character in (123, 91):
                depth += 1
            elif character in (125, 93):
                depth -= 1
            at += 1
    return lists, ids, count
