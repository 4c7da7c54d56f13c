"""The cut that bounds an allgather most, over all cuts of the machine: by maximum flows, no linear program.

For a far side F with a GPU in it, all blocks of the GPUs outside F must cross into it. The largest ratio of these
blocks to the bandwidth into F is a floor on the time per byte of a block; on machines where only GPUs copy and every
node has as much bandwidth in as out it is the optimum (Edmonds; Frank). Limits are not looked at.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.bounds.cut_families import far_side
from flowccl.bounds.cuts import Cut
from flowccl.topology.topology import Topology

_ROUNDS = 64


@dataclass(frozen=True, eq=False)
class CutOptimum:
    """Seconds per GB of a block, and the cut that says so: its far side, how many blocks cross it."""

    seconds_per_GB: float
    cut: Cut
    blocks: int


def cut_optimum(topology: Topology, sinks: NDArray[np.integer] | None = None) -> CutOptimum:
    """The best cut of all; `sinks` are GPUs one of which is surely beyond it (one per class of alike GPUs will do).

    Dinkelbach's iteration: at a guess of the rate, a minimum cut between all blocks and a sink shows a cut with a
    smaller rate, or that there is none.
    """
    gpus = np.arange(topology.num_gpus)
    best: CutOptimum | None = None
    for sink in (gpus if sinks is None else sinks).tolist():
        far = np.arange(len(topology.nodes)) == sink
        found = _of(topology, far)
        for _ in range(_ROUNDS):
            supply = np.zeros(len(topology.nodes))
            supply[gpus] = 1.0 / found.seconds_per_GB
            supply[sink] = 0.0
            better = _of(topology, far_side(topology, supply, sink))
            if not better.seconds_per_GB > found.seconds_per_GB * (1 + 1e-9):
                break
            found = better
        if best is None or found.seconds_per_GB > best.seconds_per_GB:
            best = found
    assert best is not None
    return best


def _of(topology: Topology, far: NDArray[np.bool_]) -> CutOptimum:
    """The floor of one cut, from its links themselves; nothing where no block crosses it."""
    cut = Cut(topology, "the best cut", far)
    blocks = int((~far[: topology.num_gpus]).sum())
    GBps = float(topology.link_GBps[cut.links].sum())
    if not blocks:
        return CutOptimum(0.0, cut, 0)
    return CutOptimum(blocks / GBps if GBps else np.inf, cut, blocks)
