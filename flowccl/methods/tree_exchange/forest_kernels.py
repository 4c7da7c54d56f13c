"""Compiled loop of method `tree-exchange`: cubes of roots, and trees to them, that balance the links over time.

The longest path of a chunk is divided into stages, each as long as a hop. A transfer towards the roots must start in a
certain stage at the latest, a transfer from the roots in a certain one at the earliest, and a transfer without slack
in exactly one. So for every link and stage there are three loads: what must be sent by the end of the stage, what
cannot be sent before it, and what is to be sent in it. Each is divided by the time that there is for it, and the sum of
their 16th powers is small where the largest of them is. The schedule may be longer than the longest path by `slack_ps`,
which is time for any of them.
"""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import I32, I64, Bool, compiled, inner


class NeighbourPairs(NamedTuple):
    """Neighbours: pair p leads over links `link[link_ptr[p] : link_ptr[p + 1]]` and takes `time_ps[p]`."""

    time_ps: I64
    link_ptr: I64
    link: I32


class TreeSide(NamedTuple):
    """The trees to the roots of all cubes, or those from the roots.

    `away_ps[cube, node]` is the time between a node and its nearest root, `order[cube]` are the nodes from the farthest
    to the roots, and `stage[cube, node]` is the stage of the pair between a node and its tree. A path with less than
    `tight_ps` has slack. Node n has the pairs `pair[ptr[n] : ptr[n + 1]]`; `far[p]` is the other end of pair p.
    """

    away_ps: I64
    order: I64
    stage: I64
    tight_ps: int
    ptr: I64
    pair: I64
    far: I32


class Exchange(NamedTuple):
    """The pairs between the roots of each cube, and the stage of each."""

    pair: I64
    stage: I64


class Trees(NamedTuple):
    """Of every chunk: the pair between each node and its tree, -1 at roots, and whether its path has no slack."""

    pair: I64
    tight: Bool


class _Loads(NamedTuple):
    """The time of a stage and of a chunk; what each link carries until a stage ends, from its start on, and in it."""

    hop_ps: int
    slack_ps: int
    chunk_ps: I64
    until_ps: I64
    from_ps: I64
    within_ps: I64


@inner
def _rise(load_ps: int, chunk_ps: int, time_ps: int) -> float:
    """How much the 16th power of a load grows by a chunk, if there is this time for it."""
    before, after = load_ps / time_ps, (load_ps + chunk_ps) / time_ps
    for _ in range(4):
        before, after = before * before, after * after
    return after - before


@inner
def _added(pairs: NeighbourPairs, loads: _Loads, pair: int, stage: int, tight: bool) -> float:
    """What a chunk more on a pair adds to the sum over all loads."""
    total, stages = 0.0, loads.until_ps.shape[1]
    for h in range(pairs.link_ptr[pair], pairs.link_ptr[pair + 1]):
        link = pairs.link[h]
        chunk_ps = loads.chunk_ps[link]
        for k in range(stage, stages):
            total += _rise(loads.until_ps[link, k], chunk_ps, k * loads.hop_ps + loads.slack_ps)
        for k in range(stage + 1):
            total += _rise(loads.from_ps[link, k], chunk_ps, (stages - 1 - k) * loads.hop_ps + loads.slack_ps)
        if tight:
            total += _rise(loads.within_ps[link, stage], chunk_ps, loads.slack_ps)
    return total


@inner
def _count(pairs: NeighbourPairs, loads: _Loads, pair: int, stage: int, tight: bool, sign: int) -> None:
    """Count a chunk on a pair, or remove it."""
    for h in range(pairs.link_ptr[pair], pairs.link_ptr[pair + 1]):
        link = pairs.link[h]
        change_ps = sign * loads.chunk_ps[link]
        for k in range(stage, loads.until_ps.shape[1]):
            loads.until_ps[link, k] += change_ps
        for k in range(stage + 1):
            loads.from_ps[link, k] += change_ps
        if tight:
            loads.within_ps[link, stage] += change_ps


