"""From blocks to messages between hosts: which bytes take which lane, and in which message they cross.

A block is the data of one source for the same destinations in one host. Blocks are sorted by host pair and source.
"""

import numpy as np

from flowccl.compiled import F64, I32, I64, compiled, inner


@compiled
def blocks_of(matrix: I64, host_ptr: I64, host_gpu: I64) -> tuple[I64, I32, I64, I32, I64]:
    """Return the blocks of a matrix: pointer per host pair, source, bytes, destination; and bytes per host pair."""
    hosts = len(host_ptr) - 1
    count = 0
    for s in range(len(matrix)):
        for d in range(len(matrix)):
            count += matrix[s, d] > 0 and s != d
    ptr, total = np.zeros(hosts * hosts + 1, dtype=np.int64), np.zeros(hosts * hosts, dtype=np.int64)
    source, size, to = np.empty(count, np.int32), np.empty(count, np.int64), np.empty(count, np.int32)
    at = 0
    for a in range(hosts):
        for b in range(hosts):
            for i in range(host_ptr[a], host_ptr[a + 1]):
                s = host_gpu[i]
                for j in range(host_ptr[b], host_ptr[b + 1]):
                    d = host_gpu[j]
                    amount = matrix[s, d]
                    if amount > 0 and s != d:
                        source[at], size[at], to[at] = s, amount, d
                        total[a * hosts + b] += amount
                        at += 1
            ptr[a * hosts + b + 1] = at
    return ptr, source, size, to, total


@compiled
def whole_lanes(share: F64, demand: I64, lane_ptr: I64, unit: int) -> I64:
    """Return shares of the lanes of each host pair as whole multiples of `unit` bytes; the last lane has the rest."""
    result = np.zeros(len(share), dtype=np.int64)
    for pair in range(len(demand)):
        total, before = 0.0, 0
        for lane in range(lane_ptr[pair], lane_ptr[pair + 1]):
            total += share[lane]
            until = min(int(total / unit + 0.5) * unit, demand[pair])
            if lane == lane_ptr[pair + 1] - 1:
                until = demand[pair]
            result[lane] = until - before
            before = until
    return result


@compiled
def own_lanes(block_ptr: I64, source: I32, size: I64, lane_ptr: I64, lane_out: I64, demand: I64) -> I64:
    """Return the bytes of each lane if every GPU that has a lane to the other host sends what it has."""
    result = np.zeros(len(lane_out), dtype=np.int64)
    for pair in range(len(demand)):
        first, last = lane_ptr[pair], lane_ptr[pair + 1]
        for block in range(block_ptr[pair], block_ptr[pair + 1]):
            mine, least = -1, -1
            for lane in range(first, last):
                if lane_out[lane] == source[block] and (mine < 0 or result[lane] < result[mine]):
                    mine = lane
                if least < 0 or result[lane] < result[least]:
                    least = lane
            if first < last:
                result[mine if mine >= 0 else least] += size[block]
    return result


