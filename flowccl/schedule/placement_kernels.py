"""The compiled part of `placement`: follows chunks from buffer to buffer, in the order of time."""

import numpy as np

from flowccl.compiled import I64, Bool, compiled, inner, maker

BUFFER_BITS = 40
_INPUT, _OUTPUT, _SCRATCH, _PACKETS = 0, 1 << BUFFER_BITS, 2 << BUFFER_BITS, 3 << BUFFER_BITS
FREE = -1  # the place of a version that any slot of scratch can hold
_NIC, _STORE, _LOAD = 1, 2, 3


@inner
def _own(version: int, chunk: int, place: I64, in_place: I64) -> int:
    """The place of a version of a chunk: -1 is the data that the GPU has at the start."""
    return _INPUT + in_place[chunk] if version < 0 else place[version]  # type: ignore[no-any-return]


@maker
def _place_for_load(m, ptr, chunk, root_ptr, root, has, place, scratch, in_place, chunks):  # type: ignore[no-untyped-def]
    """Return the places from which a switch reduces the chunks of a message: the same on all GPUs; -1 if they differ.

    Partial results that have no place yet get one.
    """
    low, high = ptr[m], ptr[m + 1]
    at = np.full(high - low, -1, dtype=np.int64)
    top = np.int64(0)
    for r in range(root_ptr[m], root_ptr[m + 1]):
        top = max(top, scratch[root[r]])
    for e in range(low, high):
        same, some = True, False
        for r in range(root_ptr[m], root_ptr[m + 1]):
            key = root[r] * chunks + chunk[e]
            found = has[key] if key in has else np.int64(-1)
            here = _own(found, chunk[e], place, in_place)  # type: ignore[arg-type]
            if here == FREE:
                some = True
            elif at[e - low] < 0:
                at[e - low] = here
            else:
                same &= at[e - low] == here
        if some and at[e - low] < 0:
            at[e - low] = _SCRATCH + top
            for r in range(root_ptr[m], root_ptr[m + 1]):
                place[has[root[r] * chunks + chunk[e]]] = _SCRATCH + top
                scratch[root[r]] = top + 1
            top += 1
        elif some or not same:
            at[e - low] = -1
    return at


