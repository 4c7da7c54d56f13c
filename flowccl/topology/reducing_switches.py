"""Switches that reduce and multicast what crosses them (NVLS, SHARP)."""

import numpy as np

from flowccl.topology.topology import Topology


def reducing_switch(topology: Topology, ranks: list[int]) -> int | None:
    """The first switch that copies and reduces, with a link from and to each of these GPUs; None if there is none."""
    for index in range(topology.num_gpus, len(topology.nodes)):
        node = topology.nodes[index]
        if node.stores or not (node.copies and node.reduces) or node.crossing != "cut-through":
            continue
        into, out = switch_ports(topology, index)
        if all(rank in into and rank in out for rank in ranks):
            return index
    return None


def switch_ports(topology: Topology, switch: int) -> tuple[dict[int, int], dict[int, int]]:
    """The link from each node into the switch, and the link from the switch to each node."""
    into = {int(topology.link_src[k]): int(k) for k in np.flatnonzero(topology.link_dst == switch)}
    out = {int(topology.link_dst[k]): int(k) for k in np.flatnonzero(topology.link_src == switch)}
    return into, out