@compiled
def assign(
    block_ptr: I64,
    source: I32,
    size: I64,
    to_ptr: I64,
    to: I32,
    lane_ptr: I64,
    lane_out: I64,
    lane_in: I64,
    lane_bytes: I64,
    slot: I64,
    place: I64,
) -> tuple[I64, I64]:
    """Return the segments of the lanes: pointer per lane, and rows (block, offset, bytes, gather, fan-out).

    The last two are the pairs that bring the segment to its sender and from its receiver; -1 if there are none, -2 for
    blocks with several destinations. First, each GPU keeps what it can send itself, the data for the GPU at the other
    end of its lane before all other data. The rest goes to lanes that still have space, to those that end at its
    destination first. A lane sends the data for the GPU at its own end last.
    """
    most = len(source) + len(lane_out)
    lane_of, block_of = np.empty(most, np.int32), np.empty(most, np.int32)
    amount_of = np.empty(most, np.int64)
    left, space = size.copy(), lane_bytes.copy()
    ptr = np.zeros(len(lane_out) + 1, dtype=np.int64)
    from_block, upto_block = np.zeros(len(slot), dtype=np.int64), np.zeros(len(slot), dtype=np.int64)
    count = 0
    for pair in range(len(block_ptr) - 1):
        first, last = lane_ptr[pair], lane_ptr[pair + 1]
        begin, end = block_ptr[pair], block_ptr[pair + 1]
        if first == last or begin == end:
            continue
        for lane in range(first, last):
            from_block[lane_out[lane]], upto_block[lane_out[lane]] = 0, 0
        for block in range(begin, end):
            if block == begin or source[block] != source[block - 1]:
                from_block[source[block]] = block
            upto_block[source[block]] = block + 1
        before = count
        for lane in range(first, last):
            u, v = lane_out[lane], lane_in[lane]
            for block in range(from_block[u], upto_block[u]):
                if left[block] > 0 and space[lane] > 0 and _is_for(v, to_ptr, to, block):
                    count = _take(lane, block, left, space, lane_of, block_of, amount_of, count)
            turn, many = from_block[u], upto_block[u] - from_block[u]
            while turn < upto_block[u] and to[to_ptr[turn]] <= v:
                turn += 1
            for step in range(many):  # destinations behind the receiver first: lanes serve different ones at a time
                block = turn + step if turn + step < upto_block[u] else turn + step - many
                if space[lane] == 0:
                    break
                if left[block] > 0:
                    count = _take(lane, block, left, space, lane_of, block_of, amount_of, count)
        lane = first
        for block in range(begin, end):
            if left[block] > 0:
                for other in range(first, last):
                    if left[block] > 0 and space[other] > 0 and _is_for(lane_in[other], to_ptr, to, block):
                        count = _take(other, block, left, space, lane_of, block_of, amount_of, count)
        for block in range(begin, end):
            while left[block] > 0:
                while space[lane] == 0:
                    lane += 1
                count = _take(lane, block, left, space, lane_of, block_of, amount_of, count)
        for k in range(before, count):
            ptr[lane_of[k] + 1] += 1
    for lane in range(len(lane_out)):
        ptr[lane + 1] += ptr[lane]
    at, back, rows = ptr[:-1].copy(), ptr[1:].copy(), np.empty((count, 5), dtype=np.int64)
    left[:] = 0  # from here on the bytes of each block that have a segment
    for k in range(count):
        lane, block = lane_of[k], block_of[k]
        s, v, d = source[block], lane_in[lane], to[to_ptr[block]]
        if (
            d == v and to_ptr[block + 1] - to_ptr[block] == 1
        ):  # nothing is left to do when it has crossed: it comes last
            back[lane] -= 1
            row = back[lane]
        else:
            row = at[lane]
            at[lane] += 1
        rows[row, 0], rows[row, 1], rows[row, 2] = block, left[block], amount_of[k]
        rows[row, 3] = slot[s] + place[lane_out[lane]] if s != lane_out[lane] else -1
        rows[row, 4] = slot[v] + place[d] if d != v else -1
        if to_ptr[block + 1] - to_ptr[block] > 1:
            rows[row, 4] = -2
        left[block] += amount_of[k]
    return ptr, rows


@inner
def _is_for(gpu: int, to_ptr: I64, to: I32, block: int) -> bool:
    found = False
    for k in range(to_ptr[block], to_ptr[block + 1]):
        found |= to[k] == gpu
    return found


@inner
def _take(lane: int, block: int, left: I64, space: I64, lane_of: I32, block_of: I32, amount_of: I64, count: int) -> int:
    """Put as much of a block as possible on a lane."""
    amount = min(left[block], space[lane])
    left[block] -= amount
    space[lane] -= amount
    lane_of[count], block_of[count], amount_of[count] = lane, block, amount
    return count + 1


@compiled
def crossings(
    order: I64,
    row_class: I64,
    to: I64,
    share: F64,
    start: F64,
    end: F64,
    class_rails: I64,
    lane_at: I64,
    lane_bytes: I64,
    unit: int,
) -> tuple[I64, I64, F64, F64]:
    """Return the messages between hosts in order of time: lane, bytes, and the times of start and end as planned.

    `order` sorts the rows of all classes of rails by time. `class_rails[c, r]` says that rail r is of class c.
    """
    hosts, rails = to.shape[1], class_rails.shape[1]
    most = 0
    rows_left = np.zeros(len(lane_bytes), dtype=np.int32)
    for row in range(len(to)):
        for rail in range(rails):
            if class_rails[row_class[row], rail] != 0:
                most += hosts
                for a in range(hosts):
                    if to[row, a] >= 0 and lane_at[rail, a * hosts + to[row, a]] >= 0:
                        rows_left[lane_at[rail, a * hosts + to[row, a]]] += 1
    lane_of, size = np.empty(most, np.int64), np.empty(most, np.int64)
    begin, done = np.empty(most), np.empty(most)
    sent, until = np.zeros(len(lane_bytes), dtype=np.int64), np.zeros(len(lane_bytes))
    count = 0
    for row in order:
        for rail in range(rails):
            if class_rails[row_class[row], rail] == 0:
                continue
            for a in range(hosts):
                b = to[row, a]
                lane = lane_at[rail, a * hosts + b] if b >= 0 else -1
                if lane < 0:
                    continue
                total = lane_bytes[lane]
                until[lane] += share[row, a]
                rows_left[lane] -= 1
                upto = total
                if rows_left[lane] > 0:
                    upto = min(int(total * until[lane] / unit) * unit, total)
                if upto > sent[lane]:
                    lane_of[count], size[count] = lane, upto - sent[lane]
                    begin[count], done[count] = start[row], end[row]
                    sent[lane] = upto
                    count += 1
    return lane_of[:count], size[:count], begin[:count], done[:count]


