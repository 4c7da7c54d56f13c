"""Machines with smaller buffers for forwarded data."""

from dataclasses import replace

from flowccl.errors import TopologyError
from flowccl.topology.topology import Topology


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
