"""From blocks to messages between hosts: which bytes take which lane, and in which message they cross.

A block is the data of one source for the same destinations in one host. Blocks are sorted by host pair and source.
"""

import numpy as np

from flowccl.compiled import F64, I64, compiled, inner


@compiled
def blocks_of(matrix: I64, host_ptr: I64, host_gpu: I64) -> tuple[I64, I64, I64, I64]:
    """Return the blocks of a byte matrix: pointer per host pair, source, bytes, destination."""
    hosts = len(host_ptr) - 1
    count = 0
    for s in range(len(matrix)):
        for d in range(len(matrix)):
            count += matrix[s, d] > 0 and s != d
    ptr = np.zeros(hosts * hosts + 1, dtype=np.int64)
    source, size, to = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    at = 0
    for a in range(hosts):
        for b in range(hosts):
            for i in range(host_ptr[a], host_ptr[a + 1]):
                s = host_gpu[i]
                for j in range(host_ptr[b], host_ptr[b + 1]):
                    d = host_gpu[j]
                    if matrix[s, d] > 0 and s != d:
                        source[at], size[at], to[at] = s, matrix[s, d], d
                        at += 1
            ptr[a * hosts + b + 1] = at
    return ptr, source, size, to


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
def own_lanes(
    block_ptr: I64, source: I64, size: I64, lane_ptr: I64, lane_out: I64, weight: F64, demand: I64
) -> I64:
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
    source: I64,
    size: I64,
    to_ptr: I64,
    to: I64,
    lane_ptr: I64,
    lane_out: I64,
    lane_in: I64,
    lane_bytes: I64,
) -> tuple[I64, I64, I64]:
    """Return the segments of the lanes: pointer per lane, the block of each segment, and its bytes.

    First, each GPU keeps what it can send itself, the data for the GPU at the other end of its lane before all other
    data. The rest goes to lanes that still have space, to those that end at its destination first.
    """
    pairs = len(block_ptr) - 1
    most = len(source) + len(lane_out)
    lane_of, block_of = np.empty(most, np.int64), np.empty(most, np.int64)
    amount_of = np.empty(most, np.int64)
    left, room = size.copy(), lane_bytes.copy()
    count = 0
    for pair in range(pairs):
        first, last = lane_ptr[pair], lane_ptr[pair + 1]
        begin, end = block_ptr[pair], block_ptr[pair + 1]
        if first == last or begin == end:
            continue
        for only in (True, False):
            for lane in range(first, last):
                block = begin
                while block < end and source[block] != lane_out[lane]:
                    block += 1
                while block < end and source[block] == lane_out[lane] and room[lane] > 0:
                    if left[block] > 0 and (not only or _is_for(lane_in[lane], to_ptr, to, block)):
                        count = _take(lane, block, left, room, lane_of, block_of, amount_of, count)
                    block += 1
        for block in range(begin, end):
            for lane in range(first, last):
                if left[block] > 0 and room[lane] > 0 and _is_for(lane_in[lane], to_ptr, to, block):
                    count = _take(lane, block, left, room, lane_of, block_of, amount_of, count)
        lane = first
        for block in range(begin, end):
            while left[block] > 0:
                while room[lane] == 0:
                    lane += 1
                count = _take(lane, block, left, room, lane_of, block_of, amount_of, count)
    ptr = np.zeros(len(lane_out) + 1, dtype=np.int64)
    for k in range(count):
        ptr[lane_of[k] + 1] += 1
    for lane in range(len(lane_out)):
        ptr[lane + 1] += ptr[lane]
    place = ptr[:-1].copy()
    block_sorted, amount_sorted = np.empty(count, np.int64), np.empty(count, np.int64)
    for k in range(count):
        at = place[lane_of[k]]
        block_sorted[at], amount_sorted[at] = block_of[k], amount_of[k]
        place[lane_of[k]] += 1
    return ptr, block_sorted, amount_sorted


@inner
def _is_for(gpu: int, to_ptr: I64, to: I64, block: int) -> bool:
    for k in range(to_ptr[block], to_ptr[block + 1]):
        if to[k] == gpu:
            return True
    return False


@inner
def _take(
    lane: int, block: int, left: I64, room: I64, lane_of: I64, block_of: I64, amount_of: I64, count: int
) -> int:
    """Put as much of a block as possible on a lane."""
    amount = min(left[block], room[lane])
    left[block] -= amount
    room[lane] -= amount
    lane_of[count], block_of[count], amount_of[count] = lane, block, amount
    return count + 1


@compiled
def crossings(
    order: I64,
    row_class: I64,
    to: I64,
    until: F64,
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
    for row in range(len(to)):
        most += hosts * class_rails[row_class[row]].sum()
    lane_of, size = np.empty(most, np.int64), np.empty(most, np.int64)
    begin, done = np.empty(most), np.empty(most)
    sent = np.zeros(len(lane_bytes), dtype=np.int64)
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
                total, share = lane_bytes[lane], until[row, a]
                upto = total if share >= 1.0 else int(total * share / unit) * unit
                if upto > sent[lane]:
                    lane_of[count], size[count] = lane, upto - sent[lane]
                    begin[count], done[count] = start[row], end[row]
                    sent[lane] = upto
                    count += 1
    return lane_of[:count], size[:count], begin[:count], done[:count]


@compiled
def cut(
    segment_ptr: I64, segment_block: I64, segment_bytes: I64, nic_lane: I64, nic_bytes: I64, blocks: int
) -> tuple[I64, I64, I64, I64, I64]:
    """Return the chunks of the messages between hosts: segments of blocks, cut where a message ends.

    The result is the first chunk of each message, the number of its chunks, and block, offset and bytes of each chunk.
    """
    lanes = len(segment_ptr) - 1
    ptr = np.zeros(lanes + 1, dtype=np.int64)
    for message in range(len(nic_lane)):
        ptr[nic_lane[message] + 1] += 1
    for lane in range(lanes):
        ptr[lane + 1] += ptr[lane]
    place, listed = ptr[:-1].copy(), np.empty(len(nic_lane), np.int64)
    for message in range(len(nic_lane)):
        listed[place[nic_lane[message]]] = message
        place[nic_lane[message]] += 1
    most = len(segment_block) + len(nic_lane)
    block_of, offset_of, size_of = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    first, number = np.zeros(len(nic_lane), np.int64), np.zeros(len(nic_lane), np.int64)
    taken = np.zeros(blocks, dtype=np.int64)
    count = 0
    for lane in range(lanes):
        segment = segment_ptr[lane]
        rest = segment_bytes[segment] if segment < segment_ptr[lane + 1] else 0
        for k in range(ptr[lane], ptr[lane + 1]):
            message = listed[k]
            need, first[message] = nic_bytes[message], count
            while need > 0:
                part, block = min(need, rest), segment_block[segment]
                block_of[count], offset_of[count], size_of[count] = block, taken[block], part
                taken[block] += part
                count += 1
                need -= part
                rest -= part
                if rest == 0:
                    segment += 1
                    rest = segment_bytes[segment] if segment < segment_ptr[lane + 1] else 0
            number[message] = count - first[message]
    return first, number, block_of[:count], offset_of[:count], size_of[:count]


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
