"""The list scheduler's loop, compiled. Arrays in, arrays out; `greedy.py` says what they mean."""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray


class Net(NamedTuple):
    """The machine: pairs of storing nodes, their routes ("paths"), links and limits."""

    node_ptr: NDArray[np.int64]  # pairs of each node
    pair_src: NDArray[np.int32]
    pair_end: NDArray[np.int32]
    pair_cost: NDArray[np.float64]
    path_ptr: NDArray[np.int64]  # paths of each pair
    hop_ptr: NDArray[np.int64]  # hops of each path
    hop_link: NDArray[np.int32]
    hop_offset: NDArray[np.int64]
    hop_segment: NDArray[np.int64]  # counted from 0 in each path
    segment_ptr: NDArray[np.int64]  # segments of each path
    segment_GBps: NDArray[np.float64]
    distance: NDArray[np.float64]  # node x node
    link_src: NDArray[np.int32]
    link_GBps: NDArray[np.float64]
    link_latency: NDArray[np.int64]
    copies: NDArray[np.bool_]  # of each node
    cuts_through: NDArray[np.bool_]
    buffer: NDArray[np.int64]  # bytes, or -1
    limit_ptr: NDArray[np.int64]  # limits of each link
    limit_of: NDArray[np.int32]
    limit_GBps: NDArray[np.float64]
    change_ptr: NDArray[np.int64]  # changes of bandwidth of each link
    change_from: NDArray[np.int64]
    change_GBps: NDArray[np.float64]


class Work(NamedTuple):
    """The demand: chunks with one source each."""

    chunk_bytes: NDArray[np.int64]
    source: NDArray[np.int32]
    ready: NDArray[np.int64]  # when each chunk is there
    destination_ptr: NDArray[np.int64]
    destination: NDArray[np.int32]


class Knobs(NamedTuple):
    """How one run chooses: weights of the score, noise on it, patience with slow links, when to give up."""

    seed: int
    gain_weight: float
    tail_weight: float
    noise: float
    patience: float
    give_up_ps: int


class Heaps(NamedTuple):
    """One pairing heap of (key, chunk) per pair, in common arrays; entry 0 of `spare` counts free cells."""

    root: NDArray[np.int64]
    key: NDArray[np.float64]
    chunk: NDArray[np.int32]
    child: NDArray[np.int64]
    sibling: NDArray[np.int64]


@njit(cache=True, nogil=True)
def _grow(array, size):  # type: ignore[no-untyped-def]
    bigger = np.empty(size, dtype=array.dtype)
    bigger[: len(array)] = array
    return bigger


@njit(cache=True, nogil=True)
def _meld(heaps, a, b):  # type: ignore[no-untyped-def]
    """One heap of two, the larger key on top; -1 is the empty heap."""
    if a < 0:
        return b
    if b < 0:
        return a
    if heaps.key[a] < heaps.key[b]:
        a, b = b, a
    heaps.sibling[b] = heaps.child[a]
    heaps.child[a] = b
    return a


@njit(cache=True, nogil=True)
def _pop(heaps, top):  # type: ignore[no-untyped-def]
    """The heap without its top: children melded in pairs, then the pairs from the last to the first."""
    pairs = np.int64(-1)
    node = heaps.child[top]
    while node >= 0:
        other = heaps.sibling[node]
        after = heaps.sibling[other] if other >= 0 else np.int64(-1)
        heaps.sibling[node] = -1
        if other >= 0:
            heaps.sibling[other] = -1
        joined = _meld(heaps, node, other)
        heaps.sibling[joined] = pairs
        pairs = joined
        node = after
    result = np.int64(-1)
    while pairs >= 0:
        after = heaps.sibling[pairs]
        heaps.sibling[pairs] = -1
        result = _meld(heaps, result, pairs)
        pairs = after
    return result


