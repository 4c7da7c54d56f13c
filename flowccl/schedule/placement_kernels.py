"""The compiled part of `placement`: follows chunks from buffer to buffer, in the order of time."""

from typing import Any, NamedTuple

import numpy as np

from flowccl.compiled import I64, Bool, compiled, inner, maker

BUFFER_BITS = 40
_INPUT, _OUTPUT, _SCRATCH, _PACKETS = 0, 1 << BUFFER_BITS, 2 << BUFFER_BITS, 3 << BUFFER_BITS
FREE = -1  # the place of a version that any slot of scratch can hold
_NIC, _STORE, _LOAD = 1, 2, 3


class Sent(NamedTuple):
    """The messages: entry e, from `ptr[m]` on, is a chunk of message m; it has a delivery for each receiver.

    It arrives as chunk `arriving[e]`, another one only where one GPU stands for all.
    """

    ptr: I64
    chunk: I64
    arriving: I64
    kind: I64
    src: I64
    root_ptr: I64
    root: I64
    end_ptr: I64
    end: I64
    delivery_ptr: I64
    reduce: Bool


class Buffers(NamedTuple):
    """The buffers of the GPUs, and which of them messages may use."""

    is_reduced: Bool  # of each chunk
    in_place: I64
    out_place: I64
    chunks: int
    keeps_own: bool
    packets: bool
    is_staged: bool


class Placed(NamedTuple):
    """What `place_chunks` finds, of each entry, each delivery and each GPU."""

    sent: I64  # the place from which an entry is sent
    packed: I64  # the place that is copied there first; -1: none
    version: I64  # the delivery that it reads; -1: the input
    arrives: I64  # the place where a delivery arrives
    place: I64  # the place of its result
    added: I64  # the place that is reduced with it; -1: none
    added_version: I64  # the delivery that is there
    scratch: I64  # the chunks of scratch of a GPU
    packet: I64
    problem: I64  # (entry, GPU) that sends data which it lacks; -1, -1 if there is none


class Held(NamedTuple):
    """What GPUs have and lack now; a key is `GPU * chunks + chunk`."""

    has: dict[int, int]  # the version: a delivery, or -1 for what the GPU has at the start
    copied: dict[int, int]  # own chunks that an earlier message has copied to the output
    wanted: dict[int, int]  # arrivals that are still to come


@compiled
def place_chunks(events: I64, messages: Sent, buffers: Buffers, gpus: int, source_key: I64, wanted_key: I64) -> Placed:
    """Follow all chunks; events are 2 m + 1 (message m starts) and 2 m (it is complete at its receivers)."""
    entries, deliveries = len(messages.chunk), messages.delivery_ptr[-1]
    found = Placed(
        _none(entries), _none(entries), _none(entries),
        _none(deliveries), _none(deliveries), _none(deliveries), _none(deliveries),
        np.zeros(gpus, dtype=np.int64), np.zeros(gpus, dtype=np.int64), _none(2),
    )  # fmt: skip
    held = _held_at_start(messages, buffers.chunks, source_key, wanted_key)
    for event in events:
        m = event // 2
        if event % 2:
            _read(m, messages, buffers, held, found)
            if messages.kind[m] == _LOAD:
                _load(m, messages, buffers, held, found)
            if messages.kind[m] == _NIC and messages.ptr[m + 1] - messages.ptr[m] > 1:
                _collect(m, messages, buffers, held, found)
        elif messages.kind[m] >= _STORE:
            _store(m, messages, buffers, held, found)
        else:
            for j in range(messages.end_ptr[m + 1] - messages.end_ptr[m]):
                _arrive(m, j, messages, buffers, held, found)
    _fill(messages, buffers, found)
    return found


@maker
def _none(length: int) -> I64:
    """No places, no versions."""
    return np.full(length, -1, dtype=np.int64)


@maker
def _held_at_start(messages: Sent, chunks: int, source_key: I64, wanted_key: I64) -> Any:
    """What GPUs have before the first message, and how many arrivals of what they want there will be."""
    has = {np.int64(-1): np.int64(0)}
    for key in source_key:
        has[key] = np.int64(-1)
    copied = {np.int64(-1): np.int64(0)}
    wanted = {np.int64(-1): np.int64(0)}
    for key in wanted_key:
        wanted[key] = np.int64(0)
    for m in range(len(messages.kind)):
        for j in range(messages.end_ptr[m], messages.end_ptr[m + 1]):
            for e in range(messages.ptr[m], messages.ptr[m + 1]):
                key = messages.end[j] * chunks + messages.arriving[e]
                if key in wanted:
                    wanted[key] += 1
    return Held(has, copied, wanted)  # type: ignore[arg-type]


@inner
def _own(version: int, chunk: int, place: I64, in_place: I64) -> int:
    """The place of a version of a chunk: -1 is the data that the GPU has at the start."""
    return _INPUT + in_place[chunk] if version < 0 else place[version]  # type: ignore[no-any-return]


