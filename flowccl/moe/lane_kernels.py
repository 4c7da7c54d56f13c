"""From blocks to messages between hosts: which bytes take which lane, and in which message they cross.

A block is the data of one source for the same destinations in one host. Blocks are sorted by host pair and source.
"""

from typing import NamedTuple

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
def whole_lanes(share: F64, demand: I64, lane_ptr: I64, unit: int, weights: bool) -> I64:
    """Return shares of the lanes of each host pair as whole multiples of `unit` bytes; the last lane has the rest.

    With `weights`, the shares of each host pair are those of its bytes, else bytes.
    """
    result = np.zeros(len(share), dtype=np.int64)
    for pair in range(len(demand)):
        total, before = 0.0, 0
        for lane in range(lane_ptr[pair], lane_ptr[pair + 1]):
            total += share[lane] * demand[pair] if weights else share[lane]
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
            chosen, least = -1, -1
            for lane in range(first, last):
                if lane_out[lane] == source[block] and (chosen < 0 or result[lane] < result[chosen]):
                    chosen = lane
                if least < 0 or result[lane] < result[least]:
                    least = lane
            if first < last:
                result[chosen if chosen >= 0 else least] += size[block]
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
    pairs: int,
) -> tuple[I64, I64, I64, I64]:
    """Return the segments of the lanes: pointer per lane, and rows (block, offset, bytes, gather, fan-out).

    The last two are the pairs that bring the segment to its sender and from its receiver; -1 if there are none, -2 for
    blocks with several destinations. Then come the bytes that each pair brings to senders, and from receivers.

    First, each GPU keeps what it can send itself, the data for the GPU at the other end of its lane before all other
    data. The rest goes to lanes that still have space, to those that end at its destination first. A lane sends the
    data for the GPU at its own end last: nothing is left to do when it has crossed.
    """
    lanes, wide = len(lane_out), 0
    for pair in range(len(block_ptr) - 1):
        wide = max(wide, block_ptr[pair + 1] - block_ptr[pair] + lane_ptr[pair + 1] - lane_ptr[pair])
    parts, left = np.empty((wide, 3), np.int64), np.empty(wide, np.int64)
    space, ends, behind = lane_bytes.copy(), np.full(len(slot), -1, np.int64), np.empty(lanes, np.int64)
    ptr, front, back = np.zeros(lanes + 1, np.int64), np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)
    rows = np.empty((len(source) + lanes, 5), np.int64)
    gathered, fanned = np.zeros(pairs, np.int64), np.zeros(pairs, np.int64)
    count = 0
    for pair in range(len(block_ptr) - 1):
        first, last, begin, end = lane_ptr[pair], lane_ptr[pair + 1], block_ptr[pair], block_ptr[pair + 1]
        many = 0
        if first < last:
            left[: end - begin] = size[begin:end]
            many = _keep_own(first, last, begin, end, source, to_ptr, to, lane_out, lane_in, left, space, parts)
            many = _to_ends(first, last, begin, end, to_ptr, to, lane_in, ends, behind, left, space, parts, many)
            many = _anywhere(first, begin, end, left, space, parts, many)
        for k in range(many):
            back[parts[k, 0]] += 1
        for lane in range(first, last):
            ptr[lane] = front[lane] = count
            count += back[lane]
            back[lane] = count
        write_segments(
            parts[:many], begin, left, front, back, source, to_ptr, to, lane_out, lane_in, slot, place, rows, gathered,
            fanned,
        )  # fmt: skip
    ptr[lanes] = count
    return ptr, rows[:count], gathered, fanned


@inner
def _take(lane: int, block: int, begin: int, left: I64, space: I64, parts: I64, many: int) -> int:
    """Put as much of a block as possible on a lane."""
    amount = min(left[block - begin], space[lane])
    left[block - begin] -= amount
    space[lane] -= amount
    parts[many, 0], parts[many, 1], parts[many, 2] = lane, block, amount
    return many + 1


@inner
def _keep_own(
    first: int,
    last: int,
    begin: int,
    end: int,
    source: I32,
    to_ptr: I64,
    to: I32,
    lane_out: I64,
    lane_in: I64,
    left: I64,
    space: I64,
    parts: I64,
) -> int:
    """Put blocks on the lanes that start at their sources, those for the GPU at the lane's end first.

    Of the others, those for GPUs behind the receiver come first, so that lanes serve different ones at a time.
    """
    many, lower = 0, begin
    for lane in range(first, last):
        u, v, free = lane_out[lane], lane_in[lane], space[lane]
        if lower == end or source[lower] >= u:
            lower = begin
        while lower < end and source[lower] < u:
            lower += 1
        upper = turn = lower
        while upper < end and source[upper] == u:
            if to[to_ptr[upper]] <= v:
                turn = upper + 1
            if left[upper - begin] > 0 and free > 0 and _is_for(v, to_ptr, to, upper):
                amount = min(left[upper - begin], free)
                parts[many, 0], parts[many, 1], parts[many, 2] = lane, upper, amount
                left[upper - begin] -= amount
                free -= amount
                many += 1
            upper += 1
        for step in range(upper - lower):
            block = turn + step if turn + step < upper else turn + step - upper + lower
            if free == 0:
                break
            amount = min(left[block - begin], free)
            if amount > 0:
                parts[many, 0], parts[many, 1], parts[many, 2] = lane, block, amount
                left[block - begin] -= amount
                free -= amount
                many += 1
        space[lane] = free
        lower = upper
    return many


