"""From messages between hosts to chunks, and to the messages inside hosts that bring and pass on their data.

Data that another GPU sends (`gather`) and data that has crossed (`fan-out`) is collected into messages per pair of
GPUs. The first messages of a gather and the last ones of a fan-out are small, so that crossing starts early and little
is left to do when the last byte has crossed.
"""

import numpy as np

from flowccl.compiled import I32, I64, compiled, inner


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
    entries = _entries(segments, to_ptr, crossings) + entry
    block_of, offset_of, size_of = np.empty(most, np.int32), np.empty(most, np.int64), np.empty(most, np.int64)
    gather, cross = np.empty(most, np.int32), np.empty(most, np.int32)
    entry_ptr, entry_of = np.empty(most + 1, np.int64), np.empty(entries, np.int32)
    block_of[:count], offset_of[:count], size_of[:count] = head[0], head[1], head[2]
    entry_ptr[: count + 1], entry_of[:entry] = head[3], head[4]
    gather[:count], cross[:count] = -1, -1
    first_fan = entry
    at, done = segment_ptr[:-1].copy(), np.zeros(len(segment_ptr) - 1, np.int64)
    own, end = np.empty(crossings, np.int64), np.empty(crossings, np.int64)
    into = np.empty(most, np.int32), np.empty(most, np.int64), np.empty(most, np.int32)
    out = np.empty(entries, np.int32), np.empty(entries, np.int64), np.empty(entries, np.int32)
    into_open, into_seen = np.full(pairs, -1, np.int32), np.full(pairs, -1, np.int32)
    out_open, before, rest = np.full(pairs, -1, np.int32), np.zeros(pairs, np.int64), fanned.copy()
    into_piece, out_piece = gathered // pieces, fanned // pieces
    gathers = fans = 0
    for message in range(crossings):
        segment, used, need = at[lane[message]], done[lane[message]], size[message]
        own[message] = -1
        while need > 0:
            block, pair, fan = segments[segment, 0], segments[segment, 3], segments[segment, 4]
            part = min(need, segments[segment, 2] - used)
            block_of[count], offset_of[count], size_of[count] = block, segments[segment, 1] + used, part
            gather[count], cross[count] = -1, local + message
            if pair >= 0:
                gathers = _gather(pair, message, part, gathers, into, into_open, into_seen, before, into_piece, least)
                gather[count] = into_open[pair] + local + crossings
                if own[message] < 0:
                    own[message] = count
            if fan > -2:
                entry_of[entry] = -1
                if fan >= 0:
                    fans = _fan_out(fan, message, part, fans, out, out_open, rest, out_piece, least)
                    entry_of[entry] = out_open[fan]
                entry += 1
            else:
                v = lane_in[lane[message]]
                for k in range(to_ptr[block], to_ptr[block + 1]):
                    entry_of[entry] = -1
                    if to[k] != v:
                        fan = slot[v] + place[to[k]]
                        fans = _fan_out(fan, message, part, fans, out, out_open, rest, out_piece, least)
                        entry_of[entry] = out_open[fan]
                    entry += 1
            count += 1
            entry_ptr[count] = entry
            need -= part
            used += part
            if used == segments[segment, 2]:
                segment += 1
                used = 0
        at[lane[message]], done[lane[message]], end[message] = segment, used, count
        if own[message] < 0:
            own[message] = count
    for k in range(first_fan, entry):
        if entry_of[k] >= 0:
            entry_of[k] += local + crossings + gathers
    return (
        (own, end),
        (
            block_of[:count], offset_of[:count], size_of[:count], gather[:count], cross[:count],
            entry_ptr[: count + 1], entry_of[:entry],
        ),
        (into[0][:gathers], into[1][:gathers], into[2][:gathers]),
        (out[0][:fans], out[1][:fans], out[2][:fans]),
    )  # fmt: skip


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
def _gather(
    pair: int,
    crossing: int,
    part: int,
    count: int,
    into: tuple[I32, I64, I32],
    is_open: I32,
    seen: I32,
    before: I64,
    piece: I64,
    least: I64,
) -> int:
    """Put a chunk into the open gather of a pair, or into a new one between two crossings; return the gathers."""
    message = is_open[pair]
    if message >= 0 and seen[pair] != crossing:
        full = into[1][message]
        if full >= max(least[pair], min(piece[pair], before[pair])):
            before[pair] += full
            message = -1
    if message < 0:
        message = is_open[pair] = count
        into[0][count], into[1][count], into[2][count] = pair, 0, crossing
        count += 1
    seen[pair] = crossing
    into[1][message] += part
    return count


@inner
def _fan_out(
    pair: int,
    crossing: int,
    part: int,
    count: int,
    out: tuple[I32, I64, I32],
    is_open: I32,
    rest: I64,
    piece: I64,
    least: I64,
) -> int:
    """Put a chunk into the open fan-out of a pair, or into a new one between two crossings; return the fan-outs."""
    message = is_open[pair]
    closes = message >= 0 and out[2][message] != crossing
    if message < 0 or (closes and out[1][message] >= max(least[pair], min(piece[pair], rest[pair]))):
        message = is_open[pair] = count
        out[0][count], out[1][count] = pair, 0
        count += 1
    out[1][message] += part
    out[2][message] = crossing
    rest[pair] -= part
    return count
