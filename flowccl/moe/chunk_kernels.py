"""From messages between hosts to chunks, and to the messages inside hosts that bring and pass on their data.

Data that another GPU sends (`gather`) and data that has crossed (`fan-out`) is collected into messages per pair of
GPUs. The first messages of a gather and the last ones of a fan-out are small, so that crossing starts early and little
is left to do when the last byte has crossed.
"""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import I32, I64, compiled, inlined, inner, maker
from flowccl.moe.table_kernels import BlockArrays, LaneSegments, PairTables


class _ChunkArrays(NamedTuple):
    """Chunks: block, offset, bytes, gather, crossing, pointer to the destinations, message per destination."""

    block: I32
    offset: I64
    bytes: I64
    gather: I32
    cross: I32
    entry_ptr: I64
    entry_of: I32


class _Collected(NamedTuple):
    """Messages inside hosts: pair, bytes, and the first and the last message that needs, or brings, their data.

    Row p of `state` has, for pair p: its open message or -1, that message's bytes, the last message between hosts that
    needs or brings its data, the bytes that its closed messages have, or that are still to come, and two limits at
    which a message is closed: the share of a message, and the least bytes.
    """

    pair: I32
    bytes: I64
    first: I32
    last: I32
    state: I64


_OPEN, _BYTES, _LAST, _LEFT, _SHARE, _LEAST = range(6)


@compiled
def cut(
    segments: LaneSegments,
    lane: I64,
    size: I64,
    blocks: BlockArrays,
    pairs: PairTables,
    pieces: int,
    least: I64,
    head: tuple[I32, I64, I64, I64, I32],
    local: int,
) -> tuple[
    tuple[I64, I64], tuple[I32, I64, I64, I32, I32, I64, I32], tuple[I32, I64, I32], tuple[I32, I64, I32]
]:  # fmt: skip
    """Cut the segments of the lanes into chunks where a message ends, and collect messages inside hosts.

    `head` are the chunks that stay in their hosts, in the first `local` messages: block, offset, bytes, pointer,
    message per destination. The result: of each message between hosts the first chunk that another GPU has, and the
    end of its chunks; all chunks (block, offset, bytes, gather, crossing, pointer, message per destination); gathers
    (pair, bytes, first message that needs it); fan-outs (pair, bytes, last message that brings data). Messages are
    numbered: local ones, those between hosts, gathers, fan-outs.

    A gather is closed when it has 1 / `pieces` of the data of its pair, or as much as all before it; a fan-out when it
    has that, or as much as is still to come. Neither is closed below the `least` bytes of its pair.
    """
    count, entry, crossings = len(head[0]), head[3][-1], len(lane)
    most = count + len(segments.rows) + crossings
    simple = len(blocks.to) == len(blocks.to_ptr) - 1
    entries = entry + (most - count if simple else _entries(segments.rows, blocks.to_ptr, crossings))
    chunks = _with_head(head, most, entries)
    into, out = (
        _collected(segments.gathered, pieces, least, most),
        _collected(segments.fanned, pieces, least, entries),
    )
    out.state[:, _LEFT] = segments.fanned
    own, end = np.empty(crossings, np.int64), np.empty(crossings, np.int64)
    at, done = segments.ptr[:-1].copy(), np.zeros(len(segments.ptr) - 1, np.int64)
    count, until, gathers, fans = _cut_all(
        segments.rows, lane, size, blocks, pairs, local, count, entry, at, done, own, end, chunks, into, out
    )
    _close_all(into)
    _close_all(out)
    for k in range(entry, until):
        if chunks.entry_of[k] >= 0:
            chunks.entry_of[k] += local + crossings + gathers
    return (
        (own, end),
        (
            chunks.block[:count], chunks.offset[:count], chunks.bytes[:count], chunks.gather[:count],
            chunks.cross[:count], chunks.entry_ptr[: count + 1], chunks.entry_of[:until],
        ),
        (into.pair[:gathers], into.bytes[:gathers], into.first[:gathers]),
        (out.pair[:fans], out.bytes[:fans], out.last[:fans]),
    )  # fmt: skip


@maker
def _collected(total: I64, pieces: int, least: I64, most: int) -> _Collected:
    """No messages yet, with space for `most`."""
    state = np.zeros((len(total), 6), np.int64)
    state[:, _OPEN] = state[:, _LAST] = -1
    state[:, _SHARE] = total // pieces
    state[:, _LEAST] = least
    pair, first, last = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, np.int32)
    return _Collected(pair, np.empty(most, np.int64), first, last, state)


@maker
def _with_head(head: tuple[I32, I64, I64, I64, I32], most: int, entries: int) -> _ChunkArrays:
    """Space for chunks, of which the first ones stay in their hosts."""
    count, entry = len(head[0]), head[3][-1]
    chunks = _ChunkArrays(
        np.empty(most, np.int32), np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int32),
        np.empty(most, np.int32), np.empty(most + 1, np.int64), np.empty(entries, np.int32),
    )  # fmt: skip
    chunks.block[:count], chunks.offset[:count], chunks.bytes[:count] = head[0], head[1], head[2]
    chunks.entry_ptr[: count + 1], chunks.entry_of[:entry] = head[3], head[4]
    chunks.gather[:count], chunks.cross[:count] = -1, -1
    return chunks


