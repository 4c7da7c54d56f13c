"""The compiled part of `posting`: packs the channels of every GPU into threadblocks."""

import numpy as np

from flowccl.compiled import I64, compiled, inner


@inner
def _fill(size: I64, low: int, high: int, count: int, most: int, load: I64, held: I64, place: I64) -> int:
    """Put channels, one after the other, into those of `count` threadblocks with the least to do; return the most."""
    for k in range(count):
        load[k], held[k] = 0, 0
    heaviest = 0
    for row in range(low, high):
        best = -1
        for k in range(count):
            if held[k] < most and (best < 0 or load[k] < load[best]):
                best = k
        place[row] = best
        load[best] += size[row]
        held[best] += 1
        heaviest = max(heaviest, load[best])
    return heaviest


@compiled
def pack_channels(ptr: I64, size: I64, least: int, operations: int, channels: int, peers: int) -> I64:
    """Return the threadblock of each channel, on as few threadblocks of each GPU as hold them, at least `least`.

    GPU g has the channels `ptr[g]` to `ptr[g + 1]`, the one with the most operations first.
    """
    place = np.zeros(len(size), dtype=np.int64)
    for g in range(len(ptr) - 1):
        low, high = ptr[g], ptr[g + 1]
        total = 0
        for row in range(low, high):
            total += size[row]
        rows = high - low
        count = max(least, -(-total // operations), -(-rows // channels), 1)
        load, held = np.zeros(count + rows, dtype=np.int64), np.zeros(count + rows, dtype=np.int64)
        while True:
            heaviest = _fill(size, low, high, count, max(peers, -(-rows // count)), load, held, place)
            if heaviest <= operations or count >= rows:
                break
            count += 1
    return place
