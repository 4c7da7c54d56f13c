"""Compiled loop of method `tree-exchange`: cubes of roots and trees to them that balance the load of the links."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import I32, I64, compiled, inner


class NeighbourPairs(NamedTuple):
    """Neighbours: pair p leads from `src[p]` to `end[p]` over links `link[link_ptr[p] : link_ptr[p + 1]]`.

    `out_ptr`, `out` list the pairs from each node, `into_ptr`, `into` those into it.
    """

    src: I32
    end: I32
    time_ps: I64
    link_ptr: I64
    link: I32
    out_ptr: I64
    out: I64
    into_ptr: I64
    into: I64


class Cubes(NamedTuple):
    """Cubes of roots: those of owner o are `ptr[o]` to `ptr[o + 1] - 1`.

    `to_ps` and `from_ps` have the time between each node and the nearest root; `exchange` has the pairs between roots.
    """

    ptr: I64
    to_ps: I64
    from_ps: I64
    exchange: I64


@inner
def _added(pairs: NeighbourPairs, load_ps: I64, busy_ps: I64, pair: int) -> int:
    """What a chunk more on a pair adds to the sum of the squares of the loads."""
    total = 0
    for h in range(pairs.link_ptr[pair], pairs.link_ptr[pair + 1]):
        link = pairs.link[h]
        total += busy_ps[link] * (2 * load_ps[link] + busy_ps[link])
    return total


@inner
def _count(pairs: NeighbourPairs, load_ps: I64, busy_ps: I64, pair: int, sign: int) -> None:
    """Count a chunk on a pair, or remove it."""
    for h in range(pairs.link_ptr[pair], pairs.link_ptr[pair + 1]):
        load_ps[pairs.link[h]] += sign * busy_ps[pairs.link[h]]


@inner
def _grow(
    pairs: NeighbourPairs, load_ps: I64, busy_ps: I64, away_ps: I64, ptr: I64, listed: I64, far: I32, chosen: I64
) -> int:
    """Choose for each node the pair to or from a nearer one that adds least; count them; return what they add.

    `chosen[node]` is -1 at roots. `far` is the other end of each pair.
    """
    total = 0
    for node in range(len(away_ps)):
        chosen[node] = -1
        if away_ps[node] <= 0:
            continue
        least = -1
        for k in range(ptr[node], ptr[node + 1]):
            pair = listed[k]
            if away_ps[far[pair]] + pairs.time_ps[pair] > away_ps[node]:
                continue
            adds = _added(pairs, load_ps, busy_ps, pair)
            if least < 0 or adds < least:
                least, chosen[node] = adds, pair
        total += least
        _count(pairs, load_ps, busy_ps, chosen[node], 1)
    return total


@compiled
def balanced_forests(
    pairs: NeighbourPairs, cubes: Cubes, busy_ps: I64, owner: I64, tried: I64
) -> tuple[I64, I64, I64, I64]:
    """The cube of every chunk and its pairs up to and down from the roots, chosen in several sweeps; and the loads.

    `tried[sweep, chunk]` are the cubes of the owner to try, as random numbers. `busy_ps` is the time of a chunk on each
    link. In each sweep, every chunk in turn is removed and planned again with the best of some cubes.
    """
    chunks, nodes = len(owner), cubes.to_ps.shape[1]
    cube = np.full(chunks, -1, np.int64)
    up, down = np.full((chunks, nodes), -1, np.int64), np.full((chunks, nodes), -1, np.int64)
    load_ps = np.zeros(len(busy_ps), np.int64)
    new_up, new_down = np.empty(nodes, np.int64), np.empty(nodes, np.int64)
    for sweep in range(tried.shape[0]):
        for chunk in range(chunks):
            before = cube[chunk]
            if before >= 0:
                for pair in cubes.exchange[before]:
                    _count(pairs, load_ps, busy_ps, pair, -1)
                for node in range(nodes):
                    for pair in (up[chunk, node], down[chunk, node]):
                        if pair >= 0:
                            _count(pairs, load_ps, busy_ps, pair, -1)
            least = -1
            first, some = cubes.ptr[owner[chunk]], cubes.ptr[owner[chunk] + 1] - cubes.ptr[owner[chunk]]
            for turn in range(-1, tried.shape[2]):
                new = before if turn < 0 else first + tried[sweep, chunk, turn] % some
                if new < 0 or (turn >= 0 and new == before):
                    continue
                total = 0
                for pair in cubes.exchange[new]:
                    total += _added(pairs, load_ps, busy_ps, pair)
                    _count(pairs, load_ps, busy_ps, pair, 1)
                total += _grow(pairs, load_ps, busy_ps, cubes.to_ps[new], pairs.out_ptr, pairs.out, pairs.end, new_up)
                total += _grow(
                    pairs, load_ps, busy_ps, cubes.from_ps[new], pairs.into_ptr, pairs.into, pairs.src, new_down
                )
                for pair in cubes.exchange[new]:
                    _count(pairs, load_ps, busy_ps, pair, -1)
                for node in range(nodes):
                    for pair in (new_up[node], new_down[node]):
                        if pair >= 0:
                            _count(pairs, load_ps, busy_ps, pair, -1)
                if least < 0 or total < least:
                    least, cube[chunk] = total, new
                    up[chunk, :], down[chunk, :] = new_up, new_down
            for pair in cubes.exchange[cube[chunk]]:
                _count(pairs, load_ps, busy_ps, pair, 1)
            for node in range(nodes):
                for pair in (up[chunk, node], down[chunk, node]):
                    if pair >= 0:
                        _count(pairs, load_ps, busy_ps, pair, 1)
    return cube, up, down, load_ps
