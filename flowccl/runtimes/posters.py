"""The threadblocks that post messages to the proxy of a NIC, and wait for those that arrive from there.

A threadblock serves several peers. The messages between two GPUs are spread over several channels if one threadblock
would have too many operations.
"""

from collections import defaultdict
from enum import IntEnum

from flowccl.runtimes.limits import CHANNELS_PER_BLOCK, USABLE_OPERATIONS

_EACH = 3  # operations of a message: acquire or wait, barrier, post or release
_PEERS = CHANNELS_PER_BLOCK // 2  # of a threadblock: each may have two buffers that are written


def assign_posters(messages: list[tuple[int, int, int]], least: int) -> dict[int, tuple[int, int]]:
    """Return for each (message, sender, receiver), in order, the numbers of the threadblocks at both ends.

    At least `least` threadblocks of each GPU are used, if it has so many peers.
    """
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for m, src, dst in messages:
        pairs[min(src, dst), max(src, dst)].append(m)
    parts: dict[int, list[tuple[int, tuple[int, int, int]]]] = defaultdict(list)  # of each GPU: (operations, channel)
    channel: dict[int, tuple[int, int, int]] = {}
    for (a, b), found in pairs.items():
        count = -(-_EACH * len(found) // USABLE_OPERATIONS)
        for k, m in enumerate(found):
            channel[m] = a, b, k % count
        for k in range(count):
            size = _EACH * len(found[k::count])
            parts[a].append((size, (a, b, k)))
            parts[b].append((size, (a, b, k)))
    place = {(rank, key): number for rank, rows in parts.items() for key, number in _packed(rows, least).items()}
    return {m: (place[src, channel[m]], place[dst, channel[m]]) for m, src, dst in messages}


class BlockTask(IntEnum):
    """What a threadblock does that has messages of others: it posts them, or waits for them."""

    POST = 0
    AWAIT_NIC = 1
    AWAIT = 2  # what several threadblocks of the GPU use, or the proxy of its NIC
    AWAIT_LATE = 3  # what nothing on the GPU uses


def assign_tasks(tasks: list[tuple[BlockTask, int, int]]) -> dict[tuple[BlockTask, int], int]:
    """Return for each (task, message, GPU) the number of its threadblock there, by task and message.

    The threadblocks repeat their operations. A threadblock with two messages would handle them in the same order in
    every repetition, and one would wait for the other, so each message has a threadblock of its own. Only what is
    waited for at the end shares threadblocks, as far as their channels suffice.
    """
    place: dict[tuple[BlockTask, int], int] = {}
    number: dict[int, int] = defaultdict(int)  # of the next threadblock of each GPU
    held: dict[int, int] = defaultdict(int)
    for task, m, gpu in sorted(tasks):
        if task == BlockTask.AWAIT_LATE and held[gpu] % CHANNELS_PER_BLOCK:
            place[task, m] = number[gpu] - 1
        else:
            place[task, m] = number[gpu]
            number[gpu] += 1
        held[gpu] += task == BlockTask.AWAIT_LATE
    return place


def posters_of(messages: list[tuple[int, int, int]], least: int = 0) -> int:
    """Return the most threadblocks that any GPU needs for messages (message, sender, receiver) over NICs."""
    return 1 + max((number for pair in assign_posters(messages, least).values() for number in pair), default=-1)


def _packed(rows: list[tuple[int, tuple[int, int, int]]], least: int) -> dict[tuple[int, int, int], int]:
    """Pack channels into as few threadblocks as hold them, the one with the fewest operations first."""
    total = sum(size for size, _ in rows)
    count = max(least, -(-total // USABLE_OPERATIONS), -(-len(rows) // CHANNELS_PER_BLOCK), 1)
    while True:
        load, held, place = [0] * count, [0] * count, {}
        for size, key in sorted(rows, key=lambda row: (-row[0], row[1])):
            able = [k for k in range(count) if held[k] < max(_PEERS, -(-len(rows) // count))]
            k = min(able, key=lambda k: (load[k], k))
            place[key], load[k], held[k] = k, load[k] + size, held[k] + 1
        if max(load) <= USABLE_OPERATIONS or count >= len(rows):
            return place
        count += 1
