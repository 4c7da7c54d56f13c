"""Crossing between hosts: shares of the lanes of two hosts, and stages in which every host sends to one other host.

Without latency, the bytes of a rail form a preemptive open shop: senders and receivers are machines, and the optimum is
the largest load of any of them (Gonzalez and Sahni, 1976). A schedule of that length consists of stages, each a
matching of senders and receivers for some time: a Birkhoff decomposition of the load matrix, filled up to equal row and
column sums. Stages here are found with large times first, as in Solstice (Liu et al., 2015): matchings use entries
above a threshold only, which falls when there is no perfect matching any more.
"""

import numpy as np

from flowccl.compiled import F64, I64, Bool, compiled, inner, maker

_SHRINK = 0.7  # of the threshold; 0.5 to 0.8 give the same lengths, 0.8 up to a third fewer stages
_TINY = 1e-9  # of the length: entries below this are rounding


@compiled
def split_lanes(
    demand: F64, lane_ptr: I64, lane_out: I64, lane_in: I64, lane_ps: F64, weight: F64, gpus: int, rounds: int
) -> F64:
    """Return the bytes of each lane; `demand` are the bytes of each host pair, `lane_ps` the time per byte of a lane.

    Starts with the given weights. Each round takes the host pairs in turn and moves the bytes of a pair to the lanes
    whose senders and receivers have the least load so far, until those are equally loaded.
    """
    share = np.zeros(len(weight))
    sent, got = np.zeros(gpus), np.zeros(gpus)
    for pair in range(len(demand)):
        for lane in range(lane_ptr[pair], lane_ptr[pair + 1]):
            share[lane] = demand[pair] * weight[lane]
            sent[lane_out[lane]] += share[lane] * lane_ps[lane]
            got[lane_in[lane]] += share[lane] * lane_ps[lane]
    level = np.zeros(len(weight))
    for _ in range(rounds):
        for pair in range(len(demand)):
            first, last = lane_ptr[pair], lane_ptr[pair + 1]
            if demand[pair] <= 0 or last - first < 2:
                continue
            for lane in range(first, last):
                sent[lane_out[lane]] -= share[lane] * lane_ps[lane]
                got[lane_in[lane]] -= share[lane] * lane_ps[lane]
            for lane in range(first, last):
                level[lane] = max(sent[lane_out[lane]], got[lane_in[lane]], 0.0)
            _fill(demand[pair], level, lane_ps, share, first, last)
            for lane in range(first, last):
                sent[lane_out[lane]] += share[lane] * lane_ps[lane]
                got[lane_in[lane]] += share[lane] * lane_ps[lane]
    return share


@inner
def _fill(amount: float, level: F64, lane_ps: F64, share: F64, first: int, last: int) -> None:
    """Divide an amount among lanes so that the highest level of a lane that gets some is as low as possible."""
    for lane in range(first, last):
        share[lane] = 0.0
    rate, volume, top = 0.0, 0.0, 0.0
    used = 0
    while True:  # the lanes with the lowest levels, one more at a time
        best = -1
        for lane in range(first, last):
            if share[lane] == 0.0 and (best < 0 or level[lane] < level[best]):
                best = lane
        if best < 0 or (used > 0 and level[best] * rate - volume >= amount):
            break
        share[best] = 1.0
        rate += 1.0 / lane_ps[best]
        volume += level[best] / lane_ps[best]
        used += 1
        top = (amount + volume) / rate
    for lane in range(first, last):
        if share[lane] > 0.0:
            share[lane] = max(top - level[lane], 0.0) / lane_ps[lane]


@compiled
def decompose(load: F64, residual: float, seed: I64, most: int) -> tuple[I64, F64, float]:
    """Return stages (the receiver of each sender), their times, and the length of a load matrix.

    The stages cover all but `residual` of the length. `seed` are stages of a similar matrix: stage k starts from
    seed[k] as far as its entries are above the threshold.
    """
    hosts = len(load)
    filled, length = _filled(load)
    receiver = np.full((most, hosts), -1, dtype=np.int64)
    time = np.zeros(most)
    to = np.full(hosts, -1, dtype=np.int64)
    by = np.full(hosts, -1, dtype=np.int64)
    able = np.zeros((hosts, hosts), dtype=np.bool_)
    seen = np.zeros(hosts, dtype=np.bool_)
    before = np.zeros(hosts, dtype=np.int64)
    queue = np.zeros(hosts + 1, dtype=np.int64)
    threshold, done, stages = filled.max(), 0.0, 0
    _mark(able, filled, threshold)
    while stages < most and length - done > residual * length and threshold > _TINY * length:
        for a in range(hosts):
            if to[a] >= 0 and not able[a, to[a]]:
                by[to[a]], to[a] = -1, -1
        if stages < len(seed):
            _start_from(seed[stages], able, to, by)
        perfect = True
        for a in range(hosts):
            if to[a] < 0 and not _augment(a, able, to, by, seen, before, queue):
                perfect = False
                break
        if not perfect:
            threshold *= _SHRINK
            _mark(able, filled, threshold)
            continue
        least = filled[0, to[0]]
        for a in range(1, hosts):
            least = min(least, filled[a, to[a]])
        for a in range(hosts):
            filled[a, to[a]] -= least
            able[a, to[a]] = filled[a, to[a]] >= threshold
            receiver[stages, a] = to[a]
        time[stages] = least
        done += least
        stages += 1
    return receiver[:stages], time[:stages], length


