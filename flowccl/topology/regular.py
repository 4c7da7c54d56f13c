"""Groups that act on the GPUs without fixed points: exactly one element takes GPU 0 to each GPU.

What one source does, spread by such a group, is what all sources do. Where links have no fixed points either, a transfer
of the one source loads every link of its orbit exactly once.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.topology.guesses import block_sizes, turned
from flowccl.topology.symmetry import Symmetry, Verifier, orbits
from flowccl.topology.topology import Topology

I32 = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Regular:
    """A commuting group with one element per GPU; element x takes GPU 0 to GPU x.

    It is made of turns: `turns` generates it, turn i has `order[i]` powers, and GPU x is reached from GPU 0 by
    `digits(x)[i]` turns of each.
    """

    topology: Topology
    turns: Symmetry
    inside: tuple[int, ...]
    order: tuple[int, ...]

    def __len__(self) -> int:
        return self.topology.num_gpus

    @cached_property
    def nodes(self) -> I32:
        """Where element x takes each node: row x."""
        return self._table(self.turns.nodes)

    @cached_property
    def links(self) -> I32:
        """Where element x takes each link: row x."""
        return self._table(self.turns.links)

    def image(self, nodes: I32, by: I32) -> I32:
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
        return np.bincount(self.link_orbits)[self.link_orbits] == len(self)

    def _table(self, turns: I32) -> I32:
        table = np.arange(turns.shape[1], dtype=np.int32)[None, :]
        for turn, order in zip(turns, self.order, strict=True):
            powers = [np.arange(turns.shape[1], dtype=np.int32)]
            for _ in range(order - 1):
                powers.append(turn[powers[-1]])
            stack = np.stack(powers)
            table = stack[:, table].reshape(-1, turns.shape[1])  # later digits count higher
        return table


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
    inside = tuple(row[0] for row in chain)
    order = tuple(row[1] // row[0] for row in chain)
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
