"""Which bytes take which lane where links inside hosts, not network cards, limit the time.

Every path of a block over a lane loads the links that bring its data to the sender, the lane itself, and the links that
pass it on. The greatest load of a link is made small: blocks are placed in parts, each where the links' prices add up
to the least, and placed again in further rounds. The price of a link is a power of its load; higher powers in later
rounds come closer to the greatest load alone.
"""

import numpy as np

from flowccl.compiled import F64, I32, I64, compiled, inner
from flowccl.moe.lane_kernels import write_segments
from flowccl.moe.relay_kernels import price_of

_POWERS = 5  # price: the load to the power 2^1 in the first round, up to 2^5
_PARTS = 16  # of blocks that a lane gets, about
_BASE_PRICE = 0.01  # price of each link besides that of its load: short paths are better where loads are low


@compiled
def least_load(
    block_ptr: I64,
    source: I32,
    size: I64,
    to_ptr: I64,
    to: I32,
    lane_ptr: I64,
    lane_out: I64,
    lane_in: I64,
    lane_pair: I32,
    slot: I64,
    place: I64,
    leg_ptr: I64,
    leg_resource: I64,
    leg_ps: F64,
    resources: int,
    unit: int,
    rounds: int,
) -> tuple[I64, I64]:
    """Return the bytes of every block on every lane of its host pair, and the pointer to them per block.

    Bytes of pair p load the resources `leg_resource[leg_ptr[p]:leg_ptr[p + 1]]` by `leg_ps` each.
    """
    host_pairs = len(block_ptr) - 1
    ptr = np.zeros(len(source) + 1, dtype=np.int64)
    for pair in range(host_pairs):
        for block in range(block_ptr[pair], block_ptr[pair + 1]):
            ptr[block + 1] = ptr[block] + lane_ptr[pair + 1] - lane_ptr[pair]
    amount = np.zeros(ptr[-1], dtype=np.int64)
    load, price = np.zeros(resources), np.zeros(resources)
    _load_inside(block_ptr, source, size, to_ptr, to, lane_ptr, slot, place, leg_ptr, leg_resource, leg_ps, load)
    loaded_ptr = np.zeros(np.diff(lane_ptr).max() + 1, dtype=np.int64)
    wide = np.diff(leg_ptr).max() * (np.diff(to_ptr).max() + 2) if len(source) else 0
    loaded = np.zeros(wide * len(loaded_ptr), dtype=np.int64)
    loaded_ps = np.zeros(wide * len(loaded_ptr))
    for turn in range(rounds):
        top = max(load.max(), 1.0)
        squarings = min(turn + 1, _POWERS)
        for k in range(resources):
            price[k] = price_of(load[k] / top, squarings)
        for pair in range(host_pairs):
            first, last = lane_ptr[pair], lane_ptr[pair + 1]
            total = 0
            for block in range(block_ptr[pair], block_ptr[pair + 1]):
                total += size[block]
            step = total // max((last - first) * _PARTS, 1) // unit * unit + unit
            for block in range(block_ptr[pair], block_ptr[pair + 1] if first < last else block_ptr[pair]):
                _loads_of(
                    block, first, last, source, to_ptr, to, lane_out, lane_in, lane_pair, slot, place, leg_ptr,
                    leg_resource, leg_ps, loaded_ptr, loaded, loaded_ps,
                )  # fmt: skip
                row = amount[ptr[block] : ptr[block + 1]]
                _place(size[block], step, row, loaded_ptr, loaded, loaded_ps, load, price, top, squarings)
    return amount, ptr


@inner
def _load_inside(
    block_ptr: I64,
    source: I32,
    size: I64,
    to_ptr: I64,
    to: I32,
    lane_ptr: I64,
    slot: I64,
    place: I64,
    leg_ptr: I64,
    leg_resource: I64,
    leg_ps: F64,
    load: F64,
) -> None:
    """Add the loads of the data that stays in its host."""
    for pair in range(len(block_ptr) - 1):
        if lane_ptr[pair] == lane_ptr[pair + 1]:
            for block in range(block_ptr[pair], block_ptr[pair + 1]):
                for k in range(to_ptr[block], to_ptr[block + 1]):
                    inside = slot[source[block]] + place[to[k]]
                    for leg in range(leg_ptr[inside], leg_ptr[inside + 1]):
                        load[leg_resource[leg]] += size[block] * leg_ps[leg]


