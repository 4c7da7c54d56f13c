"""The compiled part of `placement`: follows chunks from buffer to buffer."""

import numpy as np

from flowccl.compiled import I64, Bool, compiled, inner

_SCRATCH = 1 << 40  # positions from here on are in scratch; the output begins at _OUTPUT
_OUTPUT = 1 << 39


@inner
def _find(keys: I64, key: int) -> int:
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low if low < len(keys) and keys[low] == key else -1


@compiled
def find_copies(
    order: I64,
    leader: I64,
    chunk: I64,
    root: I64,
    end: I64,
    alone: Bool,
    reduce: Bool,
    source_key: I64,
    source_place: I64,
    wanted_key: I64,
    wanted_place: I64,
    own_output: I64,
    nodes: int,
) -> tuple[Bool, Bool]:
    """Return for each leader whether its message is packed by the sender, and unpacked by the receiver.

    `order` lists the transfers by start, message by message.
    """
    count = len(chunk)
    pack, unpack = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
    where = {}  # (chunk, node) -> position, for data that arrived
    where[np.int64(-1)] = np.int64(-1)
    scratch = np.full(nodes, _SCRATCH, dtype=np.int64)
    i = 0
    while i < count:
        first = leader[order[i]]
        j = i
        while j < count and leader[order[j]] == first:
            j += 1
        if alone[first]:
            if j - i > 1:
                before, in_output, straight, through = np.int64(-2), np.int64(-2), True, True
                for k in range(i, j):
                    t = order[k]
                    key = chunk[t] * nodes + root[t]
                    at = np.int64(-1)
                    if key in where:
                        at = where[key]
                    else:
                        found = _find(source_key, key)
                        if found >= 0:
                            at = source_place[found]
                    copied = at
                    if key not in where and own_output[chunk[t]] >= 0:
                        copied = _OUTPUT + own_output[chunk[t]]
                    if k > i:
                        straight &= at == before + 1
                        through &= copied == in_output + 1
                    before, in_output = at, copied
                pack[first] = not (straight or through)
                if not reduce[first]:
                    before = np.int64(-2)
                    is_wanted, is_adjacent = False, True
                    for k in range(i, j):
                        t = order[k]
                        found = _find(wanted_key, chunk[t] * nodes + end[t])
                        at = np.int64(-5) if found < 0 else _OUTPUT + wanted_place[found]
                        is_wanted |= found >= 0
                        is_adjacent &= found >= 0 and (k == i or at == before + 1)
                        before = at
                    unpack[first] = is_wanted and not is_adjacent
            for k in range(i, j):  # where the chunks lie afterwards
                t = order[k]
                key = chunk[t] * nodes + end[t]
                found = _find(wanted_key, key)
                if reduce[t]:
                    where[key] = _SCRATCH + chunk[t]  # partial results, in the order of the chunks
                elif found >= 0 and not unpack[first]:
                    where[key] = _OUTPUT + wanted_place[found]
                else:
                    where[key] = scratch[end[t]]
                    scratch[end[t]] += 1
            scratch[end[first]] += 1  # chunks of different messages are not adjacent, whatever comes first
        i = j
    return pack, unpack
