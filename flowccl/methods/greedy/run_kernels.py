"""One run of the list scheduler, compiled: events in order of time, and what each lets go."""

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
    give_back,
    lack_room,
    larger_heaps,
    new_heaps,
    put_back,
    take_out,
)
from flowccl.methods.greedy.link_kernels import (
    Hops,
    Shares,
    book_limits,
    forget,
    free_path,
    larger_shares,
    new_hops,
    new_shares,
    path_wait,
    place,
    shares_lack_room,
)
from flowccl.methods.greedy.problem import Knobs, Net, Work
from flowccl.methods.greedy.score_kernels import arrive, first_left, score, wants
from flowccl.methods.greedy.tree_kernels import Tree, can_fork, fork, new_tree, reach, take_path


class Run(NamedTuple):
    """Where a run is."""

    left: F64  # see score_kernels
    lacking: I64  # one number: destinations that have not got their chunk yet
    finish: I64  # one number
    free_at: I64  # of each link
    held: I64  # of each node: bytes that it keeps or will keep for others
    retry_at: I64  # of each pair: when its links are free again, if it waits for them


class Awake(NamedTuple):
    """Pairs that may have something to send now, and whose turn it is."""

    now: I64  # one number
    size: I64  # one number
    turn: I64  # one number: -1 before all are awake
    pair: I64
    key: F64
    marked: Bool  # of each pair


class Sent(NamedTuple):
    """All transfers so far, in order of decision."""

    size: I64  # one number
    chunk: I32
    start: I64
    ptr: I64  # hops of each transfer
    link: I32


@compiled
def list_schedule(net: Net, work: Work, knobs: Knobs) -> tuple[bool, int, I32, I64, I64, I32]:
    """One run. Returns (done, finish, chunk, start, hop pointer, hop links) of all transfers, in order of decision."""
    chunks, pairs = len(work.chunk_bytes), len(net.pair_src)
    nodes, links = len(net.node_ptr) - 1, len(net.link_src)
    run, awake, shares, hops = _new_run(net, work), _new_awake(pairs), new_shares(net), new_hops(net)
    tree = new_tree(nodes, links, len(hops.begin))
    heaps = new_heaps(pairs, 4 * chunks + 1024)
    queue = new_queue(2 * chunks + pairs + 1024)
    sent = _new_sent(len(work.destination))
    for chunk in range(chunks):
        put(queue, work.ready[chunk], chunk * nodes + work.source[chunk])
    while _goes_on(knobs, run, queue):
        _next_time(awake, queue)
        while not _wake(net, work, knobs, run, awake, heaps, queue):
            heaps = larger_heaps(heaps)
        _set_keys(awake, heaps)
        order = np.argsort(awake.key[: awake.size[0]])
        forget(shares, awake.now[0])
        while not _serve(net, work, knobs, run, awake, order, heaps, shares, hops, tree, queue, sent):
            if shares_lack_room(net, shares):
                shares = larger_shares(shares)
            if lacks_space(queue, nodes + 1):
                queue = larger(queue)
            if _sent_lacks_room(sent, tree):
                sent = _larger_sent(sent)
    good = run.finish[0] < knobs.give_up_ps
    count = sent.size[0] if good else 0
    done = good and run.lacking[0] == 0
    last = sent.ptr[count]
    return done, run.finish[0], sent.chunk[:count], sent.start[:count], sent.ptr[: count + 1], sent.link[:last]


@inner
def _goes_on(knobs: Knobs, run: Run, queue: Queue) -> bool:
    """Whether there is something to do, and it is not too late."""
    return bool(queue.size[0] > 0 and run.lacking[0] > 0 and run.finish[0] < knobs.give_up_ps)


@inner
def _next_time(awake: Awake, queue: Queue) -> None:
    awake.now[0], awake.size[0], awake.turn[0] = queue.time[0], 0, 0


@maker
def _new_run(net: Net, work: Work) -> Run:
    return Run(
        first_left(net, work),
        np.full(1, len(work.destination)),
        np.zeros(1, dtype=np.int64),
        np.zeros(len(net.link_src), dtype=np.int64),
        np.zeros(len(net.node_ptr) - 1, dtype=np.int64),
        np.full(len(net.pair_src), -1, dtype=np.int64),
    )


