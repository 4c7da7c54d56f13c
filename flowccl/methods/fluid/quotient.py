"""The machine seen up to symmetry: one source per class, one destination per class seen from it, classes of arcs.

A fluid optimum can be averaged over the group, so there is one that looks the same from every source of a class. It is
known once it is known for one source and, from there, for one destination of each class: one variable per orbit of
(link, source, destination).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.methods.fluid.arcs import Arcs
from flowccl.topology.symmetry.permutations import Symmetry, orbits

I32 = NDArray[np.int32]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Classes:
    """Classes of arcs and of nodes of the network: `arc` and `node` have the class of each."""

    arc: I32
    node: I32

    @property
    def num_arcs(self) -> int:
        """Classes of arcs."""
        return int(self.arc.max(initial=-1)) + 1

    def first_nodes(self) -> NDArray[np.int64]:
        """One node of each class."""
        return np.unique(self.node, return_index=True)[1]


@dataclass(frozen=True, eq=False)
class Destination:
    """One destination of a class of `count`, and what looks alike from source and destination."""

    rank: int
    count: int
    classes: Classes


@dataclass(frozen=True, eq=False)
class Source:
    """One source of a class of `count`, what looks alike from it, and one destination of each class."""

    rank: int
    count: int
    classes: Classes
    destinations: tuple[Destination, ...]


def sources_of(arcs: Arcs, group: Symmetry, sources: Bool, destinations: Bool) -> tuple[Source, ...]:
    """One source per orbit, each with its classes; `sources` and `destinations` say which GPUs are."""
    result = []
    for rank, count in _representatives(group.node_orbits, sources):
        around = group.stabilizer(rank)
        wanted = destinations.copy()
        wanted[rank] = False
        ends = tuple(
            Destination(end, many, _classes(arcs, around.stabilizer(end)))
            for end, many in _representatives(around.node_orbits, wanted)
        )
        result.append(Source(rank, count, _classes(arcs, around), ends))
    return tuple(result)


def _representatives(orbit: I32, members: Bool) -> list[tuple[int, int]]:
    ranks = np.flatnonzero(members)
    _, first, count = np.unique(orbit[ranks], return_index=True, return_counts=True)
    return list(zip(ranks[first].tolist(), count.tolist(), strict=True))


def _classes(arcs: Arcs, group: Symmetry) -> Classes:
    arc, node = arcs.permuted(group)
    return Classes(orbits(arc, len(arcs)), orbits(node, arcs.num_nodes))
