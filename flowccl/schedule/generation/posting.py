"""The threadblocks that post messages to the proxy of a NIC, and wait for those that arrive from there.

A threadblock serves several peers. The messages between two GPUs are spread over several channels if one threadblock
would have too many operations.
"""

import numpy as np
from numpy.typing import NDArray

from flowccl.runtimes.limits import CHANNELS_PER_BLOCK, USABLE_OPERATIONS

I64 = NDArray[np.int64]
_EACH = 3  # operations of a message: acquire or wait, barrier, post or release
_PEERS = CHANNELS_PER_BLOCK // 2  # of a threadblock: each may have two buffers that are written


def assign_posters(src: I64, dst: I64, least: int) -> tuple[I64, I64]:
    """Return the numbers of the threadblocks at both ends of messages between GPUs, which are given in order.

    At least `least` threadblocks of each GPU are used, if it has that many peers.
    """
    from flowccl.schedule.generation.posting_kernels import pack_channels

    gpus = int(max(src.max(initial=-1), dst.max(initial=-1))) + 1
    pairs, pair, count = np.unique(
        np.minimum(src, dst) * gpus + np.maximum(src, dst), return_inverse=True, return_counts=True
    )
    several = -(-_EACH * count // USABLE_OPERATIONS)  # channels of each pair
    first, begin = np.cumsum(several) - several, np.cumsum(count) - count
    order = np.argsort(pair, kind="stable")
    channel = np.empty(len(src), dtype=np.int64)
    channel[order] = first[pair[order]] + (np.arange(len(src)) - begin[pair[order]]) % several[pair[order]]
    size = _EACH * np.bincount(channel, minlength=int(several.sum()))
    ends = np.stack(np.divmod(np.repeat(pairs, several), max(gpus, 1)), axis=1).reshape(-1)  # the lower GPU first
    rows = np.lexsort((np.arange(len(ends)) // 2, -np.repeat(size, 2), ends))
    ptr = np.searchsorted(ends[rows], np.arange(gpus + 1)).astype(np.int64)
    place = np.empty(len(ends), dtype=np.int64)
    place[rows] = pack_channels(ptr, np.repeat(size, 2)[rows], least, USABLE_OPERATIONS, CHANNELS_PER_BLOCK, _PEERS)
    lower = src > dst
    return place[2 * channel + lower], place[2 * channel + 1 - lower]


def posters_of(src: I64, dst: I64, least: int = 0) -> int:
    """Return the most threadblocks that any GPU needs for messages over NICs."""
    return 1 + int(max((place.max(initial=-1) for place in assign_posters(src, dst, least)), default=-1))