@njit(cache=True, nogil=True)
def _queue_push(time, what, size, at, code):  # type: ignore[no-untyped-def]
    """A binary heap of events, earliest first; arrays have room."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if time[parent] <= at:
            break
        time[i], what[i] = time[parent], what[parent]
        i = parent
    time[i], what[i] = at, code


@njit(cache=True, nogil=True)
def _queue_pop(time, what, size):  # type: ignore[no-untyped-def]
    """Remove the first of `size` events; returns its code."""
    code = what[0]
    at, last = time[size - 1], what[size - 1]
    i, size = 0, size - 1
    while True:
        j = 2 * i + 1
        if j >= size:
            break
        if j + 1 < size and time[j + 1] < time[j]:
            j += 1
        if time[j] >= at:
            break
        time[i], what[i] = time[j], what[j]
        i = j
    time[i], what[i] = at, last
    return code


@njit(cache=True, nogil=True)
def _noise(seed, a, b):  # type: ignore[no-untyped-def]
    """A number in [-1, 1) from a hash of three."""
    x = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(a) * np.uint64(0xBF58476D1CE4E5B9)
    x += np.uint64(b) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    x *= np.uint64(0xD6E8FEB86659FD93)
    x ^= x >> np.uint64(32)
    return (x >> np.uint64(11)) * (2.0 / 9007199254740992.0) - 1.0


@njit(cache=True, nogil=True)
def _score(net, work, knobs, left, pair, chunk):  # type: ignore[no-untyped-def]
    """How much it helps to have the chunk at the end of the pair; 0 when it brings it nearer to nobody.

    `left` is how far each (chunk, destination) still is from the nearest node that has the chunk or will.
    """
    end = net.pair_end[pair]
    gain = 0.0
    tail = 0.0
    for k in range(work.destination_ptr[chunk], work.destination_ptr[chunk + 1]):
        away = left[k]
        if away > 0:
            nearer = away - net.distance[end, work.destination[k]]
            if nearer > 0:
                if work.destination[k] == end and net.pair_cost[pair] > knobs.patience * away:
                    return 0.0
                gain += nearer
                tail = max(tail, away)
    score = knobs.gain_weight * gain + knobs.tail_weight * tail
    if score > 0 and knobs.noise > 0:
        score *= 1.0 + knobs.noise * _noise(knobs.seed, pair, chunk)
    return score


@njit(cache=True, nogil=True)
def _slowest(net, link, begin, until, rate):  # type: ignore[no-untyped-def]
    """The least bandwidth of a link that changes, between two times, and at most `rate`."""
    for k in range(net.change_ptr[link], net.change_ptr[link + 1]):
        after = k + 1 == net.change_ptr[link + 1] or net.change_from[k + 1] > begin
        if after and net.change_from[k] < max(until, begin + 1):
            rate = min(rate, net.change_GBps[k])
    return rate


@njit(cache=True, nogil=True)
def _place(net, path, size, at, begin, until, speed):  # type: ignore[no-untyped-def]
    """Hold times and rates of a path's hops for a start at `at`; the arrival."""
    delay = np.int64(0)
    arrival = at
    first = net.hop_ptr[path]
    for s in range(net.segment_ptr[path], net.segment_ptr[path + 1]):
        local = s - net.segment_ptr[path]
        rate = net.segment_GBps[s]
        while True:
            hold = np.int64(np.ceil(size * 1000.0 / rate))
            lowest = rate
            for h in range(first, net.hop_ptr[path + 1]):
                if net.hop_segment[h] == local:
                    begin[h - first] = at + net.hop_offset[h] + delay
                    until[h - first] = begin[h - first] + hold
                    speed[h - first] = rate
                    link = net.hop_link[h]
                    if net.change_ptr[link + 1] - net.change_ptr[link] > 1:
                        lowest = _slowest(net, link, begin[h - first], until[h - first], lowest)
            if lowest >= rate:
                break
            rate = lowest
        delay += hold
    last = net.hop_ptr[path + 1] - 1
    arrival = until[last - first] + net.link_latency[net.hop_link[last]]
    return arrival


