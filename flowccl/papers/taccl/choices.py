"""The (chunk, arc) pairs to choose from, and the sends of a choice."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.papers.taccl.logical import Ints, LogicalTopology
from flowccl.papers.taccl.orbits import SketchSymmetry, orbits, symmetries_of
from flowccl.units import busy_times_ps


@dataclass(frozen=True, eq=False)
class RouteChoices:
    """Pair p is chunk `chunk[p]` on arc `arc[p]`, which arrives after `takes_ps`. Each chunk has one source."""

    logical: LogicalTopology
    demand: Demand
    chunk: Ints
    arc: Ints
    takes_ps: Ints

    @classmethod
    def of(cls, logical: LogicalTopology, demand: Demand) -> "RouteChoices":
        """All pairs that the sketch allows."""
        parts = [np.flatnonzero(_useful_arcs(logical, demand, chunk)) for chunk in range(len(demand))]
        arc = np.concatenate(parts).astype(np.int64)
        chunk = np.repeat(np.arange(len(demand)), [len(part) for part in parts])
        return cls(logical, demand, chunk, arc, logical.times(demand.chunk_bytes[chunk], arc)[0])

    @cached_property
    def symmetries(self) -> list[SketchSymmetry]:
        """Symmetries of machine, sketch and demand."""
        return symmetries_of(self.logical, self.demand)

    @cached_property
    def pair_orbits(self) -> tuple[Ints, Ints]:
        """The orbit of each pair, and the first pair of each orbit."""
        arcs = len(self.logical)
        images = [symmetry.chunk[self.chunk] * arcs + symmetry.arc[self.arc] for symmetry in self.symmetries]
        return orbits(self.chunk * arcs + self.arc, images)

    @cached_property
    def nodes(self) -> int:
        """Number of nodes of the machine."""
        return len(self.logical.topology.nodes)

    @cached_property
    def loads(self) -> tuple[Ints, Ints, Ints]:
        """How long each pair occupies each resource: (pair, resource, ps). Resources are links, then limits."""
        topology = self.logical.topology
        _, pair, link, begin, end = self.logical.times(self.demand.chunk_bytes[self.chunk], self.arc)
        pairs, resources, busy = [pair], [link.astype(np.int64)], [end - begin]
        for number, limit in enumerate(topology.limits):
            under = pair[np.isin(link, limit.links)]
            pairs.append(under)
            resources.append(np.full(len(under), len(topology.links) + number))
            busy.append(
                busy_times_ps(self.demand.chunk_bytes[self.chunk[under]], np.full(len(under), limit.bandwidth_GBps))
            )
        return np.concatenate(pairs), np.concatenate(resources), np.concatenate(busy)

    @property
    def resources(self) -> int:
        """Number of links and limits."""
        return len(self.logical.topology.links) + len(self.logical.topology.limits)

    def sends(self, chosen: NDArray[np.bool_]) -> tuple[Ints, Ints]:
        """Return the chosen pairs that lead to a destination, and for each the index of its predecessor, or -1."""
        key = self.chunk * self.nodes
        into = dict(
            zip((key + self.logical.dst[self.arc])[chosen].tolist(), np.flatnonzero(chosen).tolist(), strict=True)
        )
        demand = self.demand
        todo = (demand.destination_chunk.astype(np.int64) * self.nodes + demand.destination_rank).tolist()
        source = dict(enumerate((demand.source + np.arange(len(demand)) * self.nodes).tolist()))
        place: dict[int, int] = {}
        before: dict[int, int] = {}
        while todo:
            at = todo.pop()
            pair = into[at]
            if pair in place:
                continue
            place[pair] = len(place)
            up = int(self.chunk[pair]) * self.nodes + int(self.logical.src[self.arc[pair]])
            if up != source[int(self.chunk[pair])]:
                before[pair] = into[up]
                todo.append(up)
        pairs = np.array(list(place), dtype=np.int64)
        return pairs, np.array([place[before[p]] if p in before else -1 for p in place], dtype=np.int64)


def _useful_arcs(logical: LogicalTopology, demand: Demand, chunk: int) -> NDArray[np.bool_]:
    """Arcs that a chunk may use: allowed for its source and, unless the reach is "any", on shortest paths."""
    source, ends = int(demand.source[chunk]), demand.destinations(chunk)
    allowed, away = logical.arcs_from(source)
    useful = allowed & (logical.dst != source) & np.isfinite(away[source, logical.src])
    if logical.sketch.reach == "any":
        return np.asarray(useful)
    if len(ends) == 1:
        return np.asarray(
            useful & (away[source, logical.src] + 1 + away[logical.dst, ends[0]] == away[source, ends[0]])
        )
    near = (away[source][:, None] + away[:, ends] == away[source, ends][None, :]).any(axis=1)
    return np.asarray(useful & near[logical.src] & near[logical.dst])
