"""Which bytes cross over a third host: those of hosts that share few rails, where other rails have time to spare.

As in `lane_choice_kernels`, bytes are placed in parts where the prices of network cards are lowest, the price being a
power of the load: on a lane, or on a lane to a third host and another lane from there.
"""

import numpy as np

from flowccl.compiled import F64, I64, Bool, compiled, inlined, inner

_POWERS = 5  # price: the load to the power 2^1 in the first round, up to 2^5
_PARTS = 64  # of the bytes between two hosts
_LARGEST = 4  # of the relayed bytes between two hosts, in such parts of them, that are one row
_BASE_PRICE = 0.01  # of a lane besides that of its load: data crosses once where loads are low


@compiled
def relayed_bytes(
    total: I64, lane_ptr: I64, lane_out: I64, lane_in: I64, lane_ps: F64, partial: Bool, gpus: int, rounds: int
) -> F64:
    """Return the bytes from host a to host b that should cross over host c, at [a, c, b].

    `total` are the bytes of each host pair; `partial` says which pairs lack lanes that other pairs of the hosts have.
    """
    pairs = len(total)
    hosts = int(np.sqrt(pairs) + 0.5)
    choice = np.full((pairs, _PARTS, 2), -1, np.int64)  # the lanes of each part
    load = np.zeros(2 * gpus)
    price = np.zeros(2 * gpus)
    for turn in range(rounds):
        squarings, top = min(turn + 1, _POWERS), max(load.max(), 1.0)
        for k in range(len(load)):
            price[k] = price_of(load[k] / top, squarings)
        for pair in range(pairs):
            a, b, step = pair // hosts, pair % hosts, total[pair] / _PARTS
            if total[pair] == 0 or lane_ptr[pair] == lane_ptr[pair + 1]:
                continue
            for part in range(_PARTS):
                for k in range(2):
                    _carry(choice[pair, part, k], -step, lane_out, lane_in, lane_ps, load, price, top, squarings)
            for part in range(_PARTS):
                first, least = _cheapest(pair, lane_ptr, lane_out, lane_in, lane_ps, price)
                second = -1
                for c in range(hosts if partial[pair] else 0):
                    if c not in (a, b):
                        one, cost = _cheapest(a * hosts + c, lane_ptr, lane_out, lane_in, lane_ps, price)
                        other, more = _cheapest(c * hosts + b, lane_ptr, lane_out, lane_in, lane_ps, price)
                        if cost + more < least:
                            first, second, least = one, other, cost + more
                choice[pair, part, 0], choice[pair, part, 1] = first, second
                for k in range(2):
                    _carry(choice[pair, part, k], step, lane_out, lane_in, lane_ps, load, price, top, squarings)
    host_of_lane = np.zeros(len(lane_out), np.int64)  # at the end of each lane
    for pair in range(pairs):
        host_of_lane[lane_ptr[pair] : lane_ptr[pair + 1]] = pair % hosts
    result = np.zeros((hosts, hosts, hosts))
    for pair in range(pairs):
        for part in range(_PARTS):
            if choice[pair, part, 1] >= 0:
                result[pair // hosts, host_of_lane[choice[pair, part, 0]], pair % hosts] += total[pair] / _PARTS
    return result


@inlined
def price_of(load: float, squarings: int) -> float:
    """The price of a load: its power to 2 to the number of squarings."""
    result = load
    for _ in range(squarings):
        result *= result
    return result


@inner
def _cheapest(pair: int, lane_ptr: I64, lane_out: I64, lane_in: I64, lane_ps: F64, price: F64) -> tuple[int, float]:
    """The lane of a host pair with the lowest prices, and its price per byte; -1 and infinity if there is none."""
    best, least = -1, np.inf
    gpus = len(price) // 2
    for lane in range(lane_ptr[pair], lane_ptr[pair + 1]):
        cost = (price[lane_out[lane]] + price[gpus + lane_in[lane]] + _BASE_PRICE) * lane_ps[lane]
        if cost < least:
            best, least = lane, cost
    return best, least


@inner
def _carry(
    lane: int,
    size: float,
    lane_out: I64,
    lane_in: I64,
    lane_ps: F64,
    load: F64,
    price: F64,
    top: float,
    squarings: int,
) -> None:
    """Add the load of some bytes on a lane; nothing for lane -1."""
    if lane >= 0:
        for k in (lane_out[lane], len(load) // 2 + lane_in[lane]):
            load[k] = max(load[k] + size * lane_ps[lane], 0.0)
            price[k] = price_of(load[k] / top, squarings)


@compiled
def relayed_parts(relayed: F64, block_ptr: I64, size: I64, lane_ptr: I64, lane_in: I64, share: F64, unit: int) -> I64:
    """Return rows (block, offset, bytes, GPU that passes them on) of the bytes that cross over third hosts.

    `relayed[a, c, b]` bytes, in whole parts of `unit`, are taken from the blocks of hosts a and b in equal shares. They
    go to the GPUs at the ends of the lanes from a to c, as much to each as its `share` of the bytes on these lanes.
    """
    hosts = len(relayed)
    rows = np.empty((len(size) + hosts * hosts * (_PARTS + 1) + hosts * len(lane_in), 4), np.int64)
    count = 0
    for pair in range(hosts * hosts):
        a, b = pair // hosts, pair % hosts
        wanted, available = relayed[a, :, b].sum(), size[block_ptr[pair] : block_ptr[pair + 1]].sum()
        step = int(wanted / _PARTS / unit) * unit + unit
        host, lane, quota = -1, 0, 0.0  # where the next bytes go, and how many more of them
        seen, sent = 0, 0
        for block in range(block_ptr[pair], block_ptr[pair + 1] if wanted > 0.0 else block_ptr[pair]):
            seen += size[block]
            due, taken = min(int(seen * (wanted / available) / step) * step - sent, size[block]), 0
            while taken < due:
                while quota < unit:
                    host, lane = _next_lane(a, b, host, lane, relayed, lane_ptr)
                    quota += relayed[a, host, b] * share[lane]
                part = min(due - taken, int(quota / unit) * unit, _LARGEST * step)
                rows[count, 0], rows[count, 1], rows[count, 2], rows[count, 3] = block, taken, part, lane_in[lane]
                count += 1
                taken += part
                quota -= part
            sent += taken
    return rows[:count]


@inner
def _next_lane(a: int, b: int, host: int, lane: int, relayed: F64, lane_ptr: I64) -> tuple[int, int]:
    """The lane behind `lane` from host a to `host`, or the first one to the next host in turn with relayed bytes."""
    hosts = len(relayed)
    if host >= 0 and lane + 1 < lane_ptr[a * hosts + host + 1]:
        return host, lane + 1
    for step in range(1, hosts + 1):
        c = (host + step) % hosts
        if relayed[a, c, b] > 0.0:
            return c, lane_ptr[a * hosts + c]
    return host, lane


@compiled
def phased_rows(to: I64, share: F64, part: F64) -> tuple[I64, F64]:
    """Return the rows of stages for hosts that appear once per phase: what is sent first is of phase 0, and so on.

    `part[p, a * hosts + b]` is the share of phase p in what host a sends to host b. Host a of phase p has the number
    p * hosts + a.
    """
    rows, hosts = to.shape
    phases = len(part)
    all_to, all_share = np.full((rows, phases * hosts), -1, np.int64), np.zeros((rows, phases * hosts))
    done = np.zeros(hosts * hosts)
    for row in range(rows):
        for a in range(hosts):
            b = to[row, a]
            if b < 0:
                continue
            pair = a * hosts + b
            begin, end, before = done[pair], done[pair] + share[row, a], 0.0
            done[pair] = end
            for phase in range(phases):
                size = part[phase, pair]
                if size > 0.0:
                    some = min(end, before + size) - max(begin, before)
                    if some > 0.0:
                        all_to[row, phase * hosts + a] = phase * hosts + b
                        all_share[row, phase * hosts + a] = some / size
                before += size
    return all_to, all_share
