"""Automorphisms of any machine by individualization and refinement, independent of the rank order.

Nodes of two copies of the machine get labels; refinement gives nodes with equal neighbourhoods equal labels. The search
then individualizes one node of the first copy and its candidate image in the second copy, and refines again, until
every label is unique within its copy. A node and its image then have the same label. If the labels of the two copies
differ, the search backtracks. A stabilizer chain needs few such searches: it starts with automorphisms that fix all but
the last node of the base.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flowccl.topology.symmetry.permutations import AutomorphismChecker, Symmetry, orbits, symmetry, verified
from flowccl.topology.topology import Topology

I32 = NDArray[np.int32]
U64 = NDArray[np.uint64]

_MAX_NODES = 300
_MAX_NODES_WITH_PATTERNS = 100  # nodes up to which the search supplements the rank patterns
_MAX_REFINEMENTS = 6000  # after these, the search keeps the generators found so far
_MAX_BACKTRACKS = 40  # per search for one automorphism


def automorphisms(topology: Topology, colour: NDArray[np.int64] | None = None) -> Symmetry:
    """Return the automorphism group of a machine of up to 300 nodes, or a subgroup if the search reaches its limits.

    Nodes of different colours are not mapped to each other.
    """
    if len(topology.nodes) > _MAX_NODES:
        return verified(topology, [])
    colours = np.zeros(len(topology.nodes), dtype=np.int64) if colour is None else colour
    return verified(topology, _Search(topology, colours).generators())


def known_symmetry(topology: Topology) -> Symmetry:
    """Return the group from rank patterns; on small machines where its GPUs have several orbits, add the search."""
    patterns = symmetry(topology)
    one_orbit = bool(np.all(patterns.node_orbits[: topology.num_gpus] == 0))
    if one_orbit or len(topology.nodes) > _MAX_NODES_WITH_PATTERNS:
        return patterns
    return verified(topology, [*patterns.nodes, *automorphisms(topology).nodes])


def twin_numbers(topology: Topology) -> NDArray[np.int64]:
    """Return numbers 0, 1, ... for the nodes of each set with identical neighbours; 0 for all other nodes."""
    machine = AutomorphismChecker(topology)
    count = len(topology.nodes)
    own = np.random.default_rng(2).integers(1, 2**63, count, dtype=np.uint64)
    around = machine.around(own)
    key = [(int(a), int(c)) for a, c in zip(around, machine.node_colour, strict=True)]
    seen: dict[tuple[int, int], int] = {}
    numbers = np.zeros(count, dtype=np.int64)
    for node, what in enumerate(key):
        numbers[node] = seen.get(what, 0)
        seen[what] = seen.get(what, 0) + 1
    return numbers


class _Search:
    """The search for generators by individualization and refinement."""

    def __init__(self, topology: Topology, colour: NDArray[np.int64]) -> None:
        self.machine = AutomorphismChecker(topology)
        self.count = len(topology.nodes)
        self.colour = np.unique(np.stack((self.machine.node_colour, colour)), axis=1, return_inverse=True)[1].reshape(
            -1
        )
        self.marks = np.random.default_rng(2).integers(1, 2**63, self.count + 1, dtype=np.uint64)
        self.refinements = 0

    def generators(self) -> list[I32]:
        """Return generators of the group, starting with those that move only the last nodes of the base."""
        first = self._refined(self.marks[self.colour])
        chain = self._base(first)
        found: list[I32] = []
        for depth in range(len(chain) - 1, -1, -1):
            label, node = chain[depth]
            found += self._movers(label, node, found)
        return found

    def _base(self, label: U64) -> list[tuple[U64, int]]:
        """Return nodes whose individualization makes all labels unique; each with the labels before its step."""
        chain = []
        while (node := _first_shared(label)) is not None:
            chain.append((label, node))
            label = self._individualized(label, node)
        return chain

    def _movers(self, label: U64, node: int, below: list[I32]) -> Iterator[I32]:
        """Yield automorphisms that keep these labels and move the node, one per orbit that merges with its orbit."""
        known = list(below)
        orbit = orbits(np.stack(known), self.count) if known else np.arange(self.count)
        failed: set[int] = set()
        for other in np.flatnonzero(label == label[node]).tolist():
            if orbit[other] == orbit[node] or any(orbit[other] == orbit[bad] for bad in failed):
                continue
            one, two = self._individualized(label, node), self._individualized(label, other)
            mover = self._matched(one, two, [_MAX_BACKTRACKS])
            if mover is None:
                failed.add(other)
            else:
                known.append(mover)
                orbit = orbits(np.stack(known), self.count)
                yield mover

    def _matched(self, one: U64, other: U64, backtracks: list[int]) -> I32 | None:
        """Return the automorphism that maps the first labels to the second, or None."""
        if self.refinements > _MAX_REFINEMENTS or not np.array_equal(np.sort(one), np.sort(other)):
            return None
        node = _first_shared(one)
        if node is None:
            image = np.empty(self.count, dtype=np.int32)
            image[np.argsort(one)] = np.argsort(other)
            return image if self.machine.link_permutation(image) is not None else None
        marked = self._individualized(one, node)
        for candidate in np.flatnonzero(other == one[node]).tolist():
            found = self._matched(marked, self._individualized(other, candidate), backtracks)
            if found is not None:
                return found
            backtracks[0] -= 1
            if backtracks[0] < 0:
                return None
        return None

    def _individualized(self, label: U64, node: int) -> U64:
        """Return the refined labels after individualizing one node, which gets a unique label."""
        label = label.copy()
        label[node] ^= self.marks[-1]
        return self._refined(label)

    def _refined(self, label: U64) -> U64:
        """Return labels refined by neighbour labels until no more nodes are distinguished."""
        kinds = len(np.unique(label))
        while True:
            self.refinements += 1
            label = self.machine.with_neighbours(label)
            more = len(np.unique(label))
            if more == kinds:
                return label
            kinds = more


def _first_shared(label: U64) -> int | None:
    """Return the first node whose label is not unique; None if all are unique."""
    _, first, many = np.unique(label, return_index=True, return_counts=True)
    several = first[many > 1]
    return int(several.min()) if len(several) else None