@maker
def _new_awake(pairs: int) -> Awake:
    number = np.zeros(1, dtype=np.int64)
    marked = np.zeros(pairs, dtype=np.bool_)
    return Awake(number, number.copy(), number.copy(), np.empty(pairs, dtype=np.int64), np.empty(pairs), marked)


@maker
def _new_sent(least: int) -> Sent:
    return Sent(
        np.zeros(1, dtype=np.int64),
        np.empty(least + 16, dtype=np.int32),
        np.empty(least + 16, dtype=np.int64),
        np.zeros(least + 17, dtype=np.int64),
        np.empty(2 * least + 64, dtype=np.int32),
    )


@inner
def _sent_lacks_room(sent: Sent, tree: Tree) -> bool:
    """Whether another transfer may not fit."""
    count = sent.size[0]
    return bool(count == len(sent.chunk) or sent.ptr[count] + len(tree.link) > len(sent.link))


@maker
def _larger_sent(sent: Sent) -> Sent:
    return Sent(sent.size, grown(sent.chunk), grown(sent.start), grown(sent.ptr), grown(sent.link))


@inner
def _serve(
    net: Net,
    work: Work,
    knobs: Knobs,
    run: Run,
    awake: Awake,
    order: I64,
    heaps: Heaps,
    shares: Shares,
    hops: Hops,
    tree: Tree,
    queue: Queue,
    sent: Sent,
) -> bool:
    """Let the pairs that are awake send, each in its turn; False where an array is full."""
    while awake.turn[0] < awake.size[0] and run.finish[0] < knobs.give_up_ps:
        if lacks_space(queue, len(run.held) + 1) or _sent_lacks_room(sent, tree) or shares_lack_room(net, shares):
            return False
        pair = awake.pair[order[awake.turn[0]]]
        if not _send(net, work, knobs, run, heaps, shares, hops, tree, queue, sent, pair, awake.now[0]):
            awake.turn[0] += 1
    return True


@inner
def _wake(net: Net, work: Work, knobs: Knobs, run: Run, awake: Awake, heaps: Heaps, queue: Queue) -> bool:
    """Take all events of this time; False where the heaps are full.

    A chunk that arrives goes into the heaps of its node's pairs; code -p - 1 says that pair p may try again.
    """
    now, nodes = awake.now[0], len(net.node_ptr) - 1
    while queue.size[0] > 0 and queue.time[0] == now:
        if lack_room(heaps, len(net.pair_src)):
            return False
        code = take(queue)
        if code < 0:
            if run.retry_at[-code - 1] == now:
                run.retry_at[-code - 1] = -1
                _mark(awake, -code - 1)
            continue
        chunk, node = code // nodes, code % nodes
        for pair in range(net.node_ptr[node], net.node_ptr[node + 1]):
            key = score(net, work, knobs, run.left, pair, chunk)
            if key > 0:
                add(heaps, pair, key, chunk)
                _mark(awake, pair)
    return True


@inlined
def _mark(awake: Awake, pair: int) -> None:
    if not awake.marked[pair]:
        awake.marked[pair] = True
        awake.pair[awake.size[0]] = pair
        awake.size[0] += 1


@inner
def _set_keys(awake: Awake, heaps: Heaps) -> None:
    """The keys of the pairs that are awake: the least is that of the best chunk."""
    for i in range(awake.size[0]):
        awake.marked[awake.pair[i]] = False
        top = heaps.root[awake.pair[i]]
        awake.key[i] = -heaps.key[top] if top >= 0 else 0.0


