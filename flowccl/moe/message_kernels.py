"""Messages inside hosts: data for other GPUs' lanes, data that has crossed, and data that stays in its host.

Data that another GPU sends (`gather`) and data that has crossed (`fan-out`) is collected into messages per pair of
GPUs. The first messages of a gather and the last ones of a fan-out are small, so that crossing starts early and little
is left to do when the last byte has crossed.
"""

import numpy as np

from flowccl.compiled import F64, I32, I64, compiled, inner

LOCAL, CROSS, GATHER, FAN_OUT = 0, 1, 2, 3
"""The kinds of messages, in the order of their numbers."""


@compiled
def gathers(
    own: I64, end: I64, chunk_bytes: I64, gather: I32, total: I64, pieces: int, least: I64, first_message: int
) -> tuple[I32, I64, I32]:
    """Replace the pairs in `gather` by messages; return pair, bytes and first crossing message of each message.

    A message holds what the next messages between hosts need, in their order. It is closed when it has 1 / `pieces` of
    the data of its pair (`total`), or as much as all before it, but not below `least` bytes (per pair).
    """
    most = 0
    for crossing in range(len(own)):
        most += end[crossing] - own[crossing]
    before = np.zeros(len(total), dtype=np.int64)
    is_open = np.full(len(total), -1, dtype=np.int32)
    touched = np.empty(len(total), dtype=np.int32)
    pair_of, size, needed = np.empty(most, np.int32), np.empty(most, np.int64), np.empty(most, np.int32)
    count = 0
    for crossing in range(len(own)):
        marks = 0
        for chunk in range(own[crossing], end[crossing]):
            pair = gather[chunk]
            if pair < 0:
                continue
            if is_open[pair] < 0:
                is_open[pair] = count
                pair_of[count], size[count], needed[count] = pair, 0, crossing
                count += 1
            if marks == 0 or touched[marks - 1] != pair:
                touched[marks] = pair
                marks += 1
            gather[chunk] = is_open[pair] + first_message
            size[is_open[pair]] += chunk_bytes[chunk]
        for k in range(marks):
            pair = touched[k]
            if is_open[pair] >= 0:
                full = size[is_open[pair]]
                if full >= max(least[pair], min(total[pair] // pieces, before[pair])):
                    before[pair] += full
                    is_open[pair] = -1
    return pair_of[:count], size[:count], needed[:count]


@compiled
def fan_outs(
    begin: I64,
    end: I64,
    chunk_bytes: I64,
    entry_ptr: I64,
    entry: I32,
    total: I64,
    pieces: int,
    least: I64,
    first_message: int,
) -> tuple[I32, I64, I32]:
    """Replace the pairs in `entry` by messages; return pair, bytes and last crossing message of each message.

    A message holds what has crossed since the one before it. It is closed when it has 1 / `pieces` of the data of its
    pair (`total`), or as much as is still to come, but not below `least` bytes.
    """
    rest = total.copy()
    is_open = np.full(len(total), -1, dtype=np.int32)
    mark = np.full(len(total), -1, dtype=np.int32)
    touched = np.empty(len(total), dtype=np.int32)
    pair_of, size, last = np.empty(len(entry), np.int32), np.empty(len(entry), np.int64), np.empty(len(entry), np.int32)
    count = 0
    for crossing in range(len(begin)):
        marks = 0
        for chunk in range(begin[crossing], end[crossing]):
            for k in range(entry_ptr[chunk], entry_ptr[chunk + 1]):
                pair = entry[k]
                if pair < 0:
                    continue
                message = is_open[pair]
                if message < 0:
                    message = is_open[pair] = count
                    pair_of[count], size[count] = pair, 0
                    count += 1
                if mark[pair] != crossing:
                    mark[pair] = crossing
                    touched[marks] = pair
                    marks += 1
                entry[k] = message + first_message
                size[message] += chunk_bytes[chunk]
                rest[pair] -= chunk_bytes[chunk]
        for k in range(marks):
            pair = touched[k]
            message = is_open[pair]
            last[message] = crossing
            if size[message] >= max(least[pair], min(total[pair] // pieces, rest[pair])):
                is_open[pair] = -1
    return pair_of[:count], size[:count], last[:count]


@compiled
def locals_of(
    block_ptr: I64,
    source: I32,
    size: I64,
    to_ptr: I64,
    to: I32,
    hosts: int,
    slot: I64,
    place: I64,
    pairs: int,
    most_bytes: I64,
    pieces: int,
    unit: int,
) -> tuple[I32, I64, I64, I64, I32, I32, I64, I64]:
    """Return chunks and messages of the data that stays in its host.

    The data of a pair is sent in up to `pieces` messages, each with a part of every block, of about `most_bytes` of the
    pair. The chunks have block, offset and bytes; each (chunk, destination) a message; the messages pair, bytes, part.
    """
    total = np.zeros(pairs, dtype=np.int64)
    for host in range(hosts):
        for block in range(block_ptr[host * hosts + host], block_ptr[host * hosts + host + 1]):
            for k in range(to_ptr[block], to_ptr[block + 1]):
                total[slot[source[block]] + place[to[k]]] += size[block]
    parts = np.ones(pairs, dtype=np.int64)
    for pair in range(pairs):
        parts[pair] = min(max(1, -(-total[pair] // max(most_bytes[pair], 1))), pieces)
    chunks = entries = 0
    for host in range(hosts):
        for block in range(block_ptr[host * hosts + host], block_ptr[host * hosts + host + 1]):
            count = _parts(block, source, to_ptr, to, slot, place, parts)
            chunks += count
            entries += count * (to_ptr[block + 1] - to_ptr[block])
    block_of, offset_of, size_of = np.empty(chunks, np.int32), np.empty(chunks, np.int64), np.empty(chunks, np.int64)
    entry_ptr, mine = np.zeros(chunks + 1, np.int64), np.empty(entries, np.int32)
    message_of = np.full((pairs, pieces), -1, dtype=np.int64)
    pair_list, bytes_list = np.empty(entries, np.int32), np.zeros(entries, np.int64)
    part_list = np.empty(entries, np.int64)
    count = chunk = entry = 0
    for host in range(hosts):
        for block in range(block_ptr[host * hosts + host], block_ptr[host * hosts + host + 1]):
            many = _parts(block, source, to_ptr, to, slot, place, parts)
            before = 0
            for part in range(many):
                until = size[block] if part == many - 1 else size[block] * (part + 1) // many // unit * unit
                if until == before:
                    continue
                block_of[chunk], offset_of[chunk], size_of[chunk] = block, before, until - before
                for k in range(to_ptr[block], to_ptr[block + 1]):
                    pair = slot[source[block]] + place[to[k]]
                    if message_of[pair, part] < 0:
                        message_of[pair, part] = count
                        pair_list[count], part_list[count] = pair, part
                        count += 1
                    mine[entry] = message_of[pair, part]
                    bytes_list[mine[entry]] += until - before
                    entry += 1
                chunk += 1
                entry_ptr[chunk] = entry
                before = until
    return (
        block_of[:chunk], offset_of[:chunk], size_of[:chunk], entry_ptr[: chunk + 1], mine[:entry],
        pair_list[:count], bytes_list[:count], part_list[:count],
    )  # fmt: skip


@inner
def _parts(block: int, source: I32, to_ptr: I64, to: I32, slot: I64, place: I64, parts: I64) -> int:
    """The parts of a local block: those of the pair with the most."""
    count = 1
    for k in range(to_ptr[block], to_ptr[block + 1]):
        count = max(count, parts[slot[source[block]] + place[to[k]]])
    return count


@compiled
def in_order(local_key: F64, start: F64, end: F64, needed: I32, last: I32, lead: float, length: float) -> I32:
    """Return all messages sorted by the time that they are planned for, in steps of 1 / 1024 of the length.

    Crossing messages are planned from `start` to `end`, gathers `lead` before they are needed, fan-outs when their last
    data has crossed. In a step gathers come first, then crossings, fan-outs and local messages.
    """
    steps = 1024
    local, across, before = len(local_key), len(start), len(needed)
    every = local + across + before + len(last)
    slot = np.empty(every, dtype=np.int32)
    count = np.zeros((steps + 1) * 4 + 1, dtype=np.int32)
    scale = steps / length if length > 0 else 0.0
    for k in range(every):
        if k < local:
            key, rank = local_key[k], 3
        elif k < local + across:
            key, rank = start[k - local], 1
        elif k < local + across + before:
            key, rank = start[needed[k - local - across]] - lead, 0
        else:
            key, rank = end[last[k - local - across - before]], 2
        slot[k] = int(min(max(key * scale, 0.0), float(steps))) * 4 + rank
        count[slot[k] + 1] += 1
    for k in range(len(count) - 1):
        count[k + 1] += count[k]
    order = np.empty(every, dtype=np.int32)
    for k in range(every):
        order[count[slot[k]]] = k
        count[slot[k]] += 1
    return order


@compiled
def place(
    order: I32,
    first: I64,
    pair: I32,
    size: I64,
    own: I64,
    chunk_end: I64,
    gather: I32,
    last: I32,
    pair_dst: I64,
    path_ptr: I64,
    path_route: I64,
    route_GBps: F64,
    route_latency_ps: I64,
    route_overhead_ps: I64,
    route_overhead_GBps: F64,
    use_ptr: I64,
    use_resource: I64,
    use_offset_ps: I64,
    use_more_ps: I64,
    server_ptr: I64,
    quick: F64,
    gpus: int,
) -> tuple[I64, I64, I64]:
    """Place messages one after the other, each as early as its data and the resources of its route allow.

    Messages from `first[k]` on are of kind k. `last` is the crossing message that each fan-out waits for. Row p of
    `quick` has, for pairs with one route over one or two links: GB/s, latency, overhead, GB/s with the overhead, and
    resource and offset of the first and of the last link.
    Returns the pointer to the hops of every message, their starts, and the arrival of every message.
    """
    free = np.zeros(server_ptr[-1], dtype=np.int64)
    hop_ptr = np.zeros(len(pair) + 1, dtype=np.int64)
    for message in range(len(pair)):
        hop_ptr[message + 1] = hop_ptr[message] + path_ptr[pair[message] + 1] - path_ptr[pair[message]]
    start = np.empty(hop_ptr[-1], dtype=np.int64)
    arrival = np.zeros(len(pair), dtype=np.int64)
    crossed = np.zeros(first[2] - first[1], dtype=np.int64)  # the last arrival at its GPU until then
    latest = np.zeros(gpus, dtype=np.int64)
    for message in order:
        now, p = 0, pair[message]
        if message >= first[3]:
            now = crossed[last[message - first[3]]]
        elif first[1] <= message < first[2]:
            for chunk in range(own[message - first[1]], chunk_end[message - first[1]]):
                if gather[chunk] >= 0:
                    now = max(now, arrival[gather[chunk]])
        if quick[p, 0] > 0.0:
            busy = int(np.ceil(size[message] * 1000.0 / quick[p, 0]))
            if quick[p, 2] > 0.0:
                busy = max(busy, int(quick[p, 2]) + int(np.ceil(size[message] * 1000.0 / quick[p, 3])))
            one, other, later, more = int(quick[p, 4]), int(quick[p, 6]), int(quick[p, 5]), int(quick[p, 7])
            now = max(now, free[one] - later, free[other] - more)
            free[one] = now + later + busy
            free[other] = now + more + busy
            start[hop_ptr[message]] = now
            now += busy + int(quick[p, 1])
        else:
            for hop in range(path_ptr[p + 1] - path_ptr[p]):
                route = path_route[path_ptr[p] + hop]
                busy = int(np.ceil(size[message] * 1000.0 / route_GBps[route]))
                if route_overhead_ps[route] > 0:
                    alone = int(np.ceil(size[message] * 1000.0 / route_overhead_GBps[route]))
                    busy = max(busy, route_overhead_ps[route] + alone)
                for use in range(use_ptr[route], use_ptr[route + 1]):
                    server = _first_free(free, server_ptr, use_resource[use])
                    now = max(now, free[server] - use_offset_ps[use])
                for use in range(use_ptr[route], use_ptr[route + 1]):
                    server = _first_free(free, server_ptr, use_resource[use])
                    free[server] = now + use_offset_ps[use] + busy + use_more_ps[use]
                start[hop_ptr[message] + hop] = now
                now += busy + route_latency_ps[route]
        arrival[message] = now
        if first[1] <= message < first[2]:
            gpu = pair_dst[p]
            latest[gpu] = max(latest[gpu], now)
            crossed[message - first[1]] = latest[gpu]
    return hop_ptr, start, arrival


@inner
def _first_free(free: I64, server_ptr: I64, resource: int) -> int:
    """The server of a resource that is free first."""
    best: int = server_ptr[resource]
    for server in range(best + 1, server_ptr[resource + 1]):
        if free[server] < free[best]:
            best = server
    return best
