"""Symmetry of any machine, by search: permutations of nodes that leave it unchanged, without a guess from the ranks.

Two copies of the machine are labelled side by side: nodes with the same surroundings get the same label. One node of
the first copy is then set against one of the second, which tells more nodes apart, and so on until every node has its
own label: who has the same in both copies is where the permutation takes it. Where the labels of the copies differ, the
last choice was wrong. A stabilizer chain needs few such searches: first permutations that leave all but the last chosen
nodes in place, then more and more.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flowccl.topology.symmetry.permutations import Symmetry, Verifier, orbits, symmetry, verified
from flowccl.topology.topology import Topology

I32 = NDArray[np.int32]
U64 = NDArray[np.uint64]

_MOST_NODES = 300
_MOST_BESIDE_GUESSES = 100
_MOST_LOOKS = 6000  # labellings, before the search contents itself with what it has
_WRONG_TURNS = 40  # choices taken back in one search


def automorphisms(topology: Topology, colour: NDArray[np.int64] | None = None) -> Symmetry:
    """All symmetry of a machine of up to 300 nodes, where the search comes to its end; else a part of it.

    Nodes of different colours are not taken to each other.
    """
    if len(topology.nodes) > _MOST_NODES:
        return verified(topology, [])
    colours = np.zeros(len(topology.nodes), dtype=np.int64) if colour is None else colour
    return verified(topology, _Search(topology, colours).generators())


def known_symmetry(topology: Topology) -> Symmetry:
    """What the guesses find; on small machines whose GPUs they do not show to be alike, what the search finds too."""
    guessed = symmetry(topology)
    alike = bool(np.all(guessed.node_orbits[: topology.num_gpus] == 0))
    if alike or len(topology.nodes) > _MOST_BESIDE_GUESSES:
        return guessed
    return verified(topology, [*guessed.nodes, *automorphisms(topology).nodes])


def twin_numbers(topology: Topology) -> NDArray[np.int64]:
    """Nodes that hang on the same neighbours are numbered, 0, 1, ...; all others are 0."""
    machine = Verifier(topology)
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
    def __init__(self, topology: Topology, colour: NDArray[np.int64]) -> None:
        self.machine = Verifier(topology)
        self.count = len(topology.nodes)
        self.colour = np.unique(np.stack((self.machine.node_colour, colour)), axis=1, return_inverse=True)[1].reshape(
            -1
        )
        self.marks = np.random.default_rng(2).integers(1, 2**63, self.count + 1, dtype=np.uint64)
        self.looks = 0

    def generators(self) -> list[I32]:
        """Permutations that generate the group: those that move the last nodes of the base first."""
        first = self._refined(self.marks[self.colour])
        chain = self._base(first)
        found: list[I32] = []
        for depth in range(len(chain) - 1, -1, -1):
            label, node = chain[depth]
            found += self._movers(label, node, found)
        return found

    def _base(self, label: U64) -> list[tuple[U64, int]]:
        """Nodes that, set apart one after the other, tell all apart; each with the labels before it."""
        chain = []
        while (node := _first_of_several(label)) is not None:
            chain.append((label, node))
            label = self._apart(label, node)
        return chain

    def _movers(self, label: U64, node: int, below: list[I32]) -> Iterator[I32]:
        """Permutations that keep these labels and take the node elsewhere, one for each orbit that joins its own."""
        known = list(below)
        failed: set[int] = set()
        for other in np.flatnonzero(label == label[node]).tolist():
            orbit = orbits(np.stack(known), self.count) if known else np.arange(self.count)
            if orbit[other] == orbit[node] or any(orbit[other] == orbit[bad] for bad in failed):
                continue
            mover = self._matched(self._apart(label, node), self._apart(label, other), [_WRONG_TURNS])
            if mover is None:
                failed.add(other)
            else:
                known.append(mover)
                yield mover

    def _matched(self, one: U64, other: U64, turns: list[int]) -> I32 | None:
        """The permutation that takes the first labels to the second, or None."""
        if self.looks > _MOST_LOOKS or not np.array_equal(np.sort(one), np.sort(other)):
            return None
        node = _first_of_several(one)
        if node is None:
            image = np.empty(self.count, dtype=np.int32)
            image[np.argsort(one)] = np.argsort(other)
            return image if self.machine.link_permutation(image) is not None else None
        marked = self._apart(one, node)
        for candidate in np.flatnonzero(other == one[node]).tolist():
            found = self._matched(marked, self._apart(other, candidate), turns)
            if found is not None:
                return found
            turns[0] -= 1
            if turns[0] < 0:
                return None
        return None

    def _apart(self, label: U64, node: int) -> U64:
        """Labels after one node got its own."""
        label = label.copy()
        label[node] ^= self.marks[-1]
        return self._refined(label)

    def _refined(self, label: U64) -> U64:
        """Labels that also say what the neighbours are, and theirs, until no more nodes are told apart."""
        kinds = len(np.unique(label))
        while True:
            self.looks += 1
            label = self.machine.with_neighbours(label)
            more = len(np.unique(label))
            if more == kinds:
                return label
            kinds = more


def _first_of_several(label: U64) -> int | None:
    """The first node whose label others have too."""
    _, first, many = np.unique(label, return_index=True, return_counts=True)
    several = first[many > 1]
    return int(several.min()) if len(several) else None