@maker
def _read(m: int, messages: Sent, buffers: Buffers, held: Any, found: Placed) -> None:
    """A message starts: the versions of its chunks that its senders have."""
    for e in range(messages.ptr[m], messages.ptr[m + 1]):
        for r in range(messages.root_ptr[m], messages.root_ptr[m + 1]):
            key = messages.root[r] * buffers.chunks + messages.chunk[e]
            if key in held.has:
                found.version[e] = held.has[key]
            elif found.problem[0] < 0:
                found.problem[0], found.problem[1] = e, messages.root[r]


@maker
def _load(m: int, messages: Sent, buffers: Buffers, held: Any, found: Placed) -> None:
    """A switch starts to reduce the chunks of a message: the places are the same on all GPUs, else it is a problem.

    Partial results that have no place yet get one.
    """
    first, end = messages.root_ptr[m], messages.root_ptr[m + 1]
    top = np.int64(0)
    for r in range(first, end):
        top = max(top, found.scratch[messages.root[r]])
    for e in range(messages.ptr[m], messages.ptr[m + 1]):
        at, same, some = np.int64(-1), True, False
        for r in range(first, end):
            key = messages.root[r] * buffers.chunks + messages.chunk[e]
            version = held.has[key] if key in held.has else np.int64(-1)
            here = _own(version, messages.chunk[e], found.place, buffers.in_place)  # type: ignore[arg-type]
            if here == FREE:
                some = True
            elif at < 0:
                at = here  # type: ignore[assignment]
            else:
                same &= at == here
        if some and at < 0:
            at = _SCRATCH + top
            for r in range(first, end):
                found.place[held.has[messages.root[r] * buffers.chunks + messages.chunk[e]]] = at
                found.scratch[messages.root[r]] = top + 1
            top += 1
        elif some or not same:
            at = np.int64(-1)
        found.sent[e] = at
        if at < 0 and found.problem[0] < 0:
            found.problem[0], found.problem[1] = e, messages.src[m]


@maker
def _collect(m: int, messages: Sent, buffers: Buffers, held: Any, found: Placed) -> None:
    """Several chunks start as one message over a NIC: adjacent in a buffer, or copied next to each other."""
    low, high, src, out_place = messages.ptr[m], messages.ptr[m + 1], messages.src[m], buffers.out_place
    is_adjacent, in_output = True, buffers.keeps_own
    for e in range(low, high):
        chunk = messages.chunk[e]
        at = _own(found.version[e], chunk, found.place, buffers.in_place)
        if e > low:
            before = messages.chunk[e - 1]
            is_adjacent &= at == _own(found.version[e - 1], before, found.place, buffers.in_place) + 1
            in_output &= out_place[chunk] == out_place[before] + 1
        is_adjacent &= at != FREE
        in_output &= found.version[e] < 0 or at >> BUFFER_BITS == 1
    first = found.scratch[src] + _SCRATCH
    if not is_adjacent and not in_output:
        found.scratch[src] += high - low
    for e in range(low, high):
        at = _own(found.version[e], messages.chunk[e], found.place, buffers.in_place)
        if is_adjacent:
            found.sent[e] = at
        elif in_output:
            found.sent[e] = _OUTPUT + out_place[messages.chunk[e]]
        else:
            found.sent[e] = first + e - low
        key = src * buffers.chunks + messages.chunk[e]
        if at == FREE:
            found.place[found.version[e]] = found.sent[e]
        elif at != found.sent[e] and not (in_output and key in held.copied):
            found.packed[e] = at
        if in_output and not is_adjacent:
            held.copied[key] = np.int64(0)


@maker
def _store(m: int, messages: Sent, buffers: Buffers, held: Any, found: Placed) -> None:
    """A message arrives at the same place on all GPUs: in the output, if all of them keep the data."""
    low, high, ends = messages.ptr[m], messages.ptr[m + 1], messages.end_ptr[m + 1] - messages.end_ptr[m]
    top = np.int64(0)
    same = bool(not buffers.is_staged)
    for r in range(messages.root_ptr[m], messages.root_ptr[m + 1]):
        top = max(top, found.scratch[messages.root[r]])
    for j in range(messages.end_ptr[m], messages.end_ptr[m + 1]):
        top = max(top, found.scratch[messages.end[j]])
        for e in range(low, high):
            chunk = messages.chunk[e]
            key = messages.end[j] * buffers.chunks + chunk
            if key in held.wanted:
                held.wanted[key] -= 1
                same &= bool(not buffers.is_reduced[chunk] or held.wanted[key] == 0)
            else:
                same &= bool(buffers.keeps_own and key in held.has and held.has[key] < 0)
    for e in range(low, high):
        chunk = messages.chunk[e]
        for j in range(ends):
            d = messages.delivery_ptr[m] + (e - low) * ends + j
            key = messages.end[messages.end_ptr[m] + j] * buffers.chunks + chunk
            found.place[d] = _OUTPUT + buffers.out_place[chunk] if same else _SCRATCH + top + e - low
            found.arrives[d] = found.place[d]
            if buffers.is_reduced[chunk] or key not in held.has:
                held.has[key] = d
    if not same:
        for j in range(messages.end_ptr[m], messages.end_ptr[m + 1]):
            found.scratch[messages.end[j]] = top + high - low
        for r in range(messages.root_ptr[m], messages.root_ptr[m + 1]):
            found.scratch[messages.root[r]] = top + high - low


