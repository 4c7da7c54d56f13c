"""Groups that act on the GPUs without fixed points: exactly one element takes GPU 0 to each GPU.

What one source does, spread by such a group, is what all sources do. Where links have no fixed points either, a
transfer of the one source loads every link of its orbit exactly once.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.topology.symmetry.permutations import Symmetry, Verifier, orbits
from flowccl.topology.symmetry.rank_patterns import block_sizes, turned
from flowccl.topology.topology import Topology

I32 = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Regular:
    """A commuting group with one element per GPU; element x takes GPU 0 to GPU x.

    It is made of turns: `turns` generates it, turn i is back after `order[i]` times, and GPU 0 is taken to GPU x by
    as many turns of each as its digits say: `x // inside[i] % order[i]`.
    """

    topology: Topology
    turns: Symmetry
    inside: tuple[int, ...]
    order: tuple[int, ...]

    def __len__(self) -> int:
        return self.topology.num_gpus

    def moved_links(self, links: NDArray[np.integer], by: NDArray[np.integer]) -> I32:
        """Where element by[i] takes link links[i]; both are broadcast."""
        moved = np.broadcast_to(links, np.broadcast(links, by).shape).astype(np.int32)
        for table, inside, order in zip(self._powers, self.inside, self.order, strict=True):
            moved = table[by // inside % order, moved]
        return moved

    def image(self, nodes: NDArray[np.integer], by: NDArray[np.integer]) -> I32:
        """Where element by[i] takes GPU nodes[i]: digits add up, each modulo its order."""
        total = np.zeros(np.broadcast(nodes, by).shape, dtype=np.int64)
        for inside, order in zip(self.inside, self.order, strict=True):
            total += (nodes // inside % order + by // inside % order) % order * inside
        return total.astype(np.int32)

    @cached_property
    def link_orbits(self) -> I32:
        """The orbit of each link."""
        return orbits(self.turns.links, len(self.topology.links))

    @cached_property
    def free_links(self) -> NDArray[np.bool_]:
        """Links that no element but the identity leaves in place: their orbits have one link per GPU."""
        return np.asarray(np.bincount(self.link_orbits)[self.link_orbits] == len(self))

    @cached_property
    def _powers(self) -> list[I32]:
        """For each turn: where 0, 1, 2, ... of them take each link."""
        tables = []
        for turn, order in zip(self.turns.links, self.order, strict=True):
            rows = [np.arange(len(turn), dtype=np.int32)]
            for _ in range(order - 1):
                rows.append(turn[rows[-1]])
            tables.append(np.stack(rows))
        return tables


def regular_group(topology: Topology) -> Regular | None:
    """A group made of turns of digits of the ranks; None where the guesses find none."""
    sizes = block_sizes(topology)
    count, machine = topology.num_gpus, Verifier(topology)
    steps: dict[int, list[tuple[int, I32, I32]]] = {}
    for inside in sizes:
        for outside in reversed(sizes):
            if outside > inside and outside % inside == 0:
                pair = machine.extended(turned(count, inside, outside))
                if pair is not None:
                    steps.setdefault(inside, []).append((outside, *pair))
    chain = _chain(steps, 1, count)
    if chain is None:
        return None
    nodes, links = (np.stack([row[i] for row in chain]) for i in (2, 3))
    order = tuple(row[1] // row[0] for row in chain)
    return Regular(topology, Symmetry(topology, nodes, links), tuple(row[0] for row in chain), order)


def turned_group(topology: Topology, inside: tuple[int, ...], order: tuple[int, ...]) -> Regular | None:
    """The group made of these turns; None where they do not leave the machine unchanged or do not reach every GPU."""
    count, machine, total = topology.num_gpus, Verifier(topology), 1
    pairs = []
    for low, many in zip(inside, order, strict=False):
        pair = machine.extended(turned(count, low, low * many)) if low == total and count % (low * many) == 0 else None
        if pair is None:
            return None
        pairs.append(pair)
        total *= many
    if total != count or len(inside) != len(order):
        return None
    nodes, links = (np.stack([pair[i] for pair in pairs]) for i in range(2))
    return Regular(topology, Symmetry(topology, nodes, links), inside, order)


def _chain(
    steps: dict[int, list[tuple[int, I32, I32]]], inside: int, count: int
) -> list[tuple[int, int, I32, I32]] | None:
    """Digits from the lowest to the highest that can all be turned."""
    if inside == count:
        return []
    for outside, nodes, links in steps.get(inside, []):
        rest = _chain(steps, outside, count)
        if rest is not None:
            return [(inside, outside, nodes, links), *rest]
    return None
