"""Compiled loops of planning a round: edge coloring of routes with two links."""

import numpy as np

from flowccl.compiled import I64, compiled, maker


@compiled
def edge_coloring(first: I64, second: I64, links: int, most: int) -> I64:
    """Return a color below `most` for each pair of links, such that no link has a color twice (König).

    No link may be in more than `most` pairs, nor be first in one and second in another. If the two links have no free
    color in common, the two colors are swapped along the alternating path.
    """
    pair_of = np.full((links, most), -1, dtype=np.int64)
    color = np.full(len(first), -1, dtype=np.int64)
    for e in range(len(first)):
        a, b = first[e], second[e]
        free_a, free_b = _free(pair_of[a]), _free(pair_of[b])
        if free_a != free_b:
            at, take, give = b, free_a, free_b  # from b on: pairs with color `take` get `give`, and vice versa
            moved = pair_of[at, take]
            pair_of[at, take] = -1
            while moved >= 0:
                other = first[moved] if at == second[moved] else second[moved]
                pair_of[at, give] = moved
                after = pair_of[other, give]
                pair_of[other, give] = moved
                color[moved] = give
                if after < 0:
                    pair_of[other, take] = -1
                at, moved = other, after
                take, give = give, take
        color[e] = free_a
        pair_of[a, free_a] = e
        pair_of[b, free_a] = e
    return color


@maker
def _free(pairs: I64) -> int:
    for c in range(len(pairs)):
        if pairs[c] < 0:
            return c
    return -1
