"""A machine without some of its links or GPUs, or without setups: the same nodes, other links."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.topology.topology import Link, Topology
from flowccl.units import us_to_ps, with_overhead_GBps


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


def reducing_at(topology: Topology, reduce_GBps: float | None) -> Topology:
    """The machine in which every GPU adds up what arrives at this rate; None: in no time at all."""
    nodes = [replace(node, reduce_GBps=reduce_GBps) if node.kind == "gpu" else node for node in topology.nodes]
    return replace(topology, nodes=tuple(nodes))


def without_overheads(topology: Topology, size_bytes: int) -> Topology:
    """The machine without setups on which chunks of so many bytes take as long, and longer ones no less.

    A setup of s and then z bytes at bandwidth b take as long as z bytes at bandwidth z / (s + z / b).
    """

    def slower(link: Link) -> Link:
        overhead = us_to_ps(link.overhead_us)
        changes = tuple((at, with_overhead_GBps(size_bytes, GBps, overhead)) for at, GBps in link.changes)
        bandwidth = with_overhead_GBps(size_bytes, link.bandwidth_GBps, overhead)
        return replace(link, bandwidth_GBps=bandwidth, changes=changes, overhead_us=0.0)

    return replace(topology, links=tuple(slower(link) for link in topology.links))
