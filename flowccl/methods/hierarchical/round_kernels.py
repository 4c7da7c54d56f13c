"""Rounds of transfers between ports, such that no port has two transfers in a round: edges of a graph get colours."""

import numpy as np

from flowccl.compiled import I64, compiled, inner


@inner
def _first_free(edge_at: I64, vertex: int, start: int) -> int:
    """The first colour from `start` on that no edge of a vertex has; the number of colours where there is none."""
    colour = start
    while colour < edge_at.shape[1] and edge_at[vertex, colour] >= 0:
        colour += 1
    return colour


@inner
def _swap(edge_at: I64, lowest: I64, out: I64, into: I64, vertex: int, one: int, other: int) -> None:
    """Exchange two colours on the path from a vertex whose edges have them in turn, `one` first: that gets free."""
    at, has, gets = vertex, one, other
    edge = edge_at[vertex, one]
    edge_at[vertex, one], lowest[vertex] = -1, min(lowest[vertex], one)
    while edge >= 0:
        far = 2 * into[edge] + 1 if at == 2 * out[edge] else 2 * out[edge]
        following = edge_at[far, gets]
        edge_at[at, gets], edge_at[far, gets] = edge, edge
        if following < 0:
            edge_at[far, has], lowest[far] = -1, min(lowest[far], has)
        edge, at, has, gets = following, far, gets, has


@compiled
def edge_colours(out: I64, into: I64, ports: int, degree: int) -> I64:
    """A colour for each transfer from a port `out` to a port `into`, such that no port has two of one colour.

    A transfer gets the least colour that both of its ports have free. Where that is not below `degree`, the most
    transfers of a port, two colours are exchanged on a path of transfers from its receiver, which frees one for it: by
    König's theorem `degree` colours suffice. Port k sends as vertex 2 k and receives as vertex 2 k + 1.
    """
    edge_at = np.full((2 * ports, degree), -1, np.int64)
    lowest = np.zeros(2 * ports, np.int64)  # the vertex has no lower colour free
    for edge in range(len(out)):
        src, dst = 2 * out[edge], 2 * into[edge] + 1
        lowest[src] = at_src = _first_free(edge_at, src, lowest[src])
        lowest[dst] = at_dst = _first_free(edge_at, dst, lowest[dst])
        while at_src != at_dst:
            if at_src < at_dst:
                at_src = _first_free(edge_at, src, at_dst)
            else:
                at_dst = _first_free(edge_at, dst, at_src)
        colour = at_src
        if colour == degree:
            colour = lowest[src]
            _swap(edge_at, lowest, out, into, dst, colour, lowest[dst])
        edge_at[src, colour], edge_at[dst, colour] = edge, edge
    colour_of = np.full(len(out), -1, np.int64)
    for port in range(0, 2 * ports, 2):
        for colour in range(degree):
            if edge_at[port, colour] >= 0:
                colour_of[edge_at[port, colour]] = colour
    return colour_of


@compiled
def with_neighbours(rounds: I64, ptr: I64, after: I64) -> I64:
    """The rounds of all transfers, which are listed after those that they wait for; -1 stands for none as yet.

    A transfer gets the first round of those that wait for it, or else the last round of those that it waits for.
    """
    result = rounds.copy()
    for i in range(len(rounds) - 1, -1, -1):
        for k in range(ptr[i] if rounds[i] < 0 else ptr[i + 1], ptr[i + 1]):
            other = result[after[k]]
            if other >= 0 and (result[i] < 0 or other < result[i]):
                result[i] = other
    known = result.copy()
    for i in range(len(rounds)):
        for k in range(ptr[i], ptr[i + 1]):
            if known[after[k]] < 0:
                result[after[k]] = max(result[after[k]], result[i])
    return np.maximum(result, 0)
