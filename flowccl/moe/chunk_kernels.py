"""From messages between hosts to chunks, and to the messages inside hosts that bring and pass on their data.

Data that another GPU sends (`gather`) and data that has crossed (`fan-out`) is collected into messages per pair of
GPUs. The first messages of a gather and the last ones of a fan-out are small, so that crossing starts early and little
is left to do when the last byte has crossed.
"""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import I32, I64, compiled, inlined, inner, maker


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
    """Messages inside hosts: pair, bytes, and the first message that needs, or the last one that brings, their data.

    `open` is the last message of each pair, `left` the bytes that the pair's messages have, or are still to get, and
    `share` and `least` the bytes of a pair at which a message is closed.
    """

    pair: I32
    bytes: I64
    edge: I32
    open: I32
    left: I64
    share: I64
    least: I64


@compiled
def cut(
    segment_ptr: I64,
    segments: I64,
    gathered: I64,
    fanned: I64,
    lane: I64,
    size: I64,
    to_ptr: I64,
    to: I32,
    lane_in: I64,
    slot: I64,
    place: I64,
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
    count, entry, crossings, pairs = len(head[0]), head[3][-1], len(lane), len(gathered)
    most = count + len(segments) + crossings
    entries = entry + (most - count if len(to) == len(to_ptr) - 1 else _entries(segments, to_ptr, crossings))
    chunks = _with_head(head, most, entries)
    into = _Collected(
        np.empty(most, np.int32), np.empty(most, np.int64), np.empty(most, np.int32), np.full(pairs, -1, np.int32),
        np.zeros(pairs, np.int64), gathered // pieces, least,
    )  # fmt: skip
    out = _Collected(
        np.empty(entries, np.int32), np.empty(entries, np.int64), np.empty(entries, np.int32),
        np.full(pairs, -1, np.int32), fanned.copy(), fanned // pieces, least,
    )  # fmt: skip
    own, end = np.empty(crossings, np.int64), np.empty(crossings, np.int64)
    at, done = segment_ptr[:-1].copy(), np.zeros(len(segment_ptr) - 1, np.int64)
    count, until, gathers, fans = _cut_all(
        segments, lane, size, to_ptr, to, lane_in, slot, place, local, count, entry, at, done,
        np.full(pairs, -1, np.int32), own, end, chunks, into, out,
    )  # fmt: skip
    for k in range(entry, until):
        if chunks.entry_of[k] >= 0:
            chunks.entry_of[k] += local + crossings + gathers
    return (
        (own, end),
        (
            chunks.block[:count], chunks.offset[:count], chunks.bytes[:count], chunks.gather[:count],
            chunks.cross[:count], chunks.entry_ptr[: count + 1], chunks.entry_of[:until],
        ),
        (into.pair[:gathers], into.bytes[:gathers], into.edge[:gathers]),
        (out.pair[:fans], out.bytes[:fans], out.edge[:fans]),
    )  # fmt: skip


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
    to_ptr: I64,
    to: I32,
    lane_in: I64,
    slot: I64,
    place: I64,
    local: int,
    count: int,
    entry: int,
    at: I64,
    done: I64,
    seen: I32,
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
                gathers = _gather(pair, message, part, gathers, seen, into)
                chunks.gather[count] = into.open[pair] + local + crossings
                if own[message] < 0:
                    own[message] = count
            else:
                chunks.gather[count] = -1
            chunks.entry_ptr[count] = entry
            v = lane_in[on]
            first, last = (to_ptr[block], to_ptr[block + 1]) if fan == -2 else (0, 1)
            for k in range(first, last):
                one = (slot[v] + place[to[k]] if to[k] != v else -1) if fan == -2 else fan
                if one >= 0:
                    fans = _fan_out(one, message, part, fans, out)
                    chunks.entry_of[entry] = out.open[one]
                else:
                    chunks.entry_of[entry] = -1
                entry += 1
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


@inlined
def _gather(pair: int, crossing: int, part: int, count: int, seen: I32, into: _Collected) -> int:
    """Put a chunk into the open gather of a pair, or into a new one between two crossings; return the gathers.

    `seen` is the last crossing that needs data of a pair.
    """
    message = into.open[pair]
    if message >= 0 and seen[pair] != crossing:
        full = into.bytes[message]
        if full >= max(into.least[pair], min(into.share[pair], into.left[pair])):
            into.left[pair] += full
            message = -1
    if message < 0:
        message = into.open[pair] = count
        into.pair[count], into.bytes[count], into.edge[count] = pair, 0, crossing
        count += 1
    seen[pair] = crossing
    into.bytes[message] += part
    return count


@inlined
def _fan_out(pair: int, crossing: int, part: int, count: int, out: _Collected) -> int:
    """Put a chunk into the open fan-out of a pair, or into a new one between two crossings; return the fan-outs."""
    message = out.open[pair]
    closes = message >= 0 and out.edge[message] != crossing
    if message < 0 or (closes and out.bytes[message] >= max(out.least[pair], min(out.share[pair], out.left[pair]))):
        message = out.open[pair] = count
        out.pair[count], out.bytes[count] = pair, 0
        count += 1
    out.bytes[message] += part
    out.edge[message] = crossing
    out.left[pair] -= part
    return count
