"""The score of sending a chunk to a node.

`remaining` is, for each destination of each chunk, the distance from the nearest node that has the chunk or is about to
receive it; -1 once this node is the destination itself.
"""

import numpy as np

from flowccl.compiled import F64, inlined, inner, maker
from flowccl.methods.greedy.inputs import GreedyDemand, GreedyNetwork, GreedyParams


@maker
def initial_remaining(net: GreedyNetwork, demand: GreedyDemand) -> F64:
    """The distances at the start, when only the sources have their chunks."""
    remaining = np.empty(len(demand.destination))
    for chunk in range(len(demand.source)):
        for k in range(demand.destination_ptr[chunk], demand.destination_ptr[chunk + 1]):
            remaining[k] = net.distance[demand.source[chunk], demand.destination[k]]
    return remaining


@inlined
def score(
    net: GreedyNetwork, demand: GreedyDemand, params: GreedyParams, remaining: F64, pair: int, chunk: int
) -> float:
    """The score of sending the chunk over the pair; 0 if the chunk gets no closer to any destination."""
    end = net.pair_end[pair]
    gain = 0.0
    tail = 0.0
    for k in range(demand.destination_ptr[chunk], demand.destination_ptr[chunk + 1]):
        away = remaining[k]
        if away > 0:
            nearer = away - net.distance[end, demand.destination[k]]
            if nearer > 0:
                if demand.destination[k] == end and net.pair_cost[pair] > params.patience * away:
                    return 0.0
                gain += nearer
                tail = max(tail, away)
    result = params.gain_weight * gain + params.tail_weight * tail
    if result > 0 and params.noise > 0:
        result *= 1.0 + params.noise * _noise(params.seed, pair, chunk)
    return result


@inlined
def _noise(seed: int, a: int, b: int) -> float:
    """A number in [-1, 1) from a hash of three numbers."""
    x = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(a) * np.uint64(0xBF58476D1CE4E5B9)
    x += np.uint64(b) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    x *= np.uint64(0xD6E8FEB86659FD93)
    x ^= x >> np.uint64(32)
    return float((x >> np.uint64(11)) * (2.0 / 9007199254740992.0) - 1.0)


@inlined
def wants(demand: GreedyDemand, chunk: int, node: int) -> bool:
    """Whether a node is a destination of a chunk."""
    found = False
    for k in range(demand.destination_ptr[chunk], demand.destination_ptr[chunk + 1]):
        found = found or demand.destination[k] == node
    return found


@inner
def lower_remaining(
    net: GreedyNetwork, demand: GreedyDemand, remaining: F64, chunk: int, node: int, there: bool
) -> None:
    """Update the distances for a chunk that will be at a node; with `there`, also that of the node itself."""
    for k in range(demand.destination_ptr[chunk], demand.destination_ptr[chunk + 1]):
        away = net.distance[node, demand.destination[k]]
        if away > 0 or there:
            remaining[k] = min(remaining[k], away)


@inner
def arrive(net: GreedyNetwork, demand: GreedyDemand, remaining: F64, chunk: int, node: int) -> int:
    """Update the distances for a chunk that will be at a node; return the number of destinations newly served."""
    got = 0
    for k in range(demand.destination_ptr[chunk], demand.destination_ptr[chunk + 1]):
        away = net.distance[node, demand.destination[k]]
        if away < remaining[k] or (away == 0 and remaining[k] > -1):
            remaining[k] = away
        if away == 0 and remaining[k] == 0:
            remaining[k] = -1
            got += 1
    return got
