"""Messages inside hosts of data that stays there; and the order and the times of all messages."""

import numpy as np

from flowccl.compiled import F64, I32, I64, compiled, inner, maker
from flowccl.moe.table_kernels import BlockArrays, PairTables, PathTables

LOCAL, CROSS, GATHER, FAN_OUT = 0, 1, 2, 3
"""The kinds of messages, in the order of their numbers."""


@compiled
def locals_of(
    blocks: BlockArrays, hosts: int, pairs: PairTables, most_bytes: I64, pieces: int, unit: int
) -> tuple[I32, I64, I64, I64, I32, I32, I64, F64]:
    """Return chunks and messages of the data that stays in its host.

    The data of a pair is sent in up to `pieces` messages, each with a part of every block, of about `most_bytes` of the
    pair. The chunks have block, offset and bytes; each (chunk, destination) a message; the messages pair, bytes, and
    their turn: first the first part of each pair, where a GPU starts with the GPU behind it.
    """
    size, slot, place = blocks.bytes, pairs.slot, pairs.place
    parts, count_of, width = _parts_of(blocks, hosts, slot, place, most_bytes, pieces)
    most, messages = count_of * pieces, len(most_bytes) * pieces
    block_of, offset_of, size_of = np.empty(most, np.int32), np.empty(most, np.int64), np.empty(most, np.int64)
    entry_ptr, entry_of_chunk = np.zeros(most + 1, np.int64), np.empty(most * width, np.int32)
    message_of = np.full((len(most_bytes), pieces), -1, np.int32)
    pair_of, bytes_of, turn = np.empty(messages, np.int32), np.zeros(messages, np.int64), np.empty(messages)
    count = chunk = entry = 0
    for host in range(hosts):
        for block in range(blocks.ptr[host * hosts + host], blocks.ptr[host * hosts + host + 1]):
            s, many, before = blocks.source[block], 1, 0
            for k in range(blocks.to_ptr[block], blocks.to_ptr[block + 1]):
                many = max(many, parts[slot[s] + place[blocks.to[k]]])
            for part in range(many):
                until = size[block] if part == many - 1 else size[block] * (part + 1) // many // unit * unit
                if until == before:
                    continue
                block_of[chunk], offset_of[chunk], size_of[chunk] = block, before, until - before
                for k in range(blocks.to_ptr[block], blocks.to_ptr[block + 1]):
                    pair = slot[s] + place[blocks.to[k]]
                    if message_of[pair, part] < 0:
                        message_of[pair, part] = count
                        around = place[blocks.to[k]] - place[s]
                        pair_of[count], turn[count] = pair, part + (around % pairs.widest) / pairs.widest
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


@maker
def _parts_of(
    blocks: BlockArrays, hosts: int, slot: I64, place: I64, most_bytes: I64, pieces: int
) -> tuple[I64, int, int]:
    """The messages of each pair inside a host; the number of blocks that stay in hosts, and of their destinations."""
    total, parts = np.zeros(len(most_bytes), np.int64), np.ones(len(most_bytes), np.int64)
    count, width = 0, 1
    for host in range(hosts):
        for block in range(blocks.ptr[host * hosts + host], blocks.ptr[host * hosts + host + 1]):
            for k in range(blocks.to_ptr[block], blocks.to_ptr[block + 1]):
                total[slot[blocks.source[block]] + place[blocks.to[k]]] += blocks.bytes[block]
            count += 1
            width = max(width, blocks.to_ptr[block + 1] - blocks.to_ptr[block])
    for pair in range(len(most_bytes)):
        if total[pair] > most_bytes[pair]:
            parts[pair] = min(-(-total[pair] // max(most_bytes[pair], 1)), pieces)
    return parts, count, width


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
    paths: PathTables,
    gpus: int,
) -> tuple[I64, I64, I64]:
    """Place messages one after the other, each as early as its data and the resources of its route allow.

    Messages from `first[k]` on are of kind k. `last` is the crossing message that each fan-out waits for.
    Returns the pointer to the hops of every message, their starts, and the arrival of every message.
    """
    free, quick = np.zeros(paths.server_ptr[-1], dtype=np.int64), paths.quick
    hop_ptr = np.zeros(len(pair) + 1, dtype=np.int64)
    for message in range(len(pair)):
        hop_ptr[message + 1] = hop_ptr[message] + paths.path_ptr[pair[message] + 1] - paths.path_ptr[pair[message]]
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
            now = _over_routes(now, p, size[message], start[hop_ptr[message] :], free, paths)
        arrival[message] = now
        if first[1] <= message < first[2]:
            gpu = paths.dst[p]
            latest[gpu] = max(latest[gpu], now)
            crossed[message - first[1]] = latest[gpu]
    return hop_ptr, start, arrival


@inner
def _over_routes(now: int, pair: int, size: int, start: I64, free: I64, paths: PathTables) -> int:
    """Place the hops of a message, from `now` on, over the routes of its pair; return its arrival."""
    for hop in range(paths.path_ptr[pair + 1] - paths.path_ptr[pair]):
        route = paths.path_route[paths.path_ptr[pair] + hop]
        busy = _busy_ps(size, route, paths.route_GBps, paths.route_overhead_ps, paths.route_overhead_GBps)
        for use in range(paths.use_ptr[route], paths.use_ptr[route + 1]):
            server = _first_free(free, paths.server_ptr, paths.use_resource[use])
            now = max(now, free[server] - paths.use_offset_ps[use])
        for use in range(paths.use_ptr[route], paths.use_ptr[route + 1]):
            server = _first_free(free, paths.server_ptr, paths.use_resource[use])
            free[server] = now + paths.use_offset_ps[use] + busy + paths.use_more_ps[use]
        start[hop] = now
        now += busy + paths.route_latency_ps[route]
    return now


@inner
def _busy_ps(size: int, route: int, route_GBps: F64, route_overhead_ps: I64, route_overhead_GBps: F64) -> int:
    """How long a message holds the links of a route."""
    busy = int(np.ceil(size * 1000.0 / route_GBps[route]))
    if route_overhead_ps[route] > 0:
        busy = max(busy, route_overhead_ps[route] + int(np.ceil(size * 1000.0 / route_overhead_GBps[route])))
    return busy


@compiled
def hop_loads(pair: I32, size: I64, hop_ptr: I64, paths: PathTables) -> tuple[I64, I64]:
    """Return how long each hop holds its links, and how long each resource is busy (divided by its servers)."""
    busy, load = np.zeros(hop_ptr[-1], np.int64), np.zeros(len(paths.server_ptr) - 1, np.int64)
    for message in range(len(pair)):
        p = pair[message]
        for hop in range(paths.path_ptr[p + 1] - paths.path_ptr[p]):
            route = paths.path_route[paths.path_ptr[p] + hop]
            held = _busy_ps(size[message], route, paths.route_GBps, paths.route_overhead_ps, paths.route_overhead_GBps)
            busy[hop_ptr[message] + hop] = held
            for use in range(paths.use_ptr[route], paths.use_ptr[route + 1]):
                load[paths.use_resource[use]] += held + paths.use_more_ps[use]
    for resource in range(len(load)):
        load[resource] //= max(paths.server_ptr[resource + 1] - paths.server_ptr[resource], 1)
    return busy, load


@inner
def _first_free(free: I64, server_ptr: I64, resource: int) -> int:
    """The server of a resource that is free first."""
    best: int = server_ptr[resource]
    for server in range(best + 1, server_ptr[resource + 1]):
        if free[server] < free[best]:
            best = server
    return best