@inner
def _cut_all(
    segments: I64,
    lane: I64,
    size: I64,
    blocks: BlockArrays,
    pairs: PairTables,
    local: int,
    count: int,
    entry: int,
    at: I64,
    done: I64,
    own: I64,
    end: I64,
    chunks: _ChunkArrays,
    into: _Collected,
    out: _Collected,
) -> tuple[int, int, int, int]:
    """Cut the segments from chunk `count` on; return the numbers of chunks, destinations, gathers and fan-outs."""
    gathers, fans, crossings = 0, 0, len(lane)
    for message in range(crossings):
        on = lane[message]
        segment, used, need, own[message] = at[on], done[on], size[message], -1
        while need > 0:
            block, pair, fan = segments[segment, 0], segments[segment, 3], segments[segment, 4]
            part = min(need, segments[segment, 2] - used)
            chunks.block[count], chunks.offset[count] = block, segments[segment, 1] + used
            chunks.bytes[count], chunks.cross[count] = part, local + message
            if pair >= 0:
                gathers = _gather(pair, message, part, gathers, into)
                chunks.gather[count] = into.state[pair, _OPEN] + local + crossings
                if own[message] < 0:
                    own[message] = count
            else:
                chunks.gather[count] = -1
            chunks.entry_ptr[count] = entry
            if fan >= -1:
                if fan >= 0:
                    fans = _fan_out(fan, message, part, fans, out)
                    chunks.entry_of[entry] = out.state[fan, _OPEN]
                else:
                    chunks.entry_of[entry] = -1
                entry += 1
            else:
                entry, fans = _fan_outs(
                    block, pairs.lane_in[on], message, part, entry, fans, blocks, pairs, chunks, out
                )
            count += 1
            need -= part
            used += part
            if used == segments[segment, 2]:
                segment += 1
                used = 0
        at[on], done[on], end[message] = segment, used, count
        if own[message] < 0:
            own[message] = count
    chunks.entry_ptr[count] = entry
    return count, entry, gathers, fans


@inner
def _fan_outs(
    block: int,
    receiver: int,
    crossing: int,
    part: int,
    entry: int,
    fans: int,
    blocks: BlockArrays,
    pairs: PairTables,
    chunks: _ChunkArrays,
    out: _Collected,
) -> tuple[int, int]:
    """Put a chunk into the fan-outs to all destinations of its block; return the numbers of entries and fan-outs."""
    for k in range(blocks.to_ptr[block], blocks.to_ptr[block + 1]):
        chunks.entry_of[entry] = -1
        if blocks.to[k] != receiver:
            pair = pairs.slot[receiver] + pairs.place[blocks.to[k]]
            fans = _fan_out(pair, crossing, part, fans, out)
            chunks.entry_of[entry] = out.state[pair, _OPEN]
        entry += 1
    return entry, fans


@inner
def _entries(segments: I64, to_ptr: I64, cuts: int) -> int:
    """The most destinations of all chunks if segments are cut that often."""
    count, widest = 0, 1
    for k in range(len(segments)):
        if segments[k, 4] == -2:
            width = to_ptr[segments[k, 0] + 1] - to_ptr[segments[k, 0]]
            count += width
            widest = max(widest, width)
        else:
            count += 1
    return count + widest * cuts


@inner
def _close_all(some: _Collected) -> None:
    """Write the bytes and the last crossing message of the messages that are still open."""
    for pair in range(len(some.state)):
        message = some.state[pair, _OPEN]
        if message >= 0:
            some.bytes[message], some.last[message] = some.state[pair, _BYTES], some.state[pair, _LAST]


@inlined
def _is_full(state: I64, pair: int, crossing: int) -> bool:
    """Whether the open message of a pair is large enough, and the crossing that it was last open for has ended."""
    limit = max(state[pair, _LEAST], min(state[pair, _SHARE], state[pair, _LEFT]))
    return bool(state[pair, _LAST] != crossing and state[pair, _BYTES] >= limit)


@inlined
def _gather(pair: int, crossing: int, part: int, count: int, into: _Collected) -> int:
    """Put a chunk into the open gather of a pair, or into a new one between two crossings; return the gathers."""
    state = into.state
    full = state[pair, _BYTES]
    if state[pair, _OPEN] < 0 or _is_full(state, pair, crossing):
        if state[pair, _OPEN] >= 0:
            into.bytes[state[pair, _OPEN]] = full
            state[pair, _LEFT] += full
        state[pair, _OPEN], full = count, 0
        into.pair[count], into.first[count] = pair, crossing
        count += 1
    state[pair, _LAST], state[pair, _BYTES] = crossing, full + part
    return count


@inlined
def _fan_out(pair: int, crossing: int, part: int, count: int, out: _Collected) -> int:
    """Put a chunk into the open fan-out of a pair, or into a new one between two crossings; return the fan-outs."""
    state = out.state
    full = state[pair, _BYTES]
    if state[pair, _OPEN] < 0 or _is_full(state, pair, crossing):
        if state[pair, _OPEN] >= 0:
            out.bytes[state[pair, _OPEN]], out.last[state[pair, _OPEN]] = full, state[pair, _LAST]
        state[pair, _OPEN], full = count, 0
        out.pair[count] = pair
        count += 1
    state[pair, _LAST], state[pair, _BYTES] = crossing, full + part
    state[pair, _LEFT] -= part
    return count
