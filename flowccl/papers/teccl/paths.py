"""Decomposition of flows over time into paths: each arrival is followed back to its source.

A path takes the smallest amount along it, so every path uses up a flow or a stay at a node. There are at most as many
paths as positive variables.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.papers.teccl.flows import FlowProgram

_ZERO = 1e-7


@dataclass(frozen=True, slots=True)
class EpochPath:
    """A path of `amount` chunks from `source` to `destination`."""

    source: int
    destination: int
    amount: float
    sends: tuple[tuple[int, int], ...]
    """(arc, epoch), in order."""


def epoch_paths(
    program: FlowProgram, flow: NDArray[np.float64], keep: NDArray[np.float64], take: NDArray[np.float64]
) -> list[EpochPath]:
    """Return the paths of the flows of a solution."""
    result: list[EpochPath] = []
    for row, source in enumerate(program.sources.tolist()):
        result += _paths_of_source(program, source, flow[row].copy(), keep[row].copy(), take[row].copy())
    return result


def _paths_of_source(
    program: FlowProgram, source: int, flow: NDArray[np.float64], keep: NDArray[np.float64], take: NDArray[np.float64]
) -> list[EpochPath]:
    arcs, epochs = np.nonzero(flow > _ZERO)
    into: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)  # (node, epoch) -> (arc, start)
    for arc, epoch in zip(arcs.tolist(), epochs.tolist(), strict=True):
        into[int(program.grid.head[arc]), epoch + int(program.delay[arc])].append((arc, epoch))
    result = []
    for node, epoch in np.argwhere(take > _ZERO).tolist():
        while take[node, epoch] > _ZERO:
            steps_back = _walk_back(program, source, node, epoch, flow, keep, into)
            if steps_back is None:
                break
            sends, rests = steps_back
            amount = min([float(take[node, epoch]), *(float(flow[s]) for s in sends), *(float(keep[r]) for r in rests)])
            take[node, epoch] -= amount
            for send in sends:
                flow[send] -= amount
            for rest in rests:
                keep[rest] -= amount
            result.append(EpochPath(source, node, amount, tuple(sends)))
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
    """Return one path back to the source as (sends, rests); None if only rounding errors are left."""
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
