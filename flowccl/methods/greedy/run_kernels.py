"""One run of the list scheduler, compiled: events in order of time, and the transfers that each permits."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import (
    F64,
    I32,
    I64,
    Bool,
    Queue,
    compiled,
    grown,
    inlined,
    inner,
    lacks_space,
    larger,
    maker,
    new_queue,
    put,
    take,
)
from flowccl.methods.greedy.heap_kernels import (
    Heaps,
    add,
    free_cell,
    heaps_lack_space,
    larger_heaps,
    new_heaps,
    pop_cell,
    reinsert,
)
from flowccl.methods.greedy.inputs import GreedyDemand, GreedyNetwork, GreedyParams
from flowccl.methods.greedy.link_kernels import (
    Hops,
    fill_hops,
    free_route,
    new_hops,
    route_wait,
)
from flowccl.methods.greedy.score_kernels import arrive, initial_remaining, score, wants
from flowccl.methods.greedy.transfer_kernels import OpenTransfer, can_fork, fork, new_transfer, reach, take_route


class RunState(NamedTuple):
    """State of a run."""

    remaining: F64  # see score_kernels
    lacking: I64  # one number: deliveries still missing
    finish: I64  # one number
    free_at: I64  # of each link
    buffered: I64  # of each node: bytes that it buffers or will buffer for other nodes
    retry_at: I64  # of each pair: the time of its next attempt, -1 if none is queued


class ActivePairs(NamedTuple):
    """The pairs that may have a chunk to send at the current time, and which of them is next."""

    now: I64  # one number
    size: I64  # one number
    turn: I64  # one number: position of the next pair in the order
    pair: I64
    key: F64
    marked: Bool  # of each pair


class SentTransfers(NamedTuple):
    """All transfers so far, in the order of the decisions."""

    size: I64  # one number
    chunk: I32
    start: I64
    ptr: I64  # hops of each transfer
    link: I32


@compiled
def run_list_scheduler(
    net: GreedyNetwork, demand: GreedyDemand, params: GreedyParams
) -> tuple[bool, int, I32, I64, I64, I32]:
    """One run. Return (done, finish, chunk, start, hop pointer, hop links) of all transfers, in decision order."""
    chunks, pairs = len(demand.chunk_bytes), len(net.pair_src)
    nodes, links = len(net.node_ptr) - 1, len(net.link_src)
    run, active, hops = _new_run(net, demand), _new_active(pairs), new_hops(net)
    transfer = new_transfer(nodes, links, len(hops.begin))
    heaps = new_heaps(pairs, 4 * chunks + 1024)
    queue = new_queue(2 * chunks + pairs + 1024)
    sent = _new_sent(len(demand.destination))
    for chunk in range(chunks):
        put(queue, demand.ready[chunk], chunk * nodes + demand.source[chunk])
    while _should_continue(params, run, queue):
        _next_time(active, queue)
        while not _activate(net, demand, params, run, active, heaps, queue):
            heaps = larger_heaps(heaps)
        _set_keys(active, heaps)
        order = np.argsort(active.key[: active.size[0]])
        while not _serve(net, demand, params, run, active, order, heaps, hops, transfer, queue, sent):
            if lacks_space(queue, nodes + 1):
                queue = larger(queue)
            if _sent_lacks_space(sent, transfer):
                sent = _larger_sent(sent)
    good = run.finish[0] < params.cutoff_ps
    count = sent.size[0] if good else 0
    done = good and run.lacking[0] == 0
    last = sent.ptr[count]
    return done, run.finish[0], sent.chunk[:count], sent.start[:count], sent.ptr[: count + 1], sent.link[:last]


@inner
def _should_continue(params: GreedyParams, run: RunState, queue: Queue) -> bool:
    """Whether events and missing deliveries remain, and the cutoff is not reached."""
    return bool(queue.size[0] > 0 and run.lacking[0] > 0 and run.finish[0] < params.cutoff_ps)


@inner
def _next_time(active: ActivePairs, queue: Queue) -> None:
    active.now[0], active.size[0], active.turn[0] = queue.time[0], 0, 0


@maker
def _new_run(net: GreedyNetwork, demand: GreedyDemand) -> RunState:
    return RunState(
        initial_remaining(net, demand),
        np.full(1, len(demand.destination)),
        np.zeros(1, dtype=np.int64),
        np.zeros(len(net.link_src), dtype=np.int64),
        np.zeros(len(net.node_ptr) - 1, dtype=np.int64),
        np.full(len(net.pair_src), -1, dtype=np.int64),
    )


@maker
def _new_active(pairs: int) -> ActivePairs:
    number = np.zeros(1, dtype=np.int64)
    marked = np.zeros(pairs, dtype=np.bool_)
    return ActivePairs(number, number.copy(), number.copy(), np.empty(pairs, dtype=np.int64), np.empty(pairs), marked)


@maker
def _new_sent(least: int) -> SentTransfers:
    return SentTransfers(
        np.zeros(1, dtype=np.int64),
        np.empty(least + 16, dtype=np.int32),
        np.empty(least + 16, dtype=np.int64),
        np.zeros(least + 17, dtype=np.int64),
        np.empty(2 * least + 64, dtype=np.int32),
    )


@inner
def _sent_lacks_space(sent: SentTransfers, transfer: OpenTransfer) -> bool:
    """Whether the space may not suffice for another transfer."""
    count = sent.size[0]
    return bool(count == len(sent.chunk) or sent.ptr[count] + len(transfer.link) > len(sent.link))


@maker
def _larger_sent(sent: SentTransfers) -> SentTransfers:
    return SentTransfers(sent.size, grown(sent.chunk), grown(sent.start), grown(sent.ptr), grown(sent.link))


@inner
def _serve(
    net: GreedyNetwork,
    demand: GreedyDemand,
    params: GreedyParams,
    run: RunState,
    active: ActivePairs,
    order: I64,
    heaps: Heaps,
    hops: Hops,
    transfer: OpenTransfer,
    queue: Queue,
    sent: SentTransfers,
) -> bool:
    """Let the active pairs send, one after the other; return False if an array is full."""
    while active.turn[0] < active.size[0] and run.finish[0] < params.cutoff_ps:
        if lacks_space(queue, len(run.buffered) + 1) or _sent_lacks_space(sent, transfer):
            return False
        pair = active.pair[order[active.turn[0]]]
        if not _send(net, demand, params, run, heaps, hops, transfer, queue, sent, pair, active.now[0]):
            active.turn[0] += 1
    return True


@inner
def _activate(
    net: GreedyNetwork,
    demand: GreedyDemand,
    params: GreedyParams,
    run: RunState,
    active: ActivePairs,
    heaps: Heaps,
    queue: Queue,
) -> bool:
    """Process all events of the current time; return False if the heaps are full.

    A chunk that arrives is added to the heaps of its node's pairs; code -p - 1 means that pair p tries again.
    """
    now, nodes = active.now[0], len(net.node_ptr) - 1
    while queue.size[0] > 0 and queue.time[0] == now:
        if heaps_lack_space(heaps, len(net.pair_src)):
            return False
        code = take(queue)
        if code < 0:
            if run.retry_at[-code - 1] == now:
                run.retry_at[-code - 1] = -1
                _mark(active, -code - 1)
            continue
        chunk, node = code // nodes, code % nodes
        for pair in range(net.node_ptr[node], net.node_ptr[node + 1]):
            key = score(net, demand, params, run.remaining, pair, chunk)
            if key > 0:
                add(heaps, pair, -key, chunk)
                _mark(active, pair)
    return True


@inlined
def _mark(active: ActivePairs, pair: int) -> None:
    if not active.marked[pair]:
        active.marked[pair] = True
        active.pair[active.size[0]] = pair
        active.size[0] += 1


@inner
def _set_keys(active: ActivePairs, heaps: Heaps) -> None:
    """Set the keys of the active pairs: the negated scores of their best chunks."""
    for i in range(active.size[0]):
        active.marked[active.pair[i]] = False
        top = heaps.root[active.pair[i]]
        active.key[i] = heaps.key[top] if top >= 0 else 0.0


@inlined
def _send(
    net: GreedyNetwork,
    demand: GreedyDemand,
    params: GreedyParams,
    run: RunState,
    heaps: Heaps,
    hops: Hops,
    transfer: OpenTransfer,
    queue: Queue,
    sent: SentTransfers,
    pair: int,
    now: int,
) -> bool:
    """Send the best chunk of a pair; return False if no chunk has a positive score or the links are not free."""
    chunk, route, at = _choose(net, demand, params, run, heaps, hops, pair, now)
    if chunk < 0:
        if at >= 0 and (run.retry_at[pair] < 0 or at < run.retry_at[pair]):
            run.retry_at[pair] = at
            put(queue, at, -pair - 1)
        return False
    number = sent.size[0]
    take_route(net, transfer, hops, route, number)
    reach(transfer, net.pair_end[pair], at)
    if can_fork(net, route):
        fork(net, demand, params, run.remaining, run.free_at, transfer, hops, pair, chunk, number)
    _write(sent, transfer, chunk, now)
    _occupy_links(run.free_at, transfer)
    _deliver(net, demand, run, transfer, queue, chunk)
    return True


@inner
def _choose(
    net: GreedyNetwork,
    demand: GreedyDemand,
    params: GreedyParams,
    run: RunState,
    heaps: Heaps,
    hops: Hops,
    pair: int,
    now: int,
) -> tuple[int, int, int]:
    """The next transfer of a pair, (chunk, route, arrival); or (-1, -1, time of the next attempt, -1 if none)."""
    if heaps.root[pair] < 0:
        return -1, -1, -1
    end = net.pair_end[pair]
    route, again = free_route(net, run.free_at, pair, now)
    if route < 0:
        return -1, -1, again
    while True:
        cell = _best(net, demand, params, run.remaining, heaps, pair)
        if cell < 0:
            return -1, -1, -1
        chunk = heaps.chunk[cell]
        size = demand.chunk_bytes[chunk]
        keeps = size if net.buffer[end] >= 0 and not wants(demand, chunk, end) else 0
        if keeps > 0 and run.buffered[end] + keeps > net.buffer[end]:  # no buffer space to relay it
            free_cell(heaps, cell)
            continue
        arrival = fill_hops(net, route, size, now, hops)
        wait = route_wait(net, run.free_at, hops, route, now)
        if wait > 0:
            reinsert(heaps, pair, cell)
            return -1, -1, max(wait, now + 1)
        free_cell(heaps, cell)
        run.buffered[end] += keeps
        return chunk, route, arrival


@inner
def _best(
    net: GreedyNetwork, demand: GreedyDemand, params: GreedyParams, remaining: F64, heaps: Heaps, pair: int
) -> int:
    """Pop the cell of the best chunk, or return -1. Scores only fall: a top cell that keeps its key is the best."""
    while heaps.root[pair] >= 0:
        cell = pop_cell(heaps, pair)
        key = -score(net, demand, params, remaining, pair, heaps.chunk[cell])
        rest = heaps.root[pair]
        if key >= 0:
            free_cell(heaps, cell)
        elif rest >= 0 and key > heaps.key[rest]:
            heaps.key[cell] = key
            reinsert(heaps, pair, cell)
        else:
            return cell
    return -1


@inner
def _write(sent: SentTransfers, transfer: OpenTransfer, chunk: int, start: int) -> None:
    """Append the current transfer."""
    i, first = sent.size[0], sent.ptr[sent.size[0]]
    sent.chunk[i], sent.start[i], sent.ptr[i + 1] = chunk, start, first + transfer.hops[0]
    for k in range(transfer.hops[0]):
        sent.link[first + k] = transfer.link[k]
    sent.size[0] += 1


@inner
def _occupy_links(free_at: I64, transfer: OpenTransfer) -> None:
    """Occupy the links of the current transfer."""
    for k in range(transfer.hops[0]):
        free_at[transfer.link[k]] = transfer.until[transfer.link[k]]


@inner
def _deliver(
    net: GreedyNetwork, demand: GreedyDemand, run: RunState, transfer: OpenTransfer, queue: Queue, chunk: int
) -> None:
    """Count the deliveries of the current transfer, and queue its arrivals."""
    nodes = len(net.node_ptr) - 1
    for i in range(transfer.ends[0]):
        node, at = transfer.end[i], transfer.end_at[i]
        got = arrive(net, demand, run.remaining, chunk, node)
        if got > 0:
            run.lacking[0] -= got
            run.finish[0] = max(run.finish[0], at)
        put(queue, at, chunk * nodes + node)
