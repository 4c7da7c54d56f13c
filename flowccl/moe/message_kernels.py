"""Messages inside hosts: data for other GPUs' lanes, data that has crossed, and data that stays in its host.

Data that another GPU sends (`gather`) and data that has crossed (`fan-out`) is collected into messages per pair of GPUs.
The first messages of a gather and the last ones of a fan-out are small, so that crossing starts early and little is
left to do when the last byte has crossed.
"""

import numpy as np

from flowccl.compiled import F64, I64, compiled, inner

GATHER, CROSS, FAN_OUT, LOCAL = 0, 1, 2, 3
"""The kinds of messages, in the order in which those of the same time are placed."""


@compiled
def gathers(
    nic_pair_src: I64,
    first: I64,
    number: I64,
    chunk_block: I64,
    chunk_bytes: I64,
    source: I64,
    pair_of: I64,
    pairs: int,
    pieces: int,
    least: I64,
) -> tuple[I64, I64, I64, I64]:
    """Return the gather message of each chunk, or -1, and pair, bytes and first crossing message of each of them.

    A message holds what the next messages between hosts need, in their order. It is closed when it has 1 / `pieces` of
    the data of its pair, or as much as all before it, but not below `least` bytes (per pair).
    """
    total = np.zeros(pairs, dtype=np.int64)
    before = np.zeros(pairs, dtype=np.int64)
    for message in range(len(nic_pair_src)):
        u = nic_pair_src[message]
        for chunk in range(first[message], first[message] + number[message]):
            s = source[chunk_block[chunk]]
            if s != u:
                total[pair_of[s, u]] += chunk_bytes[chunk]
    mine = np.full(len(chunk_block), -1, dtype=np.int64)
    is_open = np.full(pairs, -1, dtype=np.int64)
    pair_list, size = np.empty(len(chunk_block), np.int64), np.zeros(len(chunk_block), np.int64)
    needed = np.empty(len(chunk_block), np.int64)
    count = 0
    for message in range(len(nic_pair_src)):
        u = nic_pair_src[message]
        for chunk in range(first[message], first[message] + number[message]):
            s = source[chunk_block[chunk]]
            if s == u:
                continue
            pair = pair_of[s, u]
            if is_open[pair] < 0:
                is_open[pair] = count
                pair_list[count], needed[count] = pair, message
                count += 1
            mine[chunk] = is_open[pair]
            size[is_open[pair]] += chunk_bytes[chunk]
        for chunk in range(first[message], first[message] + number[message]):
            if mine[chunk] < 0:
                continue
            pair = pair_list[mine[chunk]]
            if is_open[pair] < 0:
                continue
            enough = max(least[pair], min(total[pair] // pieces, before[pair]))
            if size[is_open[pair]] >= enough:
                before[pair] += size[is_open[pair]]
                is_open[pair] = -1
    return mine, pair_list[:count], size[:count], needed[:count]


@compiled
def fan_outs(
    nic_pair_dst: I64,
    first: I64,
    number: I64,
    chunk_block: I64,
    chunk_bytes: I64,
    to_ptr: I64,
    to: I64,
    pair_of: I64,
    pairs: int,
    pieces: int,
    least: I64,
) -> tuple[I64, I64, I64, I64, I64]:
    """Return the fan-out message of each (chunk, destination), or -1, with its pointer per chunk, and the messages.

    A message holds what has crossed since the one before it. It is closed when it has 1 / `pieces` of the data of its
    pair, or as much as is still to come, but not below `least` bytes. The messages have a pair, bytes, and the last
    crossing message that they wait for.
    """
    entry_ptr = np.zeros(len(chunk_block) + 1, dtype=np.int64)
    for chunk in range(len(chunk_block)):
        block = chunk_block[chunk]
        entry_ptr[chunk + 1] = entry_ptr[chunk] + to_ptr[block + 1] - to_ptr[block]
    entries = entry_ptr[len(chunk_block)]
    total = np.zeros(pairs, dtype=np.int64)
    for message in range(len(nic_pair_dst)):
        v = nic_pair_dst[message]
        for chunk in range(first[message], first[message] + number[message]):
            block = chunk_block[chunk]
            for k in range(to_ptr[block], to_ptr[block + 1]):
                if to[k] != v:
                    total[pair_of[v, to[k]]] += chunk_bytes[chunk]
    rest = total.copy()
    mine = np.full(entries, -1, dtype=np.int64)
    is_open = np.full(pairs, -1, dtype=np.int64)
    pair_list, size = np.empty(entries, np.int64), np.zeros(entries, np.int64)
    last = np.empty(entries, np.int64)
    count = 0
    for message in range(len(nic_pair_dst)):
        v = nic_pair_dst[message]
        for chunk in range(first[message], first[message] + number[message]):
            block = chunk_block[chunk]
            for k in range(to_ptr[block], to_ptr[block + 1]):
                if to[k] == v:
                    continue
                pair = pair_of[v, to[k]]
                if is_open[pair] < 0:
                    is_open[pair] = count
                    pair_list[count] = pair
                    count += 1
                mine[entry_ptr[chunk] + k - to_ptr[block]] = is_open[pair]
                size[is_open[pair]] += chunk_bytes[chunk]
                last[is_open[pair]] = message
                rest[pair] -= chunk_bytes[chunk]
        for chunk in range(first[message], first[message] + number[message]):
            for entry in range(entry_ptr[chunk], entry_ptr[chunk + 1]):
                if mine[entry] < 0:
                    continue
                pair = pair_list[mine[entry]]
                if is_open[pair] >= 0:
                    enough = max(least[pair], min(total[pair] // pieces, rest[pair]))
                    if size[is_open[pair]] >= enough:
                        is_open[pair] = -1
    return entry_ptr, mine, pair_list[:count], size[:count], last[:count]


@compiled
def locals_of(
    block_ptr: I64,
    source: I64,
    size: I64,
    to_ptr: I64,
    to: I64,
    hosts: int,
    pair_of: I64,
    pairs: int,
    most_bytes: I64,
    pieces: int,
    unit: int,
) -> tuple[I64, I64, I64, I64, I64, I64, I64, I64]:
    """Return chunks and messages of the data that stays in its host.

    The data of a pair is sent in up to `pieces` messages, each with a part of every block, of about `most_bytes` of the
    pair. The chunks have block, offset and bytes; each (chunk, destination) a message; the messages pair, bytes, part.
    """
    total = np.zeros(pairs, dtype=np.int64)
    for host in range(hosts):
        for block in range(block_ptr[host * hosts + host], block_ptr[host * hosts + host + 1]):
            for k in range(to_ptr[block], to_ptr[block + 1]):
                total[pair_of[source[block], to[k]]] += size[block]
    parts = np.ones(pairs, dtype=np.int64)
    for pair in range(pairs):
        parts[pair] = min(max(1, -(-total[pair] // max(most_bytes[pair], 1))), pieces)
    chunks = entries = 0
    for host in range(hosts):
        for block in range(block_ptr[host * hosts + host], block_ptr[host * hosts + host + 1]):
            count = _parts(block, source, to_ptr, to, pair_of, parts)
            chunks += count
            entries += count * (to_ptr[block + 1] - to_ptr[block])
    block_of, offset_of, size_of = np.empty(chunks, np.int64), np.empty(chunks, np.int64), np.empty(chunks, np.int64)
    entry_ptr, mine = np.zeros(chunks + 1, np.int64), np.empty(entries, np.int64)
    message_of = np.full((pairs, pieces), -1, dtype=np.int64)
    pair_list, bytes_list = np.empty(entries, np.int64), np.zeros(entries, np.int64)
    part_list = np.empty(entries, np.int64)
    count = chunk = entry = 0
    for host in range(hosts):
        for block in range(block_ptr[host * hosts + host], block_ptr[host * hosts + host + 1]):
            many = _parts(block, source, to_ptr, to, pair_of, parts)
            before = 0
            for part in range(many):
                until = size[block] if part == many - 1 else size[block] * (part + 1) // many // unit * unit
                if until == before:
                    continue
                block_of[chunk], offset_of[chunk], size_of[chunk] = block, before, until - before
                for k in range(to_ptr[block], to_ptr[block + 1]):
                    pair = pair_of[source[block], to[k]]
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
def _parts(block: int, source: I64, to_ptr: I64, to: I64, pair_of: I64, parts: I64) -> int:
    """The parts of a local block: those of the pair with the most."""
    count = 1
    for k in range(to_ptr[block], to_ptr[block + 1]):
        count = max(count, parts[pair_of[source[block], to[k]]])
    return count


@compiled
def in_order(key: F64, kind: I64, last: float) -> I64:
    """Return the messages sorted by key, in steps of 1 / 4096 of `last`; those of a step by kind, then by number."""
    steps = 4096
    count = np.zeros((steps + 1) * 4 + 1, dtype=np.int64)
    slot = np.empty(len(key), dtype=np.int64)
    for k in range(len(key)):
        step = int(min(max(key[k] / last, 0.0), 1.0) * steps) if last > 0 else 0
        slot[k] = step * 4 + kind[k]
        count[slot[k] + 1] += 1
    for k in range(len(count) - 1):
        count[k + 1] += count[k]
    order = np.empty(len(key), dtype=np.int64)
    for k in range(len(key)):
        order[count[slot[k]]] = k
        count[slot[k]] += 1
    return order


@compiled
def place(
    order: I64,
    kind: I64,
    pair: I64,
    size: I64,
    crossing: I64,
    chunk_ptr: I64,
    chunk_count: I64,
    chunk_gather: I64,
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
    hop_ptr: I64,
    gpus: int,
) -> tuple[I64, I64]:
    """Place messages one after the other, each as early as its data and the resources of its route allow.

    `crossing` is the number of a message among those between hosts, or of the last one that a fan-out waits for.
    Returns the start of every hop of every message, and the arrival of every message.
    """
    free = np.zeros(server_ptr[-1], dtype=np.int64)
    start = np.zeros(hop_ptr[-1], dtype=np.int64)
    arrival = np.zeros(len(pair), dtype=np.int64)
    crossed = np.zeros(len(chunk_ptr), dtype=np.int64)  # the last arrival at its GPU until then
    last = np.zeros(gpus, dtype=np.int64)
    for message in order:
        now, at = 0, crossing[message]
        if kind[message] == CROSS:
            for chunk in range(chunk_ptr[at], chunk_ptr[at] + chunk_count[at]):
                if chunk_gather[chunk] >= 0:
                    now = max(now, arrival[chunk_gather[chunk]])
        elif kind[message] == FAN_OUT:
            now = crossed[at]
        for hop in range(hop_ptr[message + 1] - hop_ptr[message]):
            route = path_route[path_ptr[pair[message]] + hop]
            busy = int(np.ceil(size[message] * 1000.0 / route_GBps[route]))
            if route_overhead_ps[route] > 0:
                own = int(np.ceil(size[message] * 1000.0 / route_overhead_GBps[route]))
                busy = max(busy, route_overhead_ps[route] + own)
            for use in range(use_ptr[route], use_ptr[route + 1]):
                server = _first_free(free, server_ptr, use_resource[use])
                now = max(now, free[server] - use_offset_ps[use])
            for use in range(use_ptr[route], use_ptr[route + 1]):
                server = _first_free(free, server_ptr, use_resource[use])
                free[server] = now + use_offset_ps[use] + busy + use_more_ps[use]
            start[hop_ptr[message] + hop] = now
            now += busy + route_latency_ps[route]
        arrival[message] = now
        if kind[message] == CROSS:
            end = pair_dst[pair[message]]
            last[end] = max(last[end], now)
            crossed[at] = last[end]
    return start, arrival


@inner
def _first_free(free: I64, server_ptr: I64, resource: int) -> int:
    """The server of a resource that is free first."""
    best = server_ptr[resource]
    for server in range(best + 1, server_ptr[resource + 1]):
        if free[server] < free[best]:
            best = server
    return best
