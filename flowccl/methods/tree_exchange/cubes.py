"""Cubes of roots of method `tree-exchange`, and what the balancing of the links needs to know of them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.methods.tree_exchange.forest_kernels import Exchange, NeighbourPairs, TreeSide
from flowccl.problem import Problem
from flowccl.topology.neighbours import Neighbours, neighbours

I64 = NDArray[np.int64]

_MOST_CUBES = 32  # with the same corner


@dataclass(frozen=True, eq=False)
class Cubes:
    """Cubes of one dimension: their roots, the trees to and from them, and the pairs of roots that exchange."""

    dimension: int
    members: I64
    up: TreeSide
    exchange: Exchange
    down: TreeSide


@dataclass(frozen=True, eq=False)
class NeighbourGraph:
    """The neighbours of a machine, and the times between its GPUs for a chunk of the demand."""

    near: Neighbours
    pairs: NeighbourPairs
    beside: list[list[int]]  # the nodes that each node is joined with in both directions
    pair_of: I64  # between any two nodes, -1: none
    time_ps: I64  # between any two nodes

    @classmethod
    def of(cls, problem: Problem) -> "NeighbourGraph":
        """The neighbours on the machine of a problem."""
        near, size = neighbours(problem.topology, 1), float(problem.demand.chunk_bytes.max())
        nodes = len(problem.topology.nodes)
        cost_ps = np.ceil(near.pair_cost_ps(size)).astype(np.int64)
        pair_of = np.full((nodes, nodes), -1)
        pair_of[near.src, near.end] = np.arange(len(near.src))
        both = (pair_of >= 0) & (pair_of.T >= 0)
        beside = [np.flatnonzero(row).tolist() for row in both]
        pairs = NeighbourPairs(cost_ps, near.routes.ptr, near.routes.link)
        return cls(near, pairs, beside, pair_of, _times(nodes, near, cost_ps))

    def cubes(self) -> Iterator[Cubes]:
        """The cubes of each dimension, while every GPU is in a cube."""
        nodes, dimension = len(self.beside), 0
        while 1 << dimension <= nodes:
            found = [self._cubes_at(corner, dimension) for corner in range(nodes)]
            if not all(found):
                return
            distinct = {tuple(sorted(cube)): cube for some in found for cube in some}
            members = np.array(list(distinct.values()))
            radius_ps = self.time_ps[members].min(axis=1).max(axis=1)
            yield self._turned(dimension, members[radius_ps == radius_ps.min()])
            dimension += 1

    def longest_path_ps(self, cubes: Cubes) -> int:
        """The time from the farthest GPU to the roots, between them, and back to the farthest GPU."""
        steps = self.pairs.time_ps[cubes.exchange.pair].reshape(
            len(cubes.members), cubes.dimension, 1 << cubes.dimension
        )
        exchange_ps = steps.max(axis=2, initial=0).sum(axis=1)
        return int(cubes.up.away_ps.max(axis=1).min() + exchange_ps.min() + cubes.down.away_ps.max(axis=1).min())

    def _turned(self, dimension: int, members: I64) -> Cubes:
        """The cubes with each of their dimensions first: exchanges of different chunks use links in another order."""
        at = np.arange(1 << dimension)
        turned = np.array([(at << k & at[-1]) | at >> (dimension - k) for k in range(max(dimension, 1))])
        members = members[:, turned].reshape(-1, len(at))
        exchange = np.zeros((len(members), 0), dtype=np.int64)
        if dimension:
            exchange = np.concatenate(
                [self.pair_of[members, members[:, at ^ 1 << k]] for k in range(dimension)], axis=1
            )
        to_ps, from_ps = self.time_ps[:, members].min(axis=2).T, self.time_ps[members].min(axis=1)
        hop_ps = int(self.pairs.time_ps.min())
        first = int(to_ps.max()) // hop_ps
        stage = first + np.repeat(np.arange(dimension), 1 << dimension)
        return Cubes(
            dimension,
            members,
            self._side(to_ps, (to_ps.max() - to_ps) // hop_ps, hop_ps, self.near.src, self.near.end),
            Exchange(exchange, stage),
            self._side(
                from_ps,
                first + dimension + np.maximum(from_ps - 1, 0) // hop_ps,
                hop_ps,
                self.near.end,
                self.near.src,
            ),
        )

    def _side(self, away_ps: I64, stage: I64, hop_ps: int, own: NDArray[np.int32], far: NDArray[np.int32]) -> TreeSide:
        """The trees to the roots or from them: the pairs of each node with it at their `own` end."""
        pair = np.argsort(own, kind="stable").astype(np.int64)
        ptr = np.searchsorted(own[pair], np.arange(len(self.beside) + 1)).astype(np.int64)
        away, order = np.ascontiguousarray(away_ps), np.argsort(-away_ps, axis=1, kind="stable")
        tight_ps = int(away.max()) - hop_ps + 1
        return TreeSide(away, order, np.ascontiguousarray(stage), tight_ps, ptr, pair, far)

    def _cubes_at(self, corner: int, dimension: int) -> list[tuple[int, ...]]:
        """Cubes with this corner; the members differ in one bit of their positions where they are joined."""
        found: list[tuple[int, ...]] = [(corner,)]
        for _ in range(dimension):
            found = [
                (*cube, *image)
                for cube in found
                for next_to in self.beside[corner]
                if next_to not in cube and (len(cube) == 1 or next_to > cube[len(cube) // 2])
                if (image := self._image(cube, next_to)) is not None
            ][:_MOST_CUBES]
        return found

    def _image(self, cube: tuple[int, ...], next_to: int) -> list[int] | None:
        """The opposite side of a cube: a neighbour of each member, joined among each other like the members."""
        image = [next_to]
        for at in range(1, len(cube)):
            adjacent = [image[at ^ 1 << k] for k in range(at.bit_length()) if at >> k & 1]
            fits = (
                node
                for node in self.beside[cube[at]]
                if node not in cube and node not in image and all(node in self.beside[other] for other in adjacent)
            )
            found = next(fits, None)
            if found is None:
                return None
            image.append(found)
        return image


def _times(nodes: int, near: Neighbours, cost_ps: I64) -> I64:
    """The least time between any two nodes."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import dijkstra

    graph = csr_matrix((cost_ps.astype(np.float64), (near.src, near.end)), (nodes, nodes))
    return np.rint(dijkstra(graph)).astype(np.int64)