@njit(cache=True, nogil=True)
def _limit_wait(net, lim_from, lim_to, lim_rate, lim_size, link, begin, until, rate, extra):  # type: ignore[no-untyped-def]
    """0 if the limits of a link let this hop in, else when to try again.

    `extra` counts hops of the same transfer that already share the limit, so that each gets its part.
    """
    for k in range(net.limit_ptr[link], net.limit_ptr[link + 1]):
        limit = net.limit_of[k]
        room = net.limit_GBps[limit] * (1 + 1e-12)
        soonest = np.int64(0)
        for i in range(lim_size[limit] + 1):
            at = begin if i == lim_size[limit] else lim_from[limit, i]
            if at < begin or at >= until:
                continue
            use = rate * (1 + extra[limit])
            for j in range(lim_size[limit]):
                if lim_from[limit, j] <= at and lim_to[limit, j] > at:
                    use += lim_rate[limit, j]
            if use > room:
                for j in range(lim_size[limit]):
                    if lim_to[limit, j] > begin and (soonest == 0 or lim_to[limit, j] < soonest):
                        soonest = lim_to[limit, j]
                return max(soonest, begin + 1)
    return np.int64(0)


@njit(cache=True, nogil=True)
def list_schedule(net, work, knobs):  # type: ignore[no-untyped-def]
    """One run. Returns (done, finish, chunk, start, hop pointer, hop links) of all transfers, in order of decision."""
    nodes = len(net.node_ptr) - 1
    pairs = len(net.pair_src)
    chunks = len(work.chunk_bytes)
    links = len(net.link_src)
    total = len(work.destination)

    left = np.empty(total, dtype=np.float64)
    for c in range(chunks):
        for k in range(work.destination_ptr[c], work.destination_ptr[c + 1]):
            left[k] = net.distance[work.source[c], work.destination[k]]
    open_pairs = total

    out_chunk = np.empty(total + 16, dtype=np.int32)
    out_start = np.empty(total + 16, dtype=np.int64)
    out_ptr = np.zeros(total + 17, dtype=np.int64)
    out_link = np.empty(2 * total + 64, dtype=np.int32)
    sent = 0

    heaps = Heaps(
        np.full(pairs, -1, dtype=np.int64),
        np.empty(4 * chunks + 1024, dtype=np.float64),
        np.empty(4 * chunks + 1024, dtype=np.int32),
        np.empty(4 * chunks + 1024, dtype=np.int64),
        np.empty(4 * chunks + 1024, dtype=np.int64),
    )
    cells = 0
    spare = np.int64(-1)

    q_time = np.empty(2 * chunks + pairs + 1024, dtype=np.int64)
    q_what = np.empty(2 * chunks + pairs + 1024, dtype=np.int64)
    q_size = 0
    retry_at = np.full(pairs, -1, dtype=np.int64)
    came_chunk = np.empty(chunks + total + 16, dtype=np.int32)
    came_node = np.empty(chunks + total + 16, dtype=np.int32)
    came = 0
    for c in range(chunks):
        came_chunk[came], came_node[came] = c, work.source[c]
        _queue_push(q_time, q_what, q_size, work.ready[c], np.int64(came))
        q_size += 1
        came += 1

    free_at = np.zeros(links, dtype=np.int64)
    held = np.zeros(nodes, dtype=np.int64)
    limits = len(net.limit_GBps)
    lim_cap = 4 * links + 16 if limits else 1
    lim_from = np.empty((limits, lim_cap), dtype=np.int64)
    lim_to = np.empty((limits, lim_cap), dtype=np.int64)
    lim_rate = np.empty((limits, lim_cap), dtype=np.float64)
    lim_size = np.zeros(limits, dtype=np.int64)
    extra = np.zeros(limits, dtype=np.int64)

    longest = 1
    for p in range(len(net.hop_ptr) - 1):
        longest = max(longest, net.hop_ptr[p + 1] - net.hop_ptr[p])
    begin = np.zeros(longest, dtype=np.int64)
    until = np.zeros(longest, dtype=np.int64)
    speed = np.zeros(longest, dtype=np.float64)
    tree_mark = np.full(links, -1, dtype=np.int64)
    tree_begin = np.zeros(links, dtype=np.int64)
    tree_until = np.zeros(links, dtype=np.int64)
    tree_speed = np.zeros(links, dtype=np.float64)
    tree_link = np.empty(links + longest, dtype=np.int32)
    reached = np.empty(nodes, dtype=np.int32)
    reached_at = np.empty(nodes, dtype=np.int64)

    dirty = np.empty(pairs, dtype=np.int64)
    dirty_key = np.empty(pairs, dtype=np.float64)
    is_dirty = np.zeros(pairs, dtype=np.bool_)
    finish = np.int64(0)

    while q_size > 0 and open_pairs > 0:
        now = q_time[0]
        dirt = 0
        while q_size > 0 and q_time[0] == now:
            code = _queue_pop(q_time, q_what, q_size)
            q_size -= 1
            if code < 0:
                pair = -code - 1
                if retry_at[pair] == now:
                    retry_at[pair] = -1
                    if not is_dirty[pair]:
                        is_dirty[pair] = True
                        dirty[dirt] = pair
                        dirt += 1
                continue
            chunk, node = came_chunk[code], came_node[code]
            for pair in range(net.node_ptr[node], net.node_ptr[node + 1]):
                key = _score(net, work, knobs, left, pair, chunk)
                if key <= 0:
                    continue
                if spare >= 0:
                    cell = spare
                    spare = heaps.sibling[cell]
                else:
                    cell = np.int64(cells)
                    cells += 1
                    if cells >= len(heaps.key):
                        size = 2 * len(heaps.key)
                        heaps = Heaps(
                            heaps.root,
                            _grow(heaps.key, size),
                            _grow(heaps.chunk, size),
                            _grow(heaps.child, size),
                            _grow(heaps.sibling, size),
                        )
                heaps.key[cell], heaps.chunk[cell] = key, chunk
                heaps.child[cell], heaps.sibling[cell] = -1, -1
                heaps.root[pair] = _meld(heaps, heaps.root[pair], cell)
                if not is_dirty[pair]:
                    is_dirty[pair] = True
                    dirty[dirt] = pair
                    dirt += 1
        for i in range(dirt):
            is_dirty[dirty[i]] = False
            top = heaps.root[dirty[i]]
            dirty_key[i] = -heaps.key[top] if top >= 0 else 0.0
        order = np.argsort(dirty_key[:dirt])
        for limit in range(limits):  # what has ended no longer counts
            kept = 0
            for i in range(lim_size[limit]):
                if lim_to[limit, i] > now:
                    lim_from[limit, kept] = lim_from[limit, i]
                    lim_to[limit, kept] = lim_to[limit, i]
                    lim_rate[limit, kept] = lim_rate[limit, i]
                    kept += 1
            lim_size[limit] = kept

        for turn in range(dirt):
            pair = dirty[order[turn]]
            src = net.pair_src[pair]
            while heaps.root[pair] >= 0:
                # A path whose links are free now; else try again when one is.
                path = np.int64(-1)
                soonest = np.int64(-1)
                for p in range(net.path_ptr[pair], net.path_ptr[pair + 1]):
                    ready = now
                    for h in range(net.hop_ptr[p], net.hop_ptr[p + 1]):
                        if net.hop_segment[h] == 0:
                            ready = max(ready, free_at[net.hop_link[h]] - net.hop_offset[h])
                    if ready <= now:
                        path = np.int64(p)
                        break
                    if soonest < 0 or ready < soonest:
                        soonest = ready
                chunk = np.int32(-1)
                if path >= 0:
                    # The chunk that helps most: keys only sink, so a top that keeps its key is the best.
                    while heaps.root[pair] >= 0:
                        top = heaps.root[pair]
                        key = _score(net, work, knobs, left, pair, heaps.chunk[top])
                        heaps.root[pair] = _pop(heaps, top)
                        rest = heaps.root[pair]
                        if key > 0 and rest >= 0 and key < heaps.key[rest]:
                            heaps.key[top] = key
                            heaps.child[top], heaps.sibling[top] = -1, -1
                            heaps.root[pair] = _meld(heaps, rest, top)
                            continue
                        if key > 0:
                            chunk = heaps.chunk[top]
                            cell = top
                            break
                        heaps.sibling[top] = spare
                        spare = top
                    if chunk < 0:
                        break  # nothing here helps anybody
                    size = work.chunk_bytes[chunk]
                    end = net.pair_end[pair]
                    # A node that only passes the chunk on needs room for it.
                    if net.buffer[end] >= 0:
                        wants = False
                        for k in range(work.destination_ptr[chunk], work.destination_ptr[chunk + 1]):
                            wants = wants or work.destination[k] == end
                        if not wants:
                            if held[end] + size > net.buffer[end]:
                                heaps.sibling[cell] = spare
                                spare = cell
                                continue
                            held[end] += size
                    arrival = _place(net, path, size, now, begin, until, speed)
                    wait = np.int64(0)
                    for h in range(net.hop_ptr[path], net.hop_ptr[path + 1]):
                        i = h - net.hop_ptr[path]
                        link = net.hop_link[h]
                        if i > 0 and net.hop_segment[h] != net.hop_segment[h - 1]:
                            extra[:] = 0  # behind a store-and-forward switch the hops before are over
                        if free_at[link] > begin[i]:
                            wait = max(wait, now + free_at[link] - begin[i])
                        elif limits > 0:
                            rate = speed[i]
                            later = _limit_wait(
                                net, lim_from, lim_to, lim_rate, lim_size, link, begin[i], until[i], rate, extra
                            )
                            if later > 0:
                                wait = max(wait, now + later - begin[i])
                            for k in range(net.limit_ptr[link], net.limit_ptr[link + 1]):
                                extra[net.limit_of[k]] += 1
                    if wait > 0:
                        extra[:] = 0
                        heaps.child[cell], heaps.sibling[cell] = -1, -1
                        heaps.root[pair] = _meld(heaps, heaps.root[pair], cell)
                        if net.buffer[end] >= 0 and not wants:
                            held[end] -= size
                        soonest = max(wait, now + 1)
                        path = np.int64(-1)
                    else:
                        heaps.sibling[cell] = spare
                        spare = cell
                if path < 0:
                    if retry_at[pair] < 0 or soonest < retry_at[pair]:
                        retry_at[pair] = soonest
                        if q_size + 1 >= len(q_time):
                            q_time, q_what = _grow(q_time, 2 * len(q_time)), _grow(q_what, 2 * len(q_what))
                        _queue_push(q_time, q_what, q_size, soonest, np.int64(-pair - 1))
                        q_size += 1
                    break

                # Take the links, then let copying switches on the way serve others that need the chunk too.
                hops = 0
                for h in range(net.hop_ptr[path], net.hop_ptr[path + 1]):
                    link = net.hop_link[h]
                    tree_mark[link] = sent
                    tree_begin[link], tree_until[link] = begin[h - net.hop_ptr[path]], until[h - net.hop_ptr[path]]
                    tree_speed[link] = speed[h - net.hop_ptr[path]]
                    tree_link[hops] = link
                    hops += 1
                ends = 1
                reached[0], reached_at[0] = end, arrival
                forks = False
                for h in range(net.hop_ptr[path] + 1, net.hop_ptr[path + 1]):
                    forks = forks or net.copies[net.link_src[net.hop_link[h]]]
                if forks:
                    for k in range(work.destination_ptr[chunk], work.destination_ptr[chunk + 1]):
                        left[k] = min(left[k], net.distance[end, work.destination[k]])
                    for other in range(net.node_ptr[src], net.node_ptr[src + 1]):
                        if other == pair or net.buffer[net.pair_end[other]] >= 0:
                            continue
                        if _score(net, work, knobs, left, other, chunk) <= 0:
                            continue
                        for p in range(net.path_ptr[other], net.path_ptr[other + 1]):
                            fits = True
                            fork = np.int64(-1)
                            for h in range(net.hop_ptr[p], net.hop_ptr[p + 1]):
                                if tree_mark[net.hop_link[h]] != sent:
                                    fork = np.int64(h)
                                    break
                            if fork <= net.hop_ptr[p]:
                                continue
                            before = net.hop_link[fork - 1]
                            switch = net.link_src[net.hop_link[fork]]
                            if not net.copies[switch] or not net.cuts_through[switch]:
                                continue
                            head = tree_begin[before] + net.link_latency[before]
                            hold = tree_until[before] - tree_begin[before]
                            for h in range(fork, net.hop_ptr[p + 1]):
                                link = net.hop_link[h]
                                changes = net.change_ptr[link + 1] - net.change_ptr[link] > 1
                                same = net.hop_segment[h] == net.hop_segment[fork - 1]
                                slow = np.int64(np.ceil(size * 1000.0 / net.link_GBps[link])) > hold
                                if changes or slow or not same or free_at[link] > head or tree_mark[link] == sent:
                                    fits = False
                                    break
                                rate = tree_speed[before]
                                if limits > 0 and _limit_wait(
                                    net, lim_from, lim_to, lim_rate, lim_size, link, head, head + hold, rate, extra
                                ):
                                    fits = False
                                    break
                                begin[h - net.hop_ptr[p]] = head
                                head += net.link_latency[link]
                            if not fits:
                                continue
                            for h in range(fork, net.hop_ptr[p + 1]):
                                link = net.hop_link[h]
                                tree_mark[link] = sent
                                tree_begin[link] = begin[h - net.hop_ptr[p]]
                                tree_until[link] = tree_begin[link] + hold
                                tree_speed[link] = tree_speed[before]
                                tree_link[hops] = link
                                hops += 1
                                for k in range(net.limit_ptr[link], net.limit_ptr[link + 1]):
                                    extra[net.limit_of[k]] += 1
                            reached[ends], reached_at[ends] = net.pair_end[other], head + hold
                            ends += 1
                            for k in range(work.destination_ptr[chunk], work.destination_ptr[chunk + 1]):
                                away = net.distance[net.pair_end[other], work.destination[k]]
                                if away > 0:
                                    left[k] = min(left[k], away)
                            break

                # Write it down.
                extra[:] = 0
                if sent + 1 >= len(out_chunk):
                    out_chunk = _grow(out_chunk, 2 * len(out_chunk))
                    out_start = _grow(out_start, 2 * len(out_start))
                    out_ptr = _grow(out_ptr, 2 * len(out_ptr))
                while out_ptr[sent] + hops >= len(out_link):
                    out_link = _grow(out_link, 2 * len(out_link))
                out_chunk[sent], out_start[sent] = chunk, now
                out_ptr[sent + 1] = out_ptr[sent] + hops
                for i in range(hops):
                    link = tree_link[i]
                    out_link[out_ptr[sent] + i] = link
                    free_at[link] = tree_until[link]
                    for k in range(net.limit_ptr[link], net.limit_ptr[link + 1]):
                        limit = net.limit_of[k]
                        at = lim_size[limit]
                        if at >= lim_cap:
                            return False, finish, out_chunk[:0], out_start[:0], out_ptr[:1], out_link[:0]
                        lim_from[limit, at], lim_to[limit, at] = tree_begin[link], tree_until[link]
                        lim_rate[limit, at] = tree_speed[link]
                        lim_size[limit] = at + 1
                sent += 1
                for i in range(ends):
                    node, at = reached[i], reached_at[i]
                    for k in range(work.destination_ptr[chunk], work.destination_ptr[chunk + 1]):
                        away = net.distance[node, work.destination[k]]
                        if away < left[k] or (away == 0 and left[k] > -1):
                            left[k] = away
                        if away == 0 and left[k] == 0:
                            left[k] = -1
                            open_pairs -= 1
                            finish = max(finish, at)
                    if came + 1 >= len(came_chunk):
                        came_chunk, came_node = (
                            _grow(came_chunk, 2 * len(came_chunk)),
                            _grow(came_node, 2 * len(came_node)),
                        )
                    if q_size + 1 >= len(q_time):
                        q_time, q_what = _grow(q_time, 2 * len(q_time)), _grow(q_what, 2 * len(q_what))
                    came_chunk[came], came_node[came] = chunk, node
                    _queue_push(q_time, q_what, q_size, at, np.int64(came))
                    q_size += 1
                    came += 1
                if finish >= knobs.give_up_ps:
                    return False, finish, out_chunk[:0], out_start[:0], out_ptr[:1], out_link[:0]
    done = open_pairs == 0
    return done, finish, out_chunk[:sent], out_start[:sent], out_ptr[: sent + 1], out_link[: out_ptr[sent]]