@inner
def _grow(
    pairs: NeighbourPairs, side: TreeSide, loads: _Loads, cube: int, trees: Trees, row: int, beyond_ps: I64
) -> float:
    """Choose for each node the pair to or from a nearer one that adds least; count them; return what they add.

    Nodes choose from the farthest to the nearest; `beyond_ps` is the longest path behind each of them.
    """
    total = 0.0
    for node in range(len(beyond_ps)):
        beyond_ps[node] = 0
    for place in range(side.order.shape[1]):
        node = side.order[cube, place]
        away_ps, stage, chosen, least = side.away_ps[cube, node], side.stage[cube, node], -1, -1.0
        if away_ps > 0:
            tight = beyond_ps[node] + away_ps >= side.tight_ps
            for k in range(side.ptr[node], side.ptr[node + 1]):
                pair = side.pair[k]
                if side.away_ps[cube, side.far[pair]] + pairs.time_ps[pair] <= away_ps:
                    adds = _added(pairs, loads, pair, stage, tight)
                    if least < 0 or adds < least:
                        least, chosen = adds, pair
            far = side.far[chosen]
            beyond_ps[far] = max(beyond_ps[far], beyond_ps[node] + pairs.time_ps[chosen])
            total += least
            _count(pairs, loads, chosen, stage, tight, 1)
            trees.tight[row, node] = tight
        trees.pair[row, node] = chosen
    return total


@inner
def _count_trees(
    pairs: NeighbourPairs, side: TreeSide, loads: _Loads, cube: int, trees: Trees, row: int, sign: int
) -> None:
    """Count the trees of a chunk, or remove them."""
    for node in range(trees.pair.shape[1]):
        if trees.pair[row, node] >= 0:
            _count(pairs, loads, trees.pair[row, node], side.stage[cube, node], trees.tight[row, node], sign)


@inner
def _count_exchange(pairs: NeighbourPairs, exchange: Exchange, loads: _Loads, cube: int, sign: int) -> float:
    """Count the exchange of a chunk, or remove it; return what it adds."""
    total = 0.0
    for k in range(exchange.pair.shape[1]):
        if sign > 0:
            total += _added(pairs, loads, exchange.pair[cube, k], exchange.stage[k], True)
        _count(pairs, loads, exchange.pair[cube, k], exchange.stage[k], True, sign)
    return total


@compiled
def balanced_forests(
    pairs: NeighbourPairs,
    up: TreeSide,
    exchange: Exchange,
    down: TreeSide,
    hop_ps: int,
    slack_ps: int,
    chunk_ps: I64,
    tried: I64,
) -> tuple[I64, I64, I64]:
    """The cube of every chunk and its pairs up to and down from the roots, chosen in several sweeps.

    `tried[sweep, chunk]` are the cubes to try. `chunk_ps` is the time of a chunk on each link. In each sweep, every
    chunk in turn is removed and planned again with the best of some cubes.
    """
    sweeps, chunks, most = tried.shape
    nodes, shape = up.order.shape[1], (len(chunk_ps), down.stage.max() + 1)
    tables = (np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64))
    loads = _Loads(hop_ps, slack_ps, chunk_ps, tables[0], tables[1], tables[2])
    cube, beyond_ps = np.full(chunks, -1, np.int64), np.zeros(nodes, np.int64)
    # The last row of each table has the trees that are tried.
    reduce = Trees(np.full((chunks + 1, nodes), -1, np.int64), np.zeros((chunks + 1, nodes), np.bool_))
    broadcast = Trees(np.full((chunks + 1, nodes), -1, np.int64), np.zeros((chunks + 1, nodes), np.bool_))
    for sweep in range(sweeps):
        for chunk in range(chunks):
            before, least = cube[chunk], -1.0
            if before >= 0:
                _count_exchange(pairs, exchange, loads, before, -1)
                _count_trees(pairs, up, loads, before, reduce, chunk, -1)
                _count_trees(pairs, down, loads, before, broadcast, chunk, -1)
            for turn in range(-1, most):
                new = before if turn < 0 else tried[sweep, chunk, turn]
                if new < 0 or (turn >= 0 and new == before):
                    continue
                total = _count_exchange(pairs, exchange, loads, new, 1)
                total += _grow(pairs, up, loads, new, reduce, chunks, beyond_ps)
                total += _grow(pairs, down, loads, new, broadcast, chunks, beyond_ps)
                _count_exchange(pairs, exchange, loads, new, -1)
                _count_trees(pairs, up, loads, new, reduce, chunks, -1)
                _count_trees(pairs, down, loads, new, broadcast, chunks, -1)
                if least < 0 or total < least:
                    least, cube[chunk] = total, new
                    reduce.pair[chunk], reduce.tight[chunk] = reduce.pair[chunks], reduce.tight[chunks]
                    broadcast.pair[chunk], broadcast.tight[chunk] = broadcast.pair[chunks], broadcast.tight[chunks]
            _count_exchange(pairs, exchange, loads, cube[chunk], 1)
            _count_trees(pairs, up, loads, cube[chunk], reduce, chunk, 1)
            _count_trees(pairs, down, loads, cube[chunk], broadcast, chunk, 1)
    return cube, reduce.pair[:chunks], broadcast.pair[:chunks]
