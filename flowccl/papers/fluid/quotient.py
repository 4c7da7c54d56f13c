"""The quotient of the machine by its symmetry: one source per class, one destination per class, classes of arcs.

A fluid optimum can be averaged over the group, so there is an invariant one. It is determined by one source of each
class and, for it, one destination of each class: one variable per orbit of (link, source, destination).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.papers.fluid.arcs import Arcs
from flowccl.topology.symmetry.permutations import Symmetry, orbits

I32 = NDArray[np.int32]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class OrbitClasses:
    """Classes of arcs and of nodes of the network: `arc` and `node` have the class of each."""

    arc: I32
    node: I32

    @property
    def num_arcs(self) -> int:
        """Number of classes of arcs."""
        return int(self.arc.max(initial=-1)) + 1

    def first_nodes(self) -> NDArray[np.int64]:
        """Return one node of each class."""
        return np.unique(self.node, return_index=True)[1]


@dataclass(frozen=True, eq=False)
class DestinationClass:
    """One destination of a class of `count`, with the orbits under the stabilizer of source and destination."""

    rank: int
    count: int
    classes: OrbitClasses


@dataclass(frozen=True, eq=False)
class SourceClass:
    """One source of a class of `count`, with the orbits under its stabilizer, and one destination of each class."""

    rank: int
    count: int
    classes: OrbitClasses
    destinations: tuple[DestinationClass, ...]


def sources_of(arcs: Arcs, group: Symmetry, sources: Bool, destinations: Bool) -> tuple[SourceClass, ...]:
    """Return one source per orbit, with its classes; `sources` and `destinations` are masks of GPUs."""
    result = []
    for rank, count in _representatives(group.node_orbits, sources):
        around = group.stabilizer(rank)
        wanted = destinations.copy()
        wanted[rank] = False
        ends = tuple(
            DestinationClass(end, many, _classes(arcs, around.stabilizer(end)))
            for end, many in _representatives(around.node_orbits, wanted)
        )
        result.append(SourceClass(rank, count, _classes(arcs, around), ends))
    return tuple(result)


def _representatives(orbit: I32, members: Bool) -> list[tuple[int, int]]:
    ranks = np.flatnonzero(members)
    _, first, count = np.unique(orbit[ranks], return_index=True, return_counts=True)
    return list(zip(ranks[first].tolist(), count.tolist(), strict=True))


def _classes(arcs: Arcs, group: Symmetry) -> OrbitClasses:
    arc, node = arcs.permuted(group)
    return OrbitClasses(orbits(arc, len(arcs)), orbits(node, arcs.num_nodes))
