"""A machine without some of its GPUs: the same nodes, but no links from or to those."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.topology.topology import Topology


def without(topology: Topology, gpus: Collection[int]) -> tuple[Topology, NDArray[np.int64]]:
    """The machine in which these GPUs have no links, and the number that each link left has in the whole machine."""
    gone = np.zeros(len(topology.nodes), dtype=np.bool_)
    gone[list(gpus)] = True
    kept = np.flatnonzero(~(gone[topology.link_src] | gone[topology.link_dst])).astype(np.int64)
    place = {int(link): i for i, link in enumerate(kept)}
    limits = []
    for limit in topology.limits:
        members = tuple(place[link] for link in limit.links if link in place)
        if members:
            limits.append(replace(limit, links=members))
    links = tuple(topology.links[link] for link in kept)
    return Topology(f"{topology.name} without {len(gpus)} gpus", topology.nodes, links, tuple(limits)), kept