@maker
def _filled(load: F64) -> tuple[F64, float]:
    """The load matrix with idle time added until all row and column sums are equal, and that sum."""
    hosts = len(load)
    row, column = np.zeros(hosts), np.zeros(hosts)
    for a in range(hosts):
        for b in range(hosts):
            row[a] += load[a, b]
            column[b] += load[a, b]
    length = max(row.max(), column.max())
    filled = load.copy()
    for a in range(hosts):
        idle = length - max(row[a], column[a])
        filled[a, a] += idle
        row[a] += idle
        column[a] += idle
    b = 0
    for a in range(hosts):
        while b < hosts and length - row[a] > _TINY * length:
            idle = min(length - row[a], length - column[b])
            filled[a, b] += idle
            row[a] += idle
            column[b] += idle
            if length - column[b] <= _TINY * length:
                b += 1
    return filled, length


@inner
def _mark(able: Bool, filled: F64, threshold: float) -> None:
    for a in range(len(filled)):
        for b in range(len(filled)):
            able[a, b] = filled[a, b] >= threshold


@inner
def _start_from(stage: I64, able: Bool, to: I64, by: I64) -> None:
    """Match free senders as in another stage, where that is possible."""
    for a in range(len(to)):
        if to[a] < 0 and stage[a] >= 0 and by[stage[a]] < 0 and able[a, stage[a]]:
            to[a], by[stage[a]] = stage[a], a


@inner
def _augment(a: int, able: Bool, to: I64, by: I64, seen: Bool, before: I64, queue: I64) -> bool:
    """Match sender `a` along a shortest augmenting path; return whether there is one."""
    hosts = len(to)
    for b in range(hosts):
        seen[b] = False
    queue[0] = a
    head, tail = 0, 1
    while head < tail:
        sender = queue[head]
        head += 1
        for step in range(1, hosts + 1):  # receivers behind the sender first: equal loads give shifted permutations
            b = sender + step if sender + step < hosts else sender + step - hosts
            if seen[b] or not able[sender, b]:
                continue
            seen[b] = True
            before[b] = sender
            if by[b] < 0:
                while True:
                    sender = before[b]
                    free = to[sender]
                    to[sender], by[b] = b, sender
                    if sender == a:
                        return True
                    b = free
            queue[tail] = by[b]
            tail += 1
    return False


@compiled
def stage_rows(load: F64, receiver: I64, time: F64, cuts: F64) -> tuple[I64, F64, F64, F64]:
    """Return rows (receiver of each sender or -1), the share that each sends of its entry, and times of start and end.

    Rows come from the stages, divided at the times `cuts`. What the stages left over is added to the last row of an
    entry; entries that no stage has come last.
    """
    hosts, stages = len(load), len(receiver)
    left, last = load.copy(), np.full((hosts, hosts), -1, dtype=np.int64)
    most = stages + len(cuts) + hosts + 2
    to = np.full((most, hosts), -1, dtype=np.int64)
    part = np.zeros((most, hosts))
    start, end = np.zeros(most), np.zeros(most)
    rows, now = 0, 0.0
    for stage in range(stages):
        begin, until = now, now + time[stage]
        while begin < until:
            cut = until
            for k in range(len(cuts)):
                if begin < cuts[k] < cut:
                    cut = cuts[k]
            if until - cut < 0.01 * time[stage]:
                cut = until
            some = False
            for a in range(hosts):
                b = receiver[stage, a]
                amount = min(left[a, b], cut - begin)
                if amount > 0.0:
                    left[a, b] -= amount
                    part[rows, a], to[rows, a], last[a, b] = amount, b, rows
                    some = True
            if some:
                start[rows], end[rows] = begin, cut
                rows += 1
            begin = cut
        now = until
    for shift in range(1, hosts + 1):
        longest = 0.0
        for a in range(hosts):
            b = (a + shift) % hosts
            if load[a, b] > 0.0 and last[a, b] < 0:
                part[rows, a], to[rows, a], last[a, b] = left[a, b], b, rows
                longest = max(longest, left[a, b])
                left[a, b] = 0.0
        if longest > 0.0:
            start[rows], end[rows] = now, now + longest
            now += longest
            rows += 1
    for row in range(rows):
        for a in range(hosts):
            b = to[row, a]
            if b >= 0:
                part[row, a] = (part[row, a] + (left[a, b] if last[a, b] == row else 0.0)) / load[a, b]
    return to[:rows], part[:rows], start[:rows], end[:rows]
