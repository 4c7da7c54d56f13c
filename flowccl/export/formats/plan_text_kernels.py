"""The text of the operations of MSCCL++ plans, as flowccl writes it, and how it is read as rows of numbers, compiled.

Every operation has its fields in the same order, without white space. Where a text has another form, the reader of rows
gives up, and `read_mscclpp` writes the operations again in this form.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowccl.compiled import F64, I64, compiled, grown, inner, maker

U8 = NDArray[np.uint8]

NAMES = [
    "nop", "copy", "re", "put", "pws", "pwsf", "signal", "rlxsignal", "wait", "rlxwait", "sem_acquire", "sem_release",
    "flush", "glres", "gstore", "ppkt", "rppkt", "upkt", "repkt", "loop", "loop_end",
]  # fmt: skip
(
    NOP, COPY, RE, PUT, PWS, PWSF, SIGNAL, RLXSIGNAL, WAIT, RLXWAIT, ACQUIRE, RELEASE,
    FLUSH, GLRES, GSTORE, PPKT, RPPKT, UPKT, REPKT, LOOP, LOOP_END,
) = range(len(NAMES))  # fmt: skip
"""The operations; the last two are the marks around the operations of a pipeline, which a threadblock repeats."""
TYPES = ["memory", "port", "switch"]
MEMORY, PORT, SWITCH = range(3)
TYPE, BUFFER_ID, SWITCH_ID = range(3)
"""How an operation names a buffer: by its type, as one of another GPU, or as one of a switch."""

NAME, CHANNEL_TYPE, MESSAGE, START, LEAVES, SOURCES, TARGETS, CHANNELS, SEMAPHORES, LINKS = range(10)
"""Columns of an operation. The last five are ends of its lists; each list begins where the one before it ends, the
sources and the channels of an operation where the targets and the links of the operation before it end."""
KIND, VALUE, INDEX, SIZE = range(4)
"""Columns of a buffer; VALUE is the letter of its type, or a number in a table of the threadblock."""

WORDS = [
    *NAMES, *TYPES, '{"name":"', '"', ',"src_buff":[', ',"dst_buff":[', ',"channel_ids":[', ',"channel_type":"',
    ',"semaphore_ids":[', ',"message":', ',"start_ps":', ',"GBps":', ',"links":[', ',"leaves":true',
    '{"type":"', '{"buffer_id":', '{"switch_channel_id":', ',"index":', ',"size":',
    '{"name":"pipeline","iter_context":{"unit_size":', ',"num_chunks":1},"ops":[\n', '\n],"end":true}', ",\n", ",", "]",
    "}",
]  # fmt: skip
TYPES_WORD = len(NAMES)
(
    NAME_WORD, QUOTE_WORD, SOURCES_WORD, TARGETS_WORD, CHANNELS_WORD, TYPE_WORD, SEMAPHORES_WORD, MESSAGE_WORD,
    START_WORD, RATE_WORD, LINKS_WORD, LEAVES_WORD, BUFFER_WORD, REMOTE_WORD, SWITCH_WORD, INDEX_WORD, SIZE_WORD,
    LOOP_WORD, BODY_WORD, LOOP_END_WORD, NEXT_WORD, COMMA_WORD, LIST_END_WORD, END_WORD,
) = range(TYPES_WORD + len(TYPES), len(WORDS))  # fmt: skip
_FAILED = -1
_MOST_IDS = 4096  # in the lists of one operation
_MOST_DIGITS = 15
_EXACT = 22  # powers of ten up to this one are exact


class Words(NamedTuple):
    """Some words, one after the other."""

    text: U8
    ptr: I64


class OperationRows(NamedTuple):
    """Operations and the buffers that they name as rows, and their lists of numbers. Row 0 is before all operations."""

    operations: I64
    buffers: I64
    ids: I64


class Hints(NamedTuple):
    """The start of each message, and its rate and its path as words, for its threadblocks; the runtime ignores them."""

    start: I64
    rate: I64
    path: I64


@maker
def with_rows(rows: I64, least: int) -> I64:
    """Return the same rows in an array of at least a length."""
    if least <= len(rows):
        return rows
    more = np.zeros((2 * least, rows.shape[1]), dtype=np.int64)
    more[: len(rows)] = rows
    return more


@inner
def _after(data: U8, at: int, words: Words, k: int) -> int:
    """Return the place after a word, or -1 if there is another one."""
    size = words.ptr[k + 1] - words.ptr[k]
    if at < 0 or at + size >= len(data):
        return _FAILED
    for i in range(size):
        if data[at + i] != words.text[words.ptr[k] + i]:
            return _FAILED
    return int(at + size)


@inner
def _named(data: U8, at: int, words: Words, low: int, high: int) -> int:
    """Return which of some words is before the next quote, or -1."""
    for k in range(low, high):
        if _after(data, _after(data, at, words, k), words, QUOTE_WORD) >= 0:
            return k
    return _FAILED


@inner
def _number(data: U8, at: int, out: I64) -> int:
    """Read a whole number of at least 0 into `out[0]`; return the place after it."""
    begin, value = at, 0
    while 0 <= at < len(data) and 48 <= data[at] <= 57 and at - begin < 18:
        value = 10 * value + (int(data[at]) - 48)
        at += 1
    out[0] = value
    return at if at > begin and (data[begin] != 48 or at == begin + 1) else _FAILED


@inner
def _decimal(data: U8, at: int, out: F64) -> int:
    """Read a number of few digits, such as 12.5 or 1.5e-05, into `out[0]`; return the place after it."""
    begin, value, digits, behind = at, 0, 0, -1
    while at < len(data) and at - begin < 32 and (48 <= data[at] <= 57 or (data[at] == 46 and behind < 0)):
        if data[at] == 46:
            behind = 0
        else:
            value = 10 * value + (int(data[at]) - 48)
            digits += 1 if value else 0
            behind += 1 if behind >= 0 else 0
        at += 1
    is_padded = data[begin] == 48 and at > begin + 1 and data[begin + 1] != 46
    if at == begin or digits > _MOST_DIGITS or behind == 0 or is_padded or data[begin] == 46:
        return _FAILED
    power = -max(behind, 0)
    if at + 1 < len(data) and data[at] == 101:
        sign = -1 if data[at + 1] == 45 else 1
        first, more = at + 2, 0
        at = first
        while at < len(data) and 48 <= data[at] <= 57 and at - first < 4:
            more = 10 * more + (int(data[at]) - 48)
            at += 1
        if at == first:
            return _FAILED
        power += sign * more
    if power < -_EXACT or power > _EXACT:
        return _FAILED
    scale = 1.0
    for _ in range(abs(power)):
        scale *= 10.0
    out[0] = value / scale if power < 0 else value * scale
    return at


@inner
def _read_ids(data: U8, at: int, words: Words, word: int, ids: I64, size: int, number: I64) -> tuple[int, int]:
    """Read a list of whole numbers, if there is one; return the place after it, and the end of `ids`."""
    first, low = _after(data, at, words, word), size
    if first < 0:
        return at, size
    at = _after(data, first, words, LIST_END_WORD)
    if at >= 0:
        return at, size
    at = first
    while size - low < _MOST_IDS:
        at = _number(data, at, number)
        if at < 0:
            break
        ids[size] = number[0]
        size += 1
        end = _after(data, at, words, LIST_END_WORD)
        if end >= 0:
            return end, size
        at = _after(data, at, words, COMMA_WORD)
        if at >= 0 and data[at] == 32:
            at += 1
    return _FAILED, size


@inner
def _read_buffers(data: U8, at: int, words: Words, word: int, buffers: I64, size: int, number: I64) -> tuple[int, int]:
    """Read a list of buffers, if there is one; return the place after it, and the number of all buffers."""
    first = _after(data, at, words, word)
    if first < 0:
        return at, size
    at = _after(data, first, words, LIST_END_WORD)
    if at >= 0:
        return at, size
    at = first
    while size < len(buffers):
        kind, after = -1, _FAILED
        for k in range(3):
            if after < 0:
                kind, after = k, _after(data, at, words, BUFFER_WORD + k)
        if after < 0:
            break
        if kind == TYPE:
            buffers[size, VALUE] = data[after]
            at = _after(data, after + 1, words, QUOTE_WORD)
        else:
            at = _number(data, after, number)
            buffers[size, VALUE] = number[0]
        at = _number(data, _after(data, at, words, INDEX_WORD), number)
        buffers[size, KIND], buffers[size, INDEX] = kind, number[0]
        at = _number(data, _after(data, at, words, SIZE_WORD), number)
        buffers[size, SIZE] = number[0]
        at, size = _after(data, at, words, END_WORD), size + 1
        if at < 0:
            break
        end = _after(data, at, words, LIST_END_WORD)
        if end >= 0:
            return end, size
        at = _after(data, at, words, COMMA_WORD)
    return _FAILED, size


@inner
def _read_hints(data: U8, at: int, words: Words, op: I64, number: I64, rate: F64) -> int:
    """Read the message, the start and the rate of an operation, if it has them."""
    for word, column in ((MESSAGE_WORD, MESSAGE), (START_WORD, START)):
        after = _after(data, at, words, word)
        if after >= 0:
            at = _number(data, after, number)
            op[column] = number[0]
    after = _after(data, at, words, RATE_WORD)
    return _decimal(data, after, rate) if after >= 0 else at


@inner
def _read_operation(data: U8, at: int, words: Words, rows: OperationRows, n: int, number: I64, rate: F64) -> int:
    """Read the operation of row n; return the place after it, or -1."""
    op, before = rows.operations[n], rows.operations[n - 1]
    at = _after(data, at, words, NAME_WORD)
    name = _named(data, at, words, 0, LOOP)
    if name < 0:
        return _FAILED
    at = _after(data, _after(data, at, words, name), words, QUOTE_WORD)
    op[NAME], op[CHANNEL_TYPE], op[MESSAGE] = name, -1, -1
    at, op[SOURCES] = _read_buffers(data, at, words, SOURCES_WORD, rows.buffers, before[TARGETS], number)
    at, op[TARGETS] = _read_buffers(data, at, words, TARGETS_WORD, rows.buffers, op[SOURCES], number)
    at, op[CHANNELS] = _read_ids(data, at, words, CHANNELS_WORD, rows.ids, before[LINKS], number)
    after = _after(data, at, words, TYPE_WORD)
    if after >= 0:
        kind = _named(data, after, words, TYPES_WORD, TYPES_WORD + SWITCH + 1)
        if kind < 0:
            return _FAILED
        op[CHANNEL_TYPE], at = kind - TYPES_WORD, _after(data, _after(data, after, words, kind), words, QUOTE_WORD)
    at, op[SEMAPHORES] = _read_ids(data, at, words, SEMAPHORES_WORD, rows.ids, op[CHANNELS], number)
    rate[0] = 0.0
    at = _read_hints(data, at, words, op, number, rate)
    at, op[LINKS] = _read_ids(data, at, words, LINKS_WORD, rows.ids, op[SEMAPHORES], number)
    after = _after(data, at, words, LEAVES_WORD)
    if after >= 0:
        op[LEAVES], at = 1, after
    return _after(data, at, words, END_WORD)


@inner
def _mark(rows: OperationRows, n: int, name: int) -> None:
    """Make a row of the mark before or after the operations of a pipeline."""
    op, before = rows.operations[n], rows.operations[n - 1]
    op[NAME], op[CHANNEL_TYPE], op[MESSAGE] = name, -1, -1
    op[SOURCES], op[TARGETS] = before[TARGETS], before[TARGETS]
    op[CHANNELS], op[SEMAPHORES], op[LINKS] = before[LINKS], before[LINKS], before[LINKS]


@compiled
def read_lists(data: U8, begin: I64, words: Words, rows: OperationRows, rates: F64) -> tuple[I64, I64, I64, int]:
    """Read the lists of operations that begin at some places.

    Return where each of them ends, and its first operation, from 0; the numbers in the rows, and the bytes that a
    pipeline moves, 0 without any. It is -1 where the text has another form, or pipelines differ in it.
    """
    number, rate, n, unit = np.zeros(1, dtype=np.int64), np.zeros(1), 0, 0
    end, first = np.zeros(len(begin), dtype=np.int64), np.zeros(len(begin) + 1, dtype=np.int64)
    for k in range(len(begin)):
        at, inside = _after(data, begin[k], words, LIST_END_WORD), False
        if at < 0:
            at = begin[k]
            while at >= 0:
                if rows.operations[n, LINKS] + 3 * _MOST_IDS > len(rows.ids):
                    rows = OperationRows(rows.operations, rows.buffers, grown(rows.ids))
                after = _after(data, at, words, LOOP_WORD)
                if after >= 0:
                    n, after = n + 1, _number(data, after, number)
                    _mark(rows, n, LOOP)
                    if inside or (unit and unit != number[0]):
                        return end, first, rows.ids, _FAILED
                    inside, unit, at = True, number[0], _after(data, after, words, BODY_WORD)
                if n + 1 >= len(rows.operations):
                    return end, first, rows.ids, _FAILED
                n += 1
                at = _read_operation(data, at, words, rows, n, number, rate)
                rates[n] = rate[0]
                after = _after(data, at, words, LOOP_END_WORD) if inside else _FAILED
                if after >= 0:
                    n, at, inside = n + 1, after, False
                    _mark(rows, n, LOOP_END)
                after = _after(data, at, words, NEXT_WORD)
                if after < 0:
                    break
                at = after
            at = _after(data, at, words, LIST_END_WORD)
        if at < 0 or inside:
            return end, first, rows.ids, _FAILED
        end[k], first[k + 1] = at, n
    return end, first, rows.ids, unit
