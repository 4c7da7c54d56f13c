"""Quick routing in compiled code: chunks take the cheapest paths in turn, and loaded links delay later chunks."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import I64, Bool, compiled, inner

_NONE = np.int64(-1)
_NEVER = np.int64(np.iinfo(np.int64).max)


class RoutingPairs(NamedTuple):
    """Pairs of a chunk and an arc, by chunk and source; `first[chunk * nodes + node]` is the first that leaves a node.

    Pair p occupies `resource` for `busy_ps` in the rows from `hop[p]` to `hop[p + 1] - 1`. The members of orbit k are
    `member[orbit_ptr[k]:orbit_ptr[k + 1]]`.
    """

    first: I64
    chunk: I64
    src: I64
    dst: I64
    takes_ps: I64
    hop: I64
    resource: I64
    busy_ps: I64
    orbit: I64
    orbit_ptr: I64
    member: I64


@compiled
def choose_quickly(pairs: RoutingPairs, wanted: Bool, arrival: I64, load_ps: I64, chosen: Bool) -> bool:
    """Choose pairs that bring every chunk to the nodes that want it; False if there is no path to one of them.

    `wanted` and `arrival` have a row for each chunk and a column for each node; nodes that have a chunk have a time,
    others -1.
    """
    chunks, nodes = wanted.shape
    best, by, done = np.empty(nodes, np.int64), np.empty(nodes, np.int64), np.empty(nodes, np.bool_)
    left = True
    while left:
        left = False
        for chunk in range(chunks):
            if not wanted[chunk].any():
                continue
            left = True
            node = _nearest(pairs, chunk, wanted[chunk], arrival[chunk], load_ps, best, by, done)
            if node < 0:
                return False
            path = 0
            while by[node] >= 0:  # back to the tree; `best` is free now
                best[path] = by[node]
                node, path = pairs.src[by[node]], path + 1
            for at in range(path - 1, -1, -1):
                _take(pairs, best[at], wanted, arrival, load_ps, chosen)
    return True


@inner
def _nearest(
    pairs: RoutingPairs, chunk: int, wanted: Bool, arrival: I64, load_ps: I64, best: I64, by: I64, done: Bool
) -> int:
    """The node of those wanted that is cheapest to reach (Dijkstra); `by` has the pair into each node of its path."""
    nodes = len(wanted)
    for k in range(nodes):
        best[k] = arrival[k] if arrival[k] >= 0 else _NEVER
    by[:], done[:] = _NONE, False
    while True:
        node = -1
        for other in range(nodes):
            if not done[other] and best[other] < _NEVER and (node < 0 or best[other] < best[node]):
                node = other
        if node < 0 or wanted[node]:
            return node
        done[node] = True
        row = chunk * nodes + node
        for pair in range(pairs.first[row], pairs.first[row + 1]):
            end = pairs.dst[pair]
            if arrival[end] >= 0:
                continue
            at = best[node]
            for hop in range(pairs.hop[pair], pairs.hop[pair + 1]):
                at = max(at, load_ps[pairs.resource[hop]])
            if at + pairs.takes_ps[pair] < best[end]:
                best[end], by[end] = at + pairs.takes_ps[pair], pair


@inner
def _take(pairs: RoutingPairs, pair: int, wanted: Bool, arrival: I64, load_ps: I64, chosen: Bool) -> None:
    """Choose a pair and its images under the symmetries, as far as their ends do not have the chunk."""
    for row in range(pairs.orbit_ptr[pairs.orbit[pair]], pairs.orbit_ptr[pairs.orbit[pair] + 1]):
        image = pairs.member[row]
        chunk, src, dst = pairs.chunk[image], pairs.src[image], pairs.dst[image]
        if arrival[chunk, dst] >= 0:
            continue
        chosen[image] = True
        arrival[chunk, dst] = max(arrival[chunk, src], 0) + pairs.takes_ps[image]
        wanted[chunk, dst] = False
        for hop in range(pairs.hop[image], pairs.hop[image + 1]):
            load_ps[pairs.resource[hop]] += pairs.busy_ps[hop]
