"""Which (chunk, arc) pairs there are to choose from, and the sends that a choice makes."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.methods.taccl.logical import Ints, Logical
from flowccl.methods.taccl.orbits import Turn, orbits, turns_of
from flowccl.units import busy_times_ps


@dataclass(frozen=True, eq=False)
class Ways:
    """Pair p is chunk `chunk[p]` on arc `arc[p]`; `takes_ps` until it arrives. Chunks have one source each."""

    logical: Logical
    demand: Demand
    chunk: Ints
    arc: Ints
    takes_ps: Ints

    @classmethod
    def of(cls, logical: Logical, demand: Demand) -> "Ways":
        """All pairs that the sketch lets a chunk use."""
        parts = [np.flatnonzero(_useful(logical, demand, chunk)) for chunk in range(len(demand))]
        arc = np.concatenate(parts).astype(np.int64)
        chunk = np.repeat(np.arange(len(demand)), [len(part) for part in parts])
        return cls(logical, demand, chunk, arc, logical.times(demand.chunk_bytes[chunk], arc)[0])

    @cached_property
    def rotations(self) -> list[Turn]:
        """Symmetries of machine, sketch and demand."""
        return turns_of(self.logical, self.demand)

    @cached_property
    def pair_orbits(self) -> tuple[Ints, Ints]:
        """The orbit of each pair, and the first pair of each orbit."""
        arcs = len(self.logical)
        images = [turn.chunk[self.chunk] * arcs + turn.arc[self.arc] for turn in self.rotations]
        return orbits(self.chunk * arcs + self.arc, images)

    @cached_property
    def nodes(self) -> int:
        """Of the machine."""
        return len(self.logical.topology.nodes)

    @cached_property
    def loads(self) -> tuple[Ints, Ints, Ints]:
        """For how long each pair takes which resource: (pair, resource, ps). Links come first, then limits."""
        topology = self.logical.topology
        _, pair, link, begin, end = self.logical.times(self.demand.chunk_bytes[self.chunk], self.arc)
        pairs, resources, held = [pair], [link.astype(np.int64)], [end - begin]
        for number, limit in enumerate(topology.limits):
            under = pair[np.isin(link, limit.links)]
            pairs.append(under)
            resources.append(np.full(len(under), len(topology.links) + number))
            held.append(
                busy_times_ps(self.demand.chunk_bytes[self.chunk[under]], np.full(len(under), limit.bandwidth_GBps))
            )
        return np.concatenate(pairs), np.concatenate(resources), np.concatenate(held)

    @property
    def resources(self) -> int:
        """Links and limits."""
        return len(self.logical.topology.links) + len(self.logical.topology.limits)

    def sends(self, chosen: NDArray[np.bool_]) -> tuple[Ints, Ints]:
        """Of the chosen pairs those that lead to a destination, and for each the place of the one before it, or -1."""
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


def _useful(logical: Logical, demand: Demand, chunk: int) -> NDArray[np.bool_]:
    """Arcs that a chunk may use: those of its source, between GPUs on shortest ways to its destinations."""
    source, ends = int(demand.source[chunk]), demand.destinations(chunk)
    allowed, away = logical.ways_of(source)
    useful = allowed & (logical.dst != source) & np.isfinite(away[source, logical.src])
    if logical.sketch.reach == "any":
        return np.asarray(useful)
    if len(ends) == 1:
        return np.asarray(
            useful & (away[source, logical.src] + 1 + away[logical.dst, ends[0]] == away[source, ends[0]])
        )
    near = (away[source][:, None] + away[:, ends] == away[source, ends][None, :]).any(axis=1)
    return np.asarray(useful & near[logical.src] & near[logical.dst])
