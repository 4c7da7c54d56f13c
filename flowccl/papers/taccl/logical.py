"""The logical topology of a sketch: arcs between storing nodes, with their times and the links they occupy."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.errors import InputError
from flowccl.papers.taccl.sketch import Sketch
from flowccl.schedule.timing import replay
from flowccl.topology.neighbours import neighbours
from flowccl.topology.routes import Routes, shape_on
from flowccl.topology.topology import Topology

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LogicalTopology:
    """Arc a goes from `src[a]` to `dst[a]` over route a of `routes`."""

    topology: Topology
    sketch: Sketch
    src: Ints
    dst: Ints
    routes: Routes

    @classmethod
    def of(cls, topology: Topology, sketch: Sketch, size_bytes: int, *, reduces: bool = False) -> "LogicalTopology":
        """The arcs that a sketch allows, for chunks of about this size: the fastest routes of each pair.

        Memories that cannot copy are omitted, and those that cannot reduce if that is needed. The machine has all
        connections that the sketch names (see `relayed`).
        """
        near = neighbours(topology)
        every = cls(topology, sketch, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), near.routes)
        cost = every.times(np.full(len(near.routes), size_bytes), np.arange(len(near.routes)))[0]
        least = np.minimum.reduceat(cost, near.pair_ptr[:-1]) if len(near.src) else cost
        pair = np.repeat(np.arange(len(near.src)), np.diff(near.pair_ptr))
        able = topology.copies & (topology.reduces | (not reduces))
        able[: topology.num_gpus] = True
        allowed = _allowed(topology, sketch, near.src, near.end) & able[near.src] & able[near.end]
        kept = np.flatnonzero((cost <= least[pair] * (1 + 1e-9)) & allowed[pair])
        routes = Routes.from_lists([near.routes.links(int(r)) for r in kept])
        return cls(
            topology, sketch, near.src[pair[kept]].astype(np.int64), near.end[pair[kept]].astype(np.int64), routes
        )

    def __len__(self) -> int:
        return len(self.src)

    def times(self, size_bytes: Ints, arc: Ints) -> tuple[Ints, Ints, NDArray[np.int32], Ints, Ints]:
        """Times of sends over arcs: time to arrival; and for each hop its send, link, start and end."""
        zero = np.zeros(len(arc), dtype=np.int64)
        shape = shape_on(self.topology, self.routes)
        timing = replay(self.topology, shape, size_bytes, arc.astype(np.int32), zero)
        takes = np.zeros(len(arc), dtype=np.int64)
        np.maximum.at(takes, timing.end_transfer, timing.end_arrival_ps)
        return takes, timing.hop_transfer, timing.hop_link, timing.hop_from_ps, timing.hop_to_ps

    def arcs_from(self, source: int) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Arcs that data of a node may use, and the fewest arcs between nodes over them.

        Data leaves the host of its source only through the sender of the source.
        """
        sender = self.sketch.senders[source] if self.sketch.senders else -1
        if sender not in self._known:
            host = [node.host for node in self.topology.nodes]
            inside = np.array([name == host[source] for name in host])
            leaves = inside[self.src] & ~inside[self.dst]
            allowed = ~leaves | (self.src == sender) if sender >= 0 else np.ones(len(self), dtype=np.bool_)
            self._known[sender] = allowed, _hops(self.src[allowed], self.dst[allowed], len(host))
        return self._known[sender]

    @cached_property
    def _known(self) -> dict[int, tuple[NDArray[np.bool_], NDArray[np.float64]]]:
        return {}

    @cached_property
    def backwards(self) -> "LogicalTopology":
        """The reversed arcs, for the routes of a reduction, which take the same times.

        Senders do not apply there: data that leaves a host is reduced from contributions of many ranks.
        """
        return LogicalTopology(self.topology, replace(self.sketch, senders=()), self.dst, self.src, self.routes)

    def check_reaches(self, demand: Demand) -> None:
        """Raise InputError unless every destination can be reached from every source of its chunk."""
        nodes, senders = self.topology.nodes, () if demand.reduces else self.sketch.senders
        arcs = self if senders else replace(self, sketch=replace(self.sketch, senders=()))
        for chunk in range(len(demand)):
            for source in demand.sources(chunk).tolist():
                away = arcs.arcs_from(source)[1][source, demand.destinations(chunk)]
                if not np.all(np.isfinite(away)):
                    end = demand.destinations(chunk)[np.argmax(~np.isfinite(away))]
                    through = f" through its sender {nodes[senders[source]].name}" if senders else ""
                    ends = f"from {nodes[source].name} to {nodes[end].name}{through}"
                    raise InputError(f"the sketch leaves no path {ends} on {self.topology.name}")


def _hops(src: Ints, dst: Ints, count: int) -> NDArray[np.float64]:
    """Fewest arcs between any two nodes."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    graph = csr_array((np.ones(len(src)), (src, dst)), shape=(count, count))
    return np.asarray(dijkstra(graph, unweighted=True), dtype=np.float64)


def _allowed(topology: Topology, sketch: Sketch, src: NDArray[np.int32], dst: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which pairs of storing nodes may send to each other according to the sketch."""
    count, gpus = len(topology.nodes), topology.num_gpus
    key = src.astype(np.int64) * count + dst
    host = {name: n for n, name in enumerate(dict.fromkeys(node.host for node in topology.nodes))}
    of = np.array([host[node.host] for node in topology.nodes])
    allowed = np.ones(len(key), dtype=np.bool_)
    if sketch.between_hosts is not None:
        named = np.array([a * count + b for a, b in sketch.between_hosts], dtype=np.int64)
        between = (of[src] != of[dst]) & (src < gpus) & (dst < gpus)
        allowed &= ~between | np.isin(key, named)
    for switch in sketch.switches:
        if switch.most is not None:
            place = np.full(count, -1)
            place[list(switch.gpus)] = np.arange(len(switch.gpus))
            ahead = (place[dst] - place[src]) % len(switch.gpus)
            allowed &= (place[src] < 0) | (place[dst] < 0) | (ahead <= switch.most)
    closed = np.array([a * count + b for a, b in sketch.closed], dtype=np.int64)
    return allowed & ~np.isin(key, closed)
