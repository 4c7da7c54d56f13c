"""Flows over time as the ways of chunks: what arrives is followed back to its source, part by part.

Each walk takes as much as all of it has in common, so every walk uses up a flow or a rest: there are at most as many
walks as there are amounts above zero.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.methods.teccl.flows import FlowProgram

_ZERO = 1e-7


@dataclass(frozen=True, slots=True)
class Way:
    """So much of what `source` has for `destination` goes over these arcs, from these epochs on."""

    source: int
    destination: int
    amount: float
    sends: tuple[tuple[int, int], ...]
    """(arc, epoch), in order."""


def ways_of(
    program: FlowProgram, flow: NDArray[np.float64], keep: NDArray[np.float64], take: NDArray[np.float64]
) -> list[Way]:
    """The flows of a solution as ways."""
    result: list[Way] = []
    for row, source in enumerate(program.sources.tolist()):
        result += _ways_of_source(program, source, flow[row].copy(), keep[row].copy(), take[row].copy())
    return result


def _ways_of_source(
    program: FlowProgram, source: int, flow: NDArray[np.float64], keep: NDArray[np.float64], take: NDArray[np.float64]
) -> list[Way]:
    arcs, epochs = np.nonzero(flow > _ZERO)
    into: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)  # (node, epoch) -> (arc, start)
    for arc, epoch in zip(arcs.tolist(), epochs.tolist(), strict=True):
        into[int(program.grid.head[arc]), epoch + int(program.delay[arc, epoch])].append((arc, epoch))
    result = []
    for node, epoch in np.argwhere(take > _ZERO).tolist():
        while take[node, epoch] > _ZERO:
            walk = _walk_back(program, source, node, epoch, flow, keep, into)
            if walk is None:
                break
            sends, rests = walk
            amount = min([float(take[node, epoch]), *(float(flow[s]) for s in sends), *(float(keep[r]) for r in rests)])
            take[node, epoch] -= amount
            for send in sends:
                flow[send] -= amount
            for rest in rests:
                keep[rest] -= amount
            result.append(Way(source, node, amount, tuple(sends)))
    return result


def _walk_back(
    program: FlowProgram,
    source: int,
    node: int,
    epoch: int,
    flow: NDArray[np.float64],
    keep: NDArray[np.float64],
    into: dict[tuple[int, int], list[tuple[int, int]]],
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]] | None:
    """One way back to the source: (sends, rests), or None where only noise is left."""
    sends: list[tuple[int, int]] = []
    rests: list[tuple[int, int]] = []
    while node != source or epoch > 0:
        came = next((send for send in into[node, epoch] if flow[send] > _ZERO), None)
        if came is not None:
            sends.append(came)
            node, epoch = int(program.grid.tail[came[0]]), came[1]
        elif epoch > 0 and keep[node, epoch - 1] > _ZERO:
            rests.append((node, epoch - 1))
            epoch -= 1
        else:
            return None
    return sends[::-1], rests