@compiled
def cut(
    segment_ptr: I64,
    segments: I64,
    nic_lane: I64,
    nic_bytes: I64,
    to_ptr: I64,
    to: I32,
    lane_in: I64,
    slot: I64,
    place: I64,
    pairs: int,
    first_message: int,
    head: tuple[I32, I64, I64, I64, I32],
) -> tuple[I64, I64, I64, I32, I64, I64, I32, I32, I64, I32, I64, I64]:
    """Return the chunks of the messages between hosts: segments of blocks, cut where a message ends.

    The result: for each message its first chunk, the first one that another GPU has, and the end of its chunks; for
    each chunk its block, offset and bytes, the pair that brings it to its sender or -1, its message, and the pointer to
    its destinations; for each of those the pair that brings it there or -1; and the bytes that each pair carries, to
    senders and from receivers. `head` are chunks that come first: block, offset, bytes, pointer, messages.
    """
    at, done = segment_ptr[:-1].copy(), np.zeros(len(segment_ptr) - 1, dtype=np.int64)
    count, entry = len(head[0]), head[3][-1]
    most = count + len(segments) + len(nic_lane)
    entries = _entries(segments, to_ptr, len(nic_lane)) + entry
    block_of, offset_of, size_of = np.empty(most, np.int32), np.empty(most, np.int64), np.empty(most, np.int64)
    gather, cross = np.empty(most, np.int32), np.empty(most, np.int32)
    entry_ptr, entry_of = np.empty(most + 1, np.int64), np.empty(entries, np.int32)
    block_of[:count], offset_of[:count], size_of[:count] = head[0], head[1], head[2]
    entry_ptr[: count + 1], entry_of[:entry] = head[3], head[4]
    gather[:count], cross[:count] = -1, -1
    begin = np.zeros(len(nic_lane), np.int64)
    own, end = begin.copy(), begin.copy()
    gathered, fanned = np.zeros(pairs, dtype=np.int64), np.zeros(pairs, dtype=np.int64)
    for message in range(len(nic_lane)):
        lane = nic_lane[message]
        segment, used = at[lane], done[lane]
        need, begin[message], own[message] = nic_bytes[message], count, -1
        while need > 0:
            part, block, fan = min(need, segments[segment, 2] - used), segments[segment, 0], segments[segment, 4]
            pair = segments[segment, 3]
            block_of[count], offset_of[count], size_of[count] = block, segments[segment, 1] + used, part
            gather[count], cross[count] = pair, message + first_message
            if pair >= 0:
                gathered[pair] += part
                if own[message] < 0:
                    own[message] = count
            if fan > -2:
                entry_of[entry] = fan
                if fan >= 0:
                    fanned[fan] += part
                entry += 1
            else:
                v = lane_in[lane]
                for other in range(to_ptr[block], to_ptr[block + 1]):
                    entry_of[entry] = -1
                    if to[other] != v:
                        entry_of[entry] = slot[v] + place[to[other]]
                        fanned[entry_of[entry]] += part
                    entry += 1
            count += 1
            entry_ptr[count] = entry
            need -= part
            used += part
            if used == segments[segment, 2]:
                segment += 1
                used = 0
        at[lane], done[lane], end[message] = segment, used, count
        if own[message] < 0:
            own[message] = count
    return (
        begin, own, end, block_of[:count], offset_of[:count], size_of[:count], gather[:count], cross[:count],
        entry_ptr[: count + 1], entry_of[:entry], gathered, fanned,
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


@compiled
def same_rails(load: F64) -> I64:
    """Return the class of each rail: the first rail whose loads are the same up to rounding."""
    rails, cells = load.shape
    result = np.arange(rails)
    for r in range(rails):
        for q in range(r):
            if result[q] != q:
                continue
            same = True
            for k in range(cells):
                if abs(load[r, k] - load[q, k]) > 1e-9 * max(load[r, k], load[q, k]):
                    same = False
                    break
            if same:
                result[r] = q
                break
    return result
