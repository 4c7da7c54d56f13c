"""Variants of a machine: without some links, GPUs or overheads, with another reduction rate, or smaller buffers."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import TopologyError
from flowccl.topology.topology import Link, Node, Topology
from flowccl.units import us_to_ps, with_overhead_GBps


def with_links(topology: Topology, keep: NDArray[np.bool_], suffix: str) -> tuple[Topology, NDArray[np.int64]]:
    """Return the machine with only the links in `keep`, and the index of each of them in the given machine."""
    kept = np.flatnonzero(keep).astype(np.int64)
    place = {int(link): i for i, link in enumerate(kept)}
    limits = []
    for limit in topology.limits:
        members = tuple(place[link] for link in limit.links if link in place)
        if members:
            limits.append(replace(limit, links=members))
    links = tuple(topology.links[link] for link in kept)
    return Topology(f"{topology.name}, {suffix}", topology.nodes, links, tuple(limits)), kept


def without(topology: Topology, gpus: Collection[int]) -> tuple[Topology, NDArray[np.int64]]:
    """Return the machine with no links at these GPUs, and the index of each remaining link in the given machine."""
    gone = np.zeros(len(topology.nodes), dtype=np.bool_)
    gone[list(gpus)] = True
    keep = ~(gone[topology.link_src] | gone[topology.link_dst])
    return with_links(topology, keep, f"without {len(gpus)} gpus")


def reducing_at(topology: Topology, reduce_GBps: float | None) -> Topology:
    """Return the machine in which every GPU reduces arriving data at this rate; None means instantly."""
    nodes = [replace(node, reduce_GBps=reduce_GBps) if node.kind == "gpu" else node for node in topology.nodes]
    return replace(topology, nodes=tuple(nodes))


@lru_cache(maxsize=8)
def with_limits_as_switches(topology: Topology) -> Topology:
    """Return the machine with a switch and a trunk in the place of each limit, for methods that know links only.

    That is the same machine where all links of a limit begin, or all end, at one node, and belong to no other limit, as
    those of GPUs that share a network card do. Other limits are left out. Links keep their numbers; trunks come last.
    """
    nodes, links, kinds = list(topology.nodes), list(topology.links), topology.link_kinds
    trunks, counted = list[Link](), Counter(link for limit in topology.limits for link in limit.links)
    for limit in topology.limits:
        sources, ends = ({getattr(links[link], end) for link in limit.links} for end in ("src", "dst"))
        if min(len(sources), len(ends)) > 1 or any(counted[link] > 1 for link in limit.links):
            continue
        into, switch = len(ends) == 1, len(nodes)
        shared, own = (ends, sources) if into else (sources, ends)
        hosts = {topology.nodes[node].host for node in own}
        nodes.append(Node(name=f"{limit.name} {switch}", kind="switch", host=hosts.pop() if len(hosts) == 1 else ""))
        for link in limit.links:
            one = replace(links[link], kind=kinds[link])
            links[link] = replace(one, dst=switch) if into else replace(one, src=switch)
        src, dst = (switch, *shared) if into else (*shared, switch)
        trunks.append(Link(src=src, dst=dst, bandwidth_GBps=limit.bandwidth_GBps, kind=kinds[limit.links[0]]))
    return Topology(topology.name, tuple(nodes), (*links, *trunks))


def without_overheads(topology: Topology, size_bytes: int) -> Topology:
    """Return the machine with every overhead replaced by a lower bandwidth.

    An overhead s followed by z bytes at bandwidth b takes as long as z bytes at bandwidth z / (s + z / b). The time of
    a chunk of `size_bytes` bytes is the same on both machines, and the time of a larger chunk is not shorter here.
    """

    def slower(link: Link) -> Link:
        overhead = us_to_ps(link.overhead_us)
        changes = tuple((at, with_overhead_GBps(size_bytes, GBps, overhead)) for at, GBps in link.changes)
        bandwidth = with_overhead_GBps(size_bytes, link.bandwidth_GBps, overhead)
        return replace(link, bandwidth_GBps=bandwidth, changes=changes, overhead_us=0.0)

    return replace(topology, links=tuple(slower(link) for link in topology.links))


def with_buffers(topology: Topology, buffer_bytes: int) -> Topology:
    """Return the machine with the buffer of every storing node limited to `buffer_bytes`; smaller buffers stay."""
    if buffer_bytes < 0:
        raise TopologyError(f"buffer_bytes must be >= 0, got {buffer_bytes}")
    nodes = [
        replace(
            node, buffer_bytes=min(buffer_bytes, node.buffer_bytes if node.buffer_bytes is not None else buffer_bytes)
        )
        if node.stores
        else node
        for node in topology.nodes
    ]
    return replace(topology, nodes=tuple(nodes))