@compiled
def place_chunks(
    events: I64,
    ptr: I64,
    chunk: I64,
    kind: I64,
    src: I64,
    root_ptr: I64,
    root: I64,
    end_ptr: I64,
    end: I64,
    delivery_ptr: I64,
    reduce: Bool,
    source_key: I64,
    wanted_key: I64,
    is_reduced: Bool,
    in_place: I64,
    out_place: I64,
    gpus: int,
    chunks: int,
    keeps_own: bool,
    packets: bool,
    is_staged: bool,
) -> tuple[I64, I64, I64, I64, I64, I64, I64, I64, I64, I64]:
    """Follow all chunks; events are 2 m + 1 (message m starts) and 2 m (it is complete at its receivers).

    Returned are, per entry, the place from which it is sent, the place that is copied there first (-1: none) and the
    delivery that it reads (-1: the input); per delivery, the place where it arrives, the place of the result, the place
    that is reduced with it (-1: none), and the delivery that is there; the chunks of scratch and of packets of each
    GPU; and (entry, GPU) that sends data which it lacks (-1, -1 if there is none).
    """
    entries, deliveries = len(chunk), delivery_ptr[-1]
    sent, packed = np.full(entries, FREE, dtype=np.int64), np.full(entries, -1, dtype=np.int64)
    version = np.full(entries, -1, dtype=np.int64)
    arrives, place = np.full(deliveries, FREE, dtype=np.int64), np.full(deliveries, FREE, dtype=np.int64)
    added = np.full(deliveries, -1, dtype=np.int64)
    added_version = np.full(deliveries, -1, dtype=np.int64)
    scratch, packet = np.zeros(gpus, dtype=np.int64), np.zeros(gpus, dtype=np.int64)
    problem = np.full(2, -1, dtype=np.int64)
    has = {np.int64(-1): np.int64(0)}
    for key in source_key:
        has[key] = np.int64(-1)
    copied = {np.int64(-1): np.int64(0)}  # own chunks that an earlier message has copied to the output
    wanted = {np.int64(-1): np.int64(0)}
    for key in wanted_key:
        wanted[key] = np.int64(0)  # arrivals that are still to come
    for m in range(len(kind)):
        for j in range(end_ptr[m], end_ptr[m + 1]):
            for e in range(ptr[m], ptr[m + 1]):
                key = end[j] * chunks + chunk[e]
                if key in wanted:
                    wanted[key] += 1
    for event in events:
        m = event // 2
        low, high, ends = ptr[m], ptr[m + 1], end_ptr[m + 1] - end_ptr[m]
        if event % 2:
            for e in range(low, high):
                for r in range(root_ptr[m], root_ptr[m + 1]):
                    key = root[r] * chunks + chunk[e]
                    if key not in has:
                        if problem[0] < 0:
                            problem[0], problem[1] = e, root[r]
                        continue
                    version[e] = has[key]
            if kind[m] == _LOAD:
                at = _place_for_load(  # type: ignore[no-untyped-call]
                    m, ptr, chunk, root_ptr, root, has, place, scratch, in_place, chunks
                )
                for e in range(low, high):
                    if at[e - low] < 0 and problem[0] < 0:
                        problem[0], problem[1] = e, src[m]
                    sent[e] = at[e - low]
            if kind[m] != _NIC or high - low == 1:
                continue
            is_adjacent, in_output = True, keeps_own
            for e in range(low, high):
                at = _own(version[e], chunk[e], place, in_place)
                if e > low:
                    is_adjacent &= at == _own(version[e - 1], chunk[e - 1], place, in_place) + 1
                    in_output &= out_place[chunk[e]] == out_place[chunk[e - 1]] + 1
                is_adjacent &= at != FREE
                in_output &= version[e] < 0 or at >> BUFFER_BITS == 1
            first = scratch[src[m]] + _SCRATCH
            if not is_adjacent and not in_output:
                scratch[src[m]] += high - low
            for e in range(low, high):
                at = _own(version[e], chunk[e], place, in_place)
                if is_adjacent:
                    sent[e] = at
                elif in_output:
                    sent[e] = _OUTPUT + out_place[chunk[e]]
                else:
                    sent[e] = first + e - low
                key = src[m] * chunks + chunk[e]
                if at == FREE:
                    place[version[e]] = sent[e]
                elif at != sent[e] and not (in_output and key in copied):
                    packed[e] = at
                if in_output and not is_adjacent:
                    copied[key] = np.int64(0)
            continue
        if kind[m] >= _STORE:  # the same place on all GPUs: the output, if all of them keep the data
            top = np.int64(0)
            same = bool(not is_staged)
            for r in range(root_ptr[m], root_ptr[m + 1]):
                top = max(top, scratch[root[r]])
            for j in range(ends):
                node = end[end_ptr[m] + j]
                top = max(top, scratch[node])
                for e in range(low, high):
                    key = node * chunks + chunk[e]
                    if key in wanted:
                        wanted[key] -= 1
                        same &= bool(not is_reduced[chunk[e]] or wanted[key] == 0)
                    else:
                        same &= bool(keeps_own and key in has and has[key] < 0)
            for e in range(low, high):
                for j in range(ends):
                    d, key = delivery_ptr[m] + (e - low) * ends + j, end[end_ptr[m] + j] * chunks + chunk[e]
                    place[d] = _OUTPUT + out_place[chunk[e]] if same else _SCRATCH + top + e - low
                    arrives[d] = place[d]
                    if is_reduced[chunk[e]] or key not in has:
                        has[key] = d
            if not same:
                for j in range(end_ptr[m], end_ptr[m + 1]):
                    scratch[end[j]] = top + high - low
                for r in range(root_ptr[m], root_ptr[m + 1]):
                    scratch[root[r]] = top + high - low
            continue
        for j in range(ends):
            node = end[end_ptr[m] + j]
            direct = True  # a message over a NIC goes to the output if all of its chunks are adjacent there
            for e in range(low, high):
                key = node * chunks + chunk[e]
                direct &= key in wanted and not is_staged and not (reduce[m] and key in has)
                direct &= not is_reduced[chunk[e]] or (key in wanted and wanted[key] == 1)
                direct &= e == low or out_place[chunk[e]] == out_place[chunk[e - 1]] + 1
            whole = kind[m] == _NIC and high - low > 1
            for e in range(low, high):
                d = delivery_ptr[m] + (e - low) * ends + j
                key = node * chunks + chunk[e]
                is_wanted = key in wanted
                if is_wanted:
                    wanted[key] -= 1
                if not is_reduced[chunk[e]] and key in has:  # the GPU has the chunk already
                    arrives[d] = place[d] = _PACKETS + packet[node] if packets else _SCRATCH + scratch[node]
                    packet[node] += packets
                    scratch[node] += not packets
                    continue
                if reduce[m] and key in has:
                    added_version[d] = has[key]
                    added[d] = 1
                    if is_wanted and wanted[key] == 0 and not is_staged:
                        place[d] = _OUTPUT + out_place[chunk[e]]
                elif is_wanted and not is_staged and (not is_reduced[chunk[e]] or wanted[key] == 0):
                    place[d] = _OUTPUT + out_place[chunk[e]]
                if packets:
                    arrives[d] = _PACKETS + packet[node]
                    packet[node] += 1
                elif added[d] >= 0 or (whole and not direct) or (is_staged and is_wanted and added[d] < 0):
                    arrives[d] = _SCRATCH + scratch[node]
                    scratch[node] += 1
                    if place[d] == FREE and added[d] < 0:
                        place[d] = arrives[d]
                has[key] = d
    for m in range(len(kind)):
        ends = end_ptr[m + 1] - end_ptr[m]
        for d in range(delivery_ptr[m], delivery_ptr[m + 1]):
            node = end[end_ptr[m] + (d - delivery_ptr[m]) % ends]
            if place[d] == FREE and added[d] >= 0 and not packets:
                place[d] = arrives[d]  # reduced where it arrived
            elif place[d] == FREE:
                place[d] = _SCRATCH + scratch[node]
                scratch[node] += 1
            if arrives[d] == FREE:
                arrives[d] = place[d]
    for m in range(len(kind)):
        ends = end_ptr[m + 1] - end_ptr[m]
        for e in range(ptr[m], ptr[m + 1]):
            if sent[e] == FREE:
                sent[e] = _own(version[e], chunk[e], place, in_place)
            for d in range(delivery_ptr[m] + (e - ptr[m]) * ends, delivery_ptr[m] + (e - ptr[m] + 1) * ends):
                if added[d] >= 0:
                    added[d] = _own(added_version[d], chunk[e], place, in_place)
    return sent, packed, version, arrives, place, added, added_version, scratch, packet, problem
