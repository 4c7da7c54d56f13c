"""Connections of a sketch that a machine lacks are relayed by GPUs that have one: 0 -> 16 becomes 0 -> 1 -> 16."""

from dataclasses import replace

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from flowccl.errors import InputError
from flowccl.papers.taccl.sketch import Pair, Sketch, check_sketch
from flowccl.topology.neighbours import neighbours
from flowccl.topology.topology import Topology


def relayed(sketch: Sketch, topology: Topology, size_bytes: int) -> tuple[Sketch, list[str]]:
    """Return the sketch with connections that the machine has, for chunks of about this size, and a note per change.

    A missing connection becomes the fastest connection between its two hosts. A sender without a connection of its own
    becomes the GPU that relays for it.
    """
    path = _HostConnections(topology, size_bytes)
    missing = [pair for pair in sketch.between_hosts or () if pair not in path.exist]
    if not missing:
        return sketch, []
    instead = {pair: path.instead_of(pair) for pair in missing}
    relay = {a: x for (a, _), (x, _) in reversed(instead.items()) if a not in path.src}
    found = replace(
        sketch,
        between_hosts=tuple(dict.fromkeys(instead.get(pair, pair) for pair in sketch.between_hosts or ())),
        senders=tuple(relay.get(sender, sender) for sender in sketch.senders),
    )
    check_sketch(found, topology)
    names = [node.name for node in topology.nodes]
    return found, [f"{names[a]} -> {names[b]} over {names[x]} -> {names[y]}" for (a, b), (x, y) in instead.items()]


class _HostConnections:
    """The connections between hosts, and the times to and from their ends inside the hosts."""

    def __init__(self, topology: Topology, size_bytes: int) -> None:
        near = neighbours(topology)
        src, dst = near.src.astype(np.int64), near.end.astype(np.int64)
        cost = near.pair_cost_ps(size_bytes)
        self.topology = topology
        self.host = np.unique([node.host for node in topology.nodes], return_inverse=True)[1]
        self.place = np.zeros(len(self.host), dtype=np.int64)  # index of a GPU within its host
        for number in range(int(self.host.max(initial=0)) + 1):
            gpus = np.flatnonzero(self.host[: topology.num_gpus] == number)
            self.place[gpus] = np.arange(len(gpus))
        inside = self.host[src] == self.host[dst]
        count = len(self.host)
        graph = csr_array((cost[inside], (src[inside], dst[inside])), shape=(count, count))
        self.within_ps = np.asarray(dijkstra(graph))
        leads = ~inside & (src < topology.num_gpus) & (dst < topology.num_gpus)
        self.src, self.dst, self.cost_ps = src[leads], dst[leads], cost[leads]
        self.exist: set[Pair] = set(zip(self.src.tolist(), self.dst.tolist(), strict=True))

    def instead_of(self, pair: Pair) -> Pair:
        """The fastest connection between the hosts of a pair; ties go to the next GPUs, cyclically."""
        a, b = pair
        total = self.within_ps[a, self.src] + self.cost_ps + self.within_ps[self.dst, b]
        gpus_per_host = int(self.place.max()) + 1
        ahead = (
            (self.place[self.src] - self.place[a]) % gpus_per_host,
            (self.place[self.dst] - self.place[b]) % gpus_per_host,
        )
        best = int(np.lexsort((ahead[1], ahead[0], total))[0]) if len(total) else -1
        if best < 0 or not np.isfinite(total[best]):
            names = f"{self.topology.nodes[a].name} -> {self.topology.nodes[b].name}"
            words = f"{self.topology.name} has no link or switch for {names}"
            raise InputError(f"between_hosts: {words}, nor a path through other GPUs of their hosts")
        return int(self.src[best]), int(self.dst[best])