@inner
def _loads_of(
    block: int,
    first: int,
    last: int,
    source: I32,
    to_ptr: I64,
    to: I32,
    lane_out: I64,
    lane_in: I64,
    lane_pair: I32,
    slot: I64,
    place: I64,
    leg_ptr: I64,
    leg_resource: I64,
    leg_ps: F64,
    loaded_ptr: I64,
    loaded: I64,
    loaded_ps: F64,
) -> None:
    """Write what each path of a block loads: `loaded[loaded_ptr[l]:loaded_ptr[l + 1]]` for lane `first + l`."""
    count = 0
    for lane in range(first, last):
        u, v = lane_out[lane], lane_in[lane]
        for k in range(to_ptr[block] - 2, to_ptr[block + 1]):
            if k == to_ptr[block] - 2:
                pair = lane_pair[lane]
            elif k == to_ptr[block] - 1:
                pair = slot[source[block]] + place[u]
            else:
                pair = slot[v] + place[to[k]]
            for leg in range(leg_ptr[pair], leg_ptr[pair + 1]):
                loaded[count], loaded_ps[count] = leg_resource[leg], leg_ps[leg]
                count += 1
        loaded_ptr[lane - first + 1] = count


@inner
def _place(
    size: int,
    step: int,
    amount: I64,
    loaded_ptr: I64,
    loaded: I64,
    loaded_ps: F64,
    load: F64,
    price: F64,
    top: float,
    squarings: int,
) -> None:
    """Place a block anew, in parts of `step` bytes, each on the lane with the lowest prices."""
    for lane in range(len(amount)):
        if amount[lane] > 0:
            for k in range(loaded_ptr[lane], loaded_ptr[lane + 1]):
                load[loaded[k]] -= amount[lane] * loaded_ps[k]
                price[loaded[k]] = price_of(max(load[loaded[k]], 0.0) / top, squarings)
            amount[lane] = 0
    left = size
    while left > 0:
        part = min(step, left)
        best, least = 0, np.inf
        for lane in range(len(amount)):
            cost = 0.0
            for k in range(loaded_ptr[lane], loaded_ptr[lane + 1]):
                cost += (price[loaded[k]] + _BASE_PRICE) * loaded_ps[k]
            if cost < least:
                best, least = lane, cost
        amount[best] += part
        left -= part
        for k in range(loaded_ptr[best], loaded_ptr[best + 1]):
            load[loaded[k]] += part * loaded_ps[k]
            price[loaded[k]] = price_of(load[loaded[k]] / top, squarings)


@compiled
def segments_of(
    amount: I64,
    amount_ptr: I64,
    block_ptr: I64,
    source: I32,
    to_ptr: I64,
    to: I32,
    lane_ptr: I64,
    lane_out: I64,
    lane_in: I64,
    slot: I64,
    place: I64,
    pairs: int,
) -> tuple[I64, tuple[I64, I64, I64, I64]]:
    """Return the bytes of each lane, and the segments of the lanes as `assign` does."""
    lanes, total = len(lane_out), 0
    for k in range(len(amount)):
        total += amount[k] > 0
    lane_bytes, rows = np.zeros(lanes, np.int64), np.empty((total, 5), np.int64)
    ptr, front, back = np.zeros(lanes + 1, np.int64), np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)
    gathered, fanned = np.zeros(pairs, np.int64), np.zeros(pairs, np.int64)
    wide = max(1, np.diff(block_ptr).max())
    parts, done = np.empty((wide * max(1, np.diff(lane_ptr).max()), 3), np.int64), np.zeros(wide, np.int64)
    count = 0
    for pair in range(len(block_ptr) - 1):
        begin, end, first = block_ptr[pair], block_ptr[pair + 1], lane_ptr[pair]
        many = 0
        for lane in range(first, lane_ptr[pair + 1]):
            ptr[lane] = front[lane] = count + many
            lower, upper, turn = _own_blocks(lane_out[lane], lane_in[lane], begin, end, source, to_ptr, to)
            for step in range(end - begin):  # its own blocks in turn, then the next ones
                if step < upper - lower:
                    block = turn + step if turn + step < upper else turn + step - upper + lower
                else:
                    block = lower + step if lower + step < end else lower + step - end + begin
                part = amount[amount_ptr[block] + lane - first]
                if part > 0:
                    parts[many, 0], parts[many, 1], parts[many, 2] = lane, block, part
                    lane_bytes[lane] += part
                    many += 1
            back[lane] = count + many
        count += many
        done[: end - begin] = 0
        write_segments(
            parts[:many], begin, done, front, back, source, to_ptr, to, lane_out, lane_in, slot, place, rows, gathered,
            fanned,
        )  # fmt: skip
    ptr[lanes] = count
    return lane_bytes, (ptr, rows, gathered, fanned)


@inner
def _own_blocks(u: int, v: int, begin: int, end: int, source: I32, to_ptr: I64, to: I32) -> tuple[int, int, int]:
    """The blocks of GPU u among some blocks (first, end), and the first of them for a GPU behind v."""
    lower = begin
    while lower < end and source[lower] < u:
        lower += 1
    upper = turn = lower
    while upper < end and source[upper] == u:
        if to[to_ptr[upper]] <= v:
            turn = upper + 1
        upper += 1
    return lower, upper, turn
