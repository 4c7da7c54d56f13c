"""Decomposition of flows over time into paths."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.papers.flow_paths import NOTHING, flow_paths
from flowccl.papers.teccl.flows import FlowProgram

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EpochPath:
    """A path of `amount` chunks from `source` to `destination`."""

    source: int
    destination: int
    amount: float
    sends: tuple[tuple[int, int], ...]
    """(arc, epoch), in order."""


def epoch_paths(program: FlowProgram, send: F64, keep: F64, take: F64) -> Iterator[EpochPath]:
    """Yield the paths of a solution: of flows between nodes at epochs, by sends and by rests."""
    grid, width = program.grid, program.num_epochs + 1
    for row, source in enumerate(program.sources.tolist()):
        arc, epoch = np.nonzero(send[row] > NOTHING)
        node, rest = np.nonzero(keep[row] > NOTHING)
        tail = np.concatenate((grid.tail[arc] * width + epoch, node * width + rest))
        head = np.concatenate((grid.head[arc] * width + epoch + program.delay[arc], node * width + rest + 1))
        amount = np.concatenate((send[row][arc, epoch], keep[row][node, rest]))
        for path in flow_paths(tail, head, amount, source * width, take[row].reshape(-1)):
            sends = tuple((int(arc[hop]), int(epoch[hop])) for hop in path.arcs if hop < len(arc))
            yield EpochPath(source, path.end // width, path.amount, sends)
