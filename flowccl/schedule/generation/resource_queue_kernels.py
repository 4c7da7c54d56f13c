"""The messages of the engine that wait for links, limits, groups of threadblocks and proxies, compiled."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import I64, Queue, inner, maker, put
from flowccl.schedule.generation.pairing_kernels import meld, without_top

NEVER = np.iinfo(np.int64).max


class ResourceQueues(NamedTuple):
    """The messages that wait for each resource, in pairing heaps, and when the first of them is tried again."""

    top: I64
    event: I64  # NEVER: none is due
    aside: I64  # messages that were tried in the turn of the resource and still wait for it
    child: I64
    sibling: I64


@maker
def nothing_waits(resources: int, count: int) -> ResourceQueues:
    """No message waits."""
    return ResourceQueues(
        np.full(resources, -1, dtype=np.int64),
        np.full(resources, NEVER, dtype=np.int64),
        np.full(resources, -1, dtype=np.int64),
        np.full(count, -1, dtype=np.int64),
        np.full(count, -1, dtype=np.int64),
    )


@inner
def wait(waiting: ResourceQueues, rank: I64, queue: Queue, resource: int, i: int, again: int, is_tried: bool) -> None:
    """Let a message wait for a resource until a time at least; one that was tried in its turn is put aside."""
    if is_tried:
        waiting.sibling[i] = waiting.aside[resource]
        waiting.aside[resource] = i
    else:
        waiting.top[resource] = meld(waiting.child, waiting.sibling, rank, waiting.top[resource], i)
    if again < waiting.event[resource]:
        waiting.event[resource] = again
        put(queue, again, 2 * len(rank) + resource)


@inner
def next_waiting(waiting: ResourceQueues, rank: I64, resource: int) -> int:
    """Take the first message that waits for a resource; -1 where there is none."""
    i: int = waiting.top[resource]
    if i >= 0:
        waiting.top[resource] = without_top(waiting.child, waiting.sibling, rank, i)
    return i


@inner
def end_turn(waiting: ResourceQueues, rank: I64, resource: int) -> None:
    """Let the messages that were put aside wait again."""
    i = waiting.aside[resource]
    waiting.aside[resource] = -1
    while i >= 0:
        after = waiting.sibling[i]
        waiting.sibling[i] = -1
        waiting.top[resource] = meld(waiting.child, waiting.sibling, rank, waiting.top[resource], i)
        i = after
