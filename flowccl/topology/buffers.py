"""The same machine with less room to keep what is for others."""

from dataclasses import replace

from flowccl.errors import TopologyError
from flowccl.topology.topology import Topology


def with_buffers(topology: Topology, buffer_bytes: int) -> Topology:
    """Every storing node may hold so many bytes for others, or fewer where the machine says so."""
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
