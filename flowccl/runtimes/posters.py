"""The threadblocks of a GPU that post messages and wait for them, where all threadblocks repeat their operations."""

from collections import defaultdict
from enum import IntEnum

from flowccl.runtimes.limits import CHANNELS_PER_BLOCK


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
