"""How much it helps to have a chunk at a node.

`left` is how far each destination of each chunk still is from the nearest node that has the chunk or will; -1 where it
is the destination itself.
"""

import numpy as np

from flowccl.compiled import F64, inlined, inner, maker
from flowccl.methods.greedy.problem import Knobs, Net, Work


@maker
def first_left(net: Net, work: Work) -> F64:
    """At the start, only the sources have their chunks."""
    left = np.empty(len(work.destination))
    for chunk in range(len(work.source)):
        for k in range(work.destination_ptr[chunk], work.destination_ptr[chunk + 1]):
            left[k] = net.distance[work.source[chunk], work.destination[k]]
    return left


@inlined
def score(net: Net, work: Work, knobs: Knobs, left: F64, pair: int, chunk: int) -> float:
    """How much it helps to have the chunk at the end of the pair; 0 when it brings it nearer to nobody."""
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
    result = knobs.gain_weight * gain + knobs.tail_weight * tail
    if result > 0 and knobs.noise > 0:
        result *= 1.0 + knobs.noise * _noise(knobs.seed, pair, chunk)
    return result


@inlined
def _noise(seed: int, a: int, b: int) -> float:
    """A number in [-1, 1) from a hash of three."""
    x = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(a) * np.uint64(0xBF58476D1CE4E5B9)
    x += np.uint64(b) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    x *= np.uint64(0xD6E8FEB86659FD93)
    x ^= x >> np.uint64(32)
    return float((x >> np.uint64(11)) * (2.0 / 9007199254740992.0) - 1.0)


@inlined
def wants(work: Work, chunk: int, node: int) -> bool:
    """Whether a node is a destination of a chunk."""
    found = False
    for k in range(work.destination_ptr[chunk], work.destination_ptr[chunk + 1]):
        found = found or work.destination[k] == node
    return found


@inner
def come_nearer(net: Net, work: Work, left: F64, chunk: int, node: int, there: bool) -> None:
    """A chunk will be at a node, which is nearer to others; `there` says whether the node itself counts too."""
    for k in range(work.destination_ptr[chunk], work.destination_ptr[chunk + 1]):
        away = net.distance[node, work.destination[k]]
        if away > 0 or there:
            left[k] = min(left[k], away)


@inner
def arrive(net: Net, work: Work, left: F64, chunk: int, node: int) -> int:
    """A chunk will be at a node; returns how many destinations have got it that had not."""
    got = 0
    for k in range(work.destination_ptr[chunk], work.destination_ptr[chunk + 1]):
        away = net.distance[node, work.destination[k]]
        if away < left[k] or (away == 0 and left[k] > -1):
            left[k] = away
        if away == 0 and left[k] == 0:
            left[k] = -1
            got += 1
    return got