@inlined
def _send(
    net: Net,
    work: Work,
    knobs: Knobs,
    run: Run,
    heaps: Heaps,
    shares: Shares,
    hops: Hops,
    tree: Tree,
    queue: Queue,
    sent: Sent,
    pair: int,
    now: int,
) -> bool:
    """Send the chunk that helps most from a pair; False if nothing helps or the links are not free."""
    chunk, path, at = _choose(net, work, knobs, run, heaps, shares, hops, pair, now)
    if chunk < 0:
        if at >= 0 and (run.retry_at[pair] < 0 or at < run.retry_at[pair]):
            run.retry_at[pair] = at
            put(queue, at, -pair - 1)
        return False
    number = sent.size[0]
    take_path(net, tree, hops, path, number)
    reach(tree, net.pair_end[pair], at)
    if can_fork(net, path):
        fork(net, work, knobs, run.left, run.free_at, shares, tree, hops, pair, chunk, number)
    shares.own[:] = 0
    _write(sent, tree, chunk, now)
    _hold_links(net, run.free_at, shares, tree)
    _deliver(net, work, run, tree, queue, chunk)
    return True


@inner
def _choose(
    net: Net, work: Work, knobs: Knobs, run: Run, heaps: Heaps, shares: Shares, hops: Hops, pair: int, now: int
) -> tuple[int, int, int]:
    """What goes next from a pair: (chunk, path, arrival), or (-1, -1, when to try again; -1 if nothing helps)."""
    if heaps.root[pair] < 0:
        return -1, -1, -1
    end = net.pair_end[pair]
    path, again = free_path(net, run.free_at, pair, now)
    if path < 0:
        return -1, -1, again
    while True:
        cell = _best(net, work, knobs, run.left, heaps, pair)
        if cell < 0:
            return -1, -1, -1
        chunk = heaps.chunk[cell]
        size = work.chunk_bytes[chunk]
        keeps = size if net.buffer[end] >= 0 and not wants(work, chunk, end) else 0
        if keeps > 0 and run.held[end] + keeps > net.buffer[end]:  # no room to keep it for others
            give_back(heaps, cell)
            continue
        arrival = place(net, path, size, now, hops)
        wait = path_wait(net, shares, run.free_at, hops, path, now)
        if wait > 0:
            shares.own[:] = 0
            put_back(heaps, pair, cell)
            return -1, -1, max(wait, now + 1)
        give_back(heaps, cell)
        run.held[end] += keeps
        return chunk, path, arrival


@inner
def _best(net: Net, work: Work, knobs: Knobs, left: F64, heaps: Heaps, pair: int) -> int:
    """The cell of the chunk that helps most, taken out, or -1. Keys only sink: a top that keeps its key is the best."""
    while heaps.root[pair] >= 0:
        cell = take_out(heaps, pair)
        key = score(net, work, knobs, left, pair, heaps.chunk[cell])
        rest = heaps.root[pair]
        if key <= 0:
            give_back(heaps, cell)
        elif rest >= 0 and key < heaps.key[rest]:
            heaps.key[cell] = key
            put_back(heaps, pair, cell)
        else:
            return cell
    return -1


@inner
def _write(sent: Sent, tree: Tree, chunk: int, start: int) -> None:
    """Write the transfer in hand down."""
    i, first = sent.size[0], sent.ptr[sent.size[0]]
    sent.chunk[i], sent.start[i], sent.ptr[i + 1] = chunk, start, first + tree.hops[0]
    for k in range(tree.hops[0]):
        sent.link[first + k] = tree.link[k]
    sent.size[0] += 1


@inner
def _hold_links(net: Net, free_at: I64, shares: Shares, tree: Tree) -> None:
    """Hold the links of the transfer in hand, and their limits."""
    for k in range(tree.hops[0]):
        link = tree.link[k]
        free_at[link] = tree.until[link]
        book_limits(net, shares, link, tree.begin[link], tree.until[link], tree.GBps[link])


@inner
def _deliver(net: Net, work: Work, run: Run, tree: Tree, queue: Queue, chunk: int) -> None:
    """Count who gets the chunk of the transfer in hand, and put its arrivals in the queue."""
    nodes = len(net.node_ptr) - 1
    for i in range(tree.ends[0]):
        node, at = tree.end[i], tree.end_at[i]
        got = arrive(net, work, run.left, chunk, node)
        if got > 0:
            run.lacking[0] -= got
            run.finish[0] = max(run.finish[0], at)
        put(queue, at, chunk * nodes + node)
