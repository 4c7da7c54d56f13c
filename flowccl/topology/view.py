"""A machine without some of its links or GPUs: the same nodes, but fewer links."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.topology.topology import Topology


def with_links(topology: Topology, keep: NDArray[np.bool_], words: str) -> tuple[Topology, NDArray[np.int64]]:
    """The machine with only these links, and the number that each of them has in the whole machine."""
    kept = np.flatnonzero(keep).astype(np.int64)
    place = {int(link): i for i, link in enumerate(kept)}
    limits = []
    for limit in topology.limits:
        members = tuple(place[link] for link in limit.links if link in place)
        if members:
            limits.append(replace(limit, links=members))
    links = tuple(topology.links[link] for link in kept)
    return Topology(f"{topology.name}, {words}", topology.nodes, links, tuple(limits)), kept


def without(topology: Topology, gpus: Collection[int]) -> tuple[Topology, NDArray[np.int64]]:
    """The machine in which these GPUs have no links, and the number that each link left has in the whole machine."""
    gone = np.zeros(len(topology.nodes), dtype=np.bool_)
    gone[list(gpus)] = True
    keep = ~(gone[topology.link_src] | gone[topology.link_dst])
    return with_links(topology, keep, f"without {len(gpus)} gpus")
