"""The bottleneck cut of an allgather, over all cuts of the machine, by maximum flows.

For a far side F with a GPU in it, all blocks of the GPUs outside F must cross into it. The largest ratio of these
blocks to the bandwidth into F is a lower bound on the time per byte of a block. On machines where only GPUs copy and
every node has the same bandwidth in and out it is the optimum (Edmonds; Frank). Limits are ignored.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.bounds.cut_families import far_side
from flowccl.bounds.cuts import Cut
from flowccl.topology.topology import Topology

_ROUNDS = 64


@dataclass(frozen=True, eq=False)
class BottleneckCut:
    """Seconds per GB of a block, the cut that proves it, and the number of blocks that cross the cut."""

    seconds_per_GB: float
    cut: Cut
    blocks: int


def bottleneck_cut(topology: Topology, sinks: NDArray[np.integer] | None = None) -> BottleneckCut:
    """Return the cut with most blocks per bandwidth.

    `sinks` are GPUs of which at least one is on its far side; one GPU per symmetry class is enough. Dinkelbach's
    iteration: at a guessed rate, a minimum cut between all blocks and a sink has a smaller rate, or proves that no cut
    has.
    """
    gpus = np.arange(topology.num_gpus)
    best: BottleneckCut | None = None
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
        if best is None or found.seconds_per_GB > best.seconds_per_GB * (1 + 1e-12):
            best = found
    assert best is not None
    return best


def _of(topology: Topology, far: NDArray[np.bool_]) -> BottleneckCut:
    """The bound of one cut, computed from its links; 0 if no block crosses it."""
    cut = Cut(topology, "the bottleneck cut", far)
    blocks = int((~far[: topology.num_gpus]).sum())
    GBps = float(topology.link_GBps[cut.links].sum())
    if not blocks:
        return BottleneckCut(0.0, cut, 0)
    return BottleneckCut(blocks / GBps if GBps else np.inf, cut, blocks)