@maker
def _is_direct(m: int, node: int, messages: Sent, buffers: Buffers, held: Any) -> bool:
    """Whether all chunks of a message may arrive in the output of a GPU: whole, wanted, and adjacent there."""
    direct = True
    for e in range(messages.ptr[m], messages.ptr[m + 1]):
        chunk = messages.arriving[e]
        key = node * buffers.chunks + chunk
        direct &= key in held.wanted and not buffers.is_staged and not (messages.reduce[m] and key in held.has)
        direct &= not buffers.is_reduced[chunk] or (key in held.wanted and held.wanted[key] == 1)
        direct &= e == messages.ptr[m] or buffers.out_place[chunk] == buffers.out_place[messages.arriving[e - 1]] + 1
    return direct


@maker
def _arrive(m: int, j: int, messages: Sent, buffers: Buffers, held: Any, found: Placed) -> None:
    """A message is complete at its receiver j: where its chunks arrive, and what they are reduced with."""
    low, high, ends = messages.ptr[m], messages.ptr[m + 1], messages.end_ptr[m + 1] - messages.end_ptr[m]
    node = messages.end[messages.end_ptr[m] + j]
    is_whole = messages.kind[m] == _NIC and high - low > 1
    is_scattered = is_whole and not _is_direct(m, node, messages, buffers, held)
    for e in range(low, high):
        chunk = messages.arriving[e]
        d, key = messages.delivery_ptr[m] + (e - low) * ends + j, node * buffers.chunks + chunk
        is_wanted = key in held.wanted
        if is_wanted:
            held.wanted[key] -= 1
        if not buffers.is_reduced[chunk] and key in held.has:  # the GPU has the chunk already
            found.place[d] = _PACKETS + found.packet[node] if buffers.packets else _SCRATCH + found.scratch[node]
            found.arrives[d] = found.place[d]
            found.packet[node] += buffers.packets
            found.scratch[node] += not buffers.packets
            continue
        is_last = is_wanted and not buffers.is_staged and (not buffers.is_reduced[chunk] or held.wanted[key] == 0)
        if messages.reduce[m] and key in held.has:
            found.added_version[d] = held.has[key]
            found.added[d] = 1
        if is_last:
            found.place[d] = _OUTPUT + buffers.out_place[chunk]
        if buffers.packets:
            found.arrives[d] = _PACKETS + found.packet[node]
            found.packet[node] += 1
        elif found.added[d] >= 0 or is_scattered or (buffers.is_staged and is_wanted):
            found.arrives[d] = _SCRATCH + found.scratch[node]
            found.scratch[node] += 1
            if found.place[d] == FREE and found.added[d] < 0:
                found.place[d] = found.arrives[d]
        held.has[key] = d


@maker
def _fill(messages: Sent, buffers: Buffers, found: Placed) -> None:
    """Give places to what still has none, now that all messages are known."""
    for m in range(len(messages.kind)):
        ends = messages.end_ptr[m + 1] - messages.end_ptr[m]
        for d in range(messages.delivery_ptr[m], messages.delivery_ptr[m + 1]):
            node = messages.end[messages.end_ptr[m] + (d - messages.delivery_ptr[m]) % ends]
            if found.place[d] == FREE and found.added[d] >= 0 and not buffers.packets:
                found.place[d] = found.arrives[d]  # reduced where it arrived
            elif found.place[d] == FREE:
                found.place[d] = _SCRATCH + found.scratch[node]
                found.scratch[node] += 1
            if found.arrives[d] == FREE:
                found.arrives[d] = found.place[d]
    for m in range(len(messages.kind)):
        ends = messages.end_ptr[m + 1] - messages.end_ptr[m]
        for e in range(messages.ptr[m], messages.ptr[m + 1]):
            chunk = messages.chunk[e]
            if found.sent[e] == FREE:
                found.sent[e] = _own(found.version[e], chunk, found.place, buffers.in_place)
            first = messages.delivery_ptr[m] + (e - messages.ptr[m]) * ends
            for d in range(first, first + ends):
                if found.added[d] >= 0:
                    found.added[d] = _own(found.added_version[d], messages.arriving[e], found.place, buffers.in_place)
