"""Messages inside hosts of data that stays there; and the order and the times of all messages."""

import numpy as np

from flowccl.compiled import F64, I32, I64, compiled, inner

LOCAL, CROSS, GATHER, FAN_OUT = 0, 1, 2, 3
"""The kinds of messages, in the order of their numbers."""


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
    most_bytes: I64,
    pieces: int,
    unit: int,
    widest: int,
) -> tuple[I32, I64, I64, I64, I32, I32, I64, F64]:
    """Return chunks and messages of the data that stays in its host.

    The data of a pair is sent in up to `pieces` messages, each with a part of every block, of about `most_bytes` of the
    pair. The chunks have block, offset and bytes; each (chunk, destination) a message; the messages pair, bytes, and
    their turn: first the first part of each pair, where a GPU starts with the GPU behind it.
    """
    pairs = len(most_bytes)
    total, parts = np.zeros(pairs, np.int64), np.ones(pairs, np.int64)
    most, width = 0, 1
    for host in range(hosts):
        for block in range(block_ptr[host * hosts + host], block_ptr[host * hosts + host + 1]):
            for k in range(to_ptr[block], to_ptr[block + 1]):
                total[slot[source[block]] + place[to[k]]] += size[block]
            most += 1
            width = max(width, to_ptr[block + 1] - to_ptr[block])
    for pair in range(pairs):
        if total[pair] > most_bytes[pair]:
            parts[pair] = min(-(-total[pair] // max(most_bytes[pair], 1)), pieces)
    most *= pieces
    block_of, offset_of, size_of = np.empty(most, np.int32), np.empty(most, np.int64), np.empty(most, np.int64)
    entry_ptr, entry_of_chunk = np.zeros(most + 1, np.int64), np.empty(most * width, np.int32)
    message_of = np.full((pairs, pieces), -1, np.int32)
    pair_of, bytes_of, turn = (
        np.empty(pairs * pieces, np.int32),
        np.zeros(pairs * pieces, np.int64),
        np.empty(pairs * pieces),
    )
    count = chunk = entry = 0
    for host in range(hosts):
        for block in range(block_ptr[host * hosts + host], block_ptr[host * hosts + host + 1]):
            s, many, before = source[block], 1, 0
            for k in range(to_ptr[block], to_ptr[block + 1]):
                many = max(many, parts[slot[s] + place[to[k]]])
            for part in range(many):
                until = size[block] if part == many - 1 else size[block] * (part + 1) // many // unit * unit
                if until == before:
                    continue
                block_of[chunk], offset_of[chunk], size_of[chunk] = block, before, until - before
                for k in range(to_ptr[block], to_ptr[block + 1]):
                    pair = slot[s] + place[to[k]]
                    if message_of[pair, part] < 0:
                        message_of[pair, part] = count
                        around = place[to[k]] - place[s]
                        pair_of[count], turn[count] = pair, part + (around % widest) / widest
                        count += 1
                    entry_of_chunk[entry] = message_of[pair, part]
                    bytes_of[entry_of_chunk[entry]] += until - before
                    entry += 1
                chunk += 1
                entry_ptr[chunk] = entry
                before = until
    return (
        block_of[:chunk], offset_of[:chunk], size_of[:chunk], entry_ptr[: chunk + 1], entry_of_chunk[:entry],
        pair_of[:count], bytes_of[:count], turn[:count],
    )  # fmt: skip


@compiled
def in_order(
    turn: F64,
    turn_ps: float,
    start: F64,
    end: F64,
    needed: I32,
    last: I32,
    fan_pair: I32,
    pair_turn: I64,
    lead: float,
    length: float,
) -> I32:
    """Return all messages sorted by the time that they are planned for, in steps of 1 / 1024 of the length.

    Local messages are planned in turns of `turn_ps`, crossing messages from `start` to `end`, gathers `lead` before
    they are needed, fan-outs when their last data has crossed. In a step gathers come first, then crossings, fan-outs
    and local messages. Fan-outs of a step go to the GPU behind the sender first (`pair_turn`), so that all senders go
    to different ones.
    """
    steps = 1024
    local, across, before = len(turn), len(start), len(needed)
    every = local + across + before + len(last)
    turns = pair_turn.max() + 1 if len(pair_turn) else 1
    ranks = 3 + turns
    slot = np.empty(every, dtype=np.int32)
    count = np.zeros((steps + 1) * ranks + 1, dtype=np.int32)
    scale = steps / length if length > 0 else 0.0
    for k in range(every):
        if k < local:
            key, rank = turn[k] * turn_ps, ranks - 1
        elif k < local + across:
            key, rank = start[k - local], 1
        elif k < local + across + before:
            key, rank = start[needed[k - local - across]] - lead, 0
        else:
            fan = k - local - across - before
            key, rank = end[last[fan]], 2 + pair_turn[fan_pair[fan]]
        slot[k] = int(min(max(key * scale, 0.0), float(steps))) * ranks + rank
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
                busy = _busy_ps(size[message], route, route_GBps, route_overhead_ps, route_overhead_GBps)
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
def _busy_ps(size: int, route: int, route_GBps: F64, route_overhead_ps: I64, route_overhead_GBps: F64) -> int:
    """How long a message holds the links of a route."""
    busy = int(np.ceil(size * 1000.0 / route_GBps[route]))
    if route_overhead_ps[route] > 0:
        busy = max(busy, route_overhead_ps[route] + int(np.ceil(size * 1000.0 / route_overhead_GBps[route])))
    return busy


@compiled
def hop_loads(
    pair: I32,
    size: I64,
    hop_ptr: I64,
    path_ptr: I64,
    path_route: I64,
    route_GBps: F64,
    route_overhead_ps: I64,
    route_overhead_GBps: F64,
    use_ptr: I64,
    use_resource: I64,
    use_more_ps: I64,
    servers: I64,
) -> tuple[I64, I64]:
    """Return how long each hop holds its links, and how long each resource is busy (divided by its servers)."""
    busy, load = np.zeros(hop_ptr[-1], np.int64), np.zeros(len(servers), np.int64)
    for message in range(len(pair)):
        p = pair[message]
        for hop in range(path_ptr[p + 1] - path_ptr[p]):
            route = path_route[path_ptr[p] + hop]
            held = _busy_ps(size[message], route, route_GBps, route_overhead_ps, route_overhead_GBps)
            busy[hop_ptr[message] + hop] = held
            for use in range(use_ptr[route], use_ptr[route + 1]):
                load[use_resource[use]] += held + use_more_ps[use]
    for resource in range(len(servers)):
        load[resource] //= max(servers[resource], 1)
    return busy, load


@inner
def _first_free(free: I64, server_ptr: I64, resource: int) -> int:
    """The server of a resource that is free first."""
    best: int = server_ptr[resource]
    for server in range(best + 1, server_ptr[resource + 1]):
        if free[server] < free[best]:
            best = server
    return best