@inner
def _is_for(gpu: int, to_ptr: I64, to: I32, block: int) -> bool:
    found = False
    for k in range(to_ptr[block], to_ptr[block + 1]):
        found |= to[k] == gpu
    return found


@inner
def _to_ends(
    first: int,
    last: int,
    begin: int,
    end: int,
    to_ptr: I64,
    to: I32,
    lane_in: I64,
    ends: I64,
    behind: I64,
    left: I64,
    space: I64,
    parts: I64,
    many: int,
) -> int:
    """Put blocks on the lanes that end at one of their destinations; `ends` is -1 before and after."""
    for lane in range(last - 1, first - 1, -1):
        behind[lane] = ends[lane_in[lane]]
        ends[lane_in[lane]] = lane
    for block in range(begin, end):
        if left[block - begin] > 0:
            for k in range(to_ptr[block], to_ptr[block + 1]):
                lane = ends[to[k]]
                while lane >= 0:
                    if left[block - begin] > 0 and space[lane] > 0:
                        many = _take(lane, block, begin, left, space, parts, many)
                    lane = behind[lane]
    for lane in range(first, last):
        ends[lane_in[lane]] = -1
    return many


@inner
def _anywhere(first: int, begin: int, end: int, left: I64, space: I64, parts: I64, many: int) -> int:
    """Put what is left on the lanes that have space."""
    lane = first
    for block in range(begin, end):
        while left[block - begin] > 0:
            while space[lane] == 0:
                lane += 1
            many = _take(lane, block, begin, left, space, parts, many)
    return many


@inner
def write_segments(
    parts: I64,
    begin: int,
    done: I64,
    front: I64,
    back: I64,
    source: I32,
    to_ptr: I64,
    to: I32,
    lane_out: I64,
    lane_in: I64,
    slot: I64,
    place: I64,
    rows: I64,
    gathered: I64,
    fanned: I64,
) -> None:
    """Write the segments between two hosts; those that end at their destination fill the rows of a lane from the back.

    `done` are the bytes of each block that have a segment, zero at first.
    """
    for k in range(len(parts)):
        lane, block, amount = parts[k, 0], parts[k, 1], parts[k, 2]
        s, u, v, d = source[block], lane_out[lane], lane_in[lane], to[to_ptr[block]]
        several = to_ptr[block + 1] - to_ptr[block] > 1
        if d == v and not several:
            back[lane] -= 1
            row = back[lane]
        else:
            row = front[lane]
            front[lane] += 1
        gather, fan = slot[s] + place[u] if s != u else -1, slot[v] + place[d] if d != v else -1
        rows[row, 0], rows[row, 1], rows[row, 2] = block, done[block - begin], amount
        rows[row, 3], rows[row, 4] = gather, -2 if several else fan
        done[block - begin] += amount
        if gather >= 0:
            gathered[gather] += amount
        for j in range(to_ptr[block], to_ptr[block + 1]):
            if to[j] != v:
                fanned[slot[v] + place[to[j]]] += amount


class StageRows(NamedTuple):
    """Rows of stages of all classes of rails, which `order` sorts by time: receiving hosts, shares, and times.

    `class_rails[c, r]` says that rail r is of class c.
    """

    order: I64
    row_class: I64
    to: I64
    share: F64
    start: F64
    end: F64
    class_rails: I64


@compiled
def crossings(rows: StageRows, lane_at: I64, lane_bytes: I64, unit: int) -> tuple[I64, I64, F64, F64]:
    """Return the messages between hosts in order of time: lane, bytes, and the times of start and end as planned."""
    to, class_rails, row_class = rows.to, rows.class_rails, rows.row_class
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
    for row in rows.order:
        for rail in range(rails):
            if class_rails[row_class[row], rail] == 0:
                continue
            for a in range(hosts):
                b = to[row, a]
                lane = lane_at[rail, a * hosts + b] if b >= 0 else -1
                if lane < 0:
                    continue
                total = lane_bytes[lane]
                until[lane] += rows.share[row, a]
                rows_left[lane] -= 1
                upto = total
                if rows_left[lane] > 0:
                    upto = min(int(total * until[lane] / unit) * unit, total)
                if upto > sent[lane]:
                    lane_of[count], size[count] = lane, upto - sent[lane]
                    begin[count], done[count] = rows.start[row], rows.end[row]
                    sent[lane] = upto
                    count += 1
    return lane_of[:count], size[:count], begin[:count], done[:count]


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
