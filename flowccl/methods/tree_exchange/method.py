"""Method `tree-exchange`: cubes of roots, plans, and the search over their orders."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.hierarchical.scheduling import PlanScheduler, TransferPlan
from flowccl.methods.tree_exchange.forest_kernels import Cubes, NeighbourPairs, balanced_forests
from flowccl.portable import power_of_ten
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.neighbours import Neighbours, neighbours
from flowccl.topology.topology import Topology
from flowccl.units import busy_times_ps

I64 = NDArray[np.int64]

_MOST_CUBES = 32  # of one owner
_SWEEPS, _TRIED = 4, 5  # sweeps of the balancing, and cubes that are tried for a chunk in each
_RUNS_PER_FORESTS = 8  # without improvement, before new trees are taken
_CLOSE = 1.1  # dimensions whose first schedule is within this factor of the best are searched on


def tree_exchange(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """First every dimension of the cubes, then the best ones in turn, with noise and with other trees."""
    topology, ranks = problem.topology, problem.allreduce_ranks
    if ranks is None or len(ranks) < int(topology.stores.sum()):
        raise DemandError("method tree-exchange is for allreduce among all GPUs of a machine without host memory")
    graph = _Graph.of(problem)
    random = np.random.default_rng(context.seed)
    searches = [_DimensionSearch(problem, graph, *cubes, random) for cubes in graph.cubes()]
    found = [search.step() for search in searches]
    best = min((one for one in found if one is not None), key=lambda one: one.finish_ps)
    yield best
    while True:
        best_ps = min(search.best_ps for search in searches)
        for search in [search for search in searches if search.best_ps <= _CLOSE * best_ps]:
            again = search.step()
            if again is not None and again.finish_ps < best.finish_ps:
                best = again
        yield best


@dataclass(frozen=True, eq=False)
class _Graph:
    """The neighbours of a machine, and the times between its GPUs for a chunk of the demand."""

    near: Neighbours
    pairs: NeighbourPairs
    beside: list[list[int]]  # the nodes that each node is joined with in both directions
    pair_of: dict[tuple[int, int], int]
    time_ps: I64  # between any two nodes
    owners: I64  # of each chunk

    @classmethod
    def of(cls, problem: Problem) -> "_Graph":
        near, size = neighbours(problem.topology, 1), float(problem.demand.chunk_bytes.max())
        nodes = len(problem.topology.nodes)
        out, into = (np.argsort(side, kind="stable").astype(np.int64) for side in (near.src, near.end))
        ptrs = [
            np.searchsorted(side[order], np.arange(nodes + 1)).astype(np.int64)
            for side, order in ((near.src, out), (near.end, into))
        ]
        cost = np.ceil(near.pair_cost_ps(size)).astype(np.int64)
        pairs = NeighbourPairs(near.src, near.end, cost, near.routes.ptr, near.routes.link, ptrs[0], out, ptrs[1], into)
        pair_of = {(a, b): p for p, (a, b) in enumerate(zip(near.src.tolist(), near.end.tolist(), strict=True))}
        beside: list[list[int]] = [[] for _ in range(nodes)]
        for a, b in pair_of:
            if (b, a) in pair_of:
                beside[a].append(b)
        owner = np.arange(len(problem.demand)) // problem.demand.pieces % nodes
        return cls(near, pairs, beside, pair_of, _times(nodes, near, cost), owner)

    def cubes(self) -> Iterator[tuple[I64, Cubes]]:
        """The roots of the cubes of each dimension, while every GPU is in a cube; and what the balancing needs."""
        nodes, dimension = len(self.beside), 0
        while 1 << dimension <= nodes:
            found = [self._nearest(self._cubes_at(owner, dimension)) for owner in range(nodes)]
            if not all(found):
                return
            ptr = np.concatenate(([0], np.cumsum([len(some) for some in found]))).astype(np.int64)
            members = np.array([cube for some in found for cube in some])
            exchange = [
                [self.pair_of[cube[at], cube[at ^ 1 << k]] for k in range(dimension) for at in range(1 << dimension)]
                for some in found
                for cube in some
            ]
            pairs = np.array(exchange, dtype=np.int64).reshape(len(members), -1)
            to_ps, from_ps = self.time_ps[:, members].min(axis=2).T, self.time_ps[members].min(axis=1)
            yield members, Cubes(ptr, np.ascontiguousarray(to_ps), np.ascontiguousarray(from_ps), pairs)
            dimension += 1

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
            ][: 4 * _MOST_CUBES]
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

    def _nearest(self, some: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The cubes from which the farthest GPU is nearest."""
        radius = [int(self.time_ps[list(cube)].min(axis=0).max()) for cube in some]
        return [cube for cube, far in zip(some, radius, strict=True) if far == min(radius)][:_MOST_CUBES]


def _times(nodes: int, near: Neighbours, cost: I64) -> I64:
    """The least time between any two nodes."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import dijkstra

    graph = csr_matrix((cost.astype(np.float64), (near.src, near.end)), (nodes, nodes))
    return np.rint(dijkstra(graph)).astype(np.int64)


class _DimensionSearch:
    """The search with cubes of one dimension: trees, and orders of their transfers."""

    def __init__(
        self, problem: Problem, graph: _Graph, members: I64, cubes: Cubes, random: np.random.Generator
    ) -> None:
        self.problem, self.graph, self.members, self.cubes, self.random = problem, graph, members, cubes, random
        self.scheduler: PlanScheduler | None = None
        self.best_ps, self.idle = float("inf"), 0

    def step(self) -> Schedule | None:
        """New trees, or another order of the last ones; the schedule if it is the best so far."""
        if self.scheduler is None or self.idle >= _RUNS_PER_FORESTS:
            self.scheduler, self.idle = PlanScheduler(*self._inputs(), "tree-exchange"), 0
            runs = [self.scheduler.longest_first(), self.scheduler.early_pieces_first()]
        else:
            noise = power_of_ten(float(self.random.uniform(-2.5, -0.5)))
            runs = [self.scheduler.longest_first(noise * self.random.uniform(-1, 1, len(self.scheduler.tail_ps)))]
        found = min((run for run in runs if run is not None), key=lambda run: run.finish_ps, default=None)
        self.idle += 1
        if found is None or found.finish_ps >= self.best_ps:
            return None
        self.best_ps, self.idle = found.finish_ps, 1
        return found

    def _inputs(self) -> tuple[Topology, Demand, TransferPlan]:
        """The machine, the demand and a plan with new trees."""
        problem, pairs = self.problem, self.graph.pairs
        size = problem.demand.chunk_bytes
        links = len(problem.topology.links)
        busy_ps = busy_times_ps(np.full(links, int(size.max())), problem.topology.link_GBps)
        tried = self.random.integers(1 << 30, size=(_SWEEPS, len(size), _TRIED))
        forests = balanced_forests(pairs, self.cubes, busy_ps, self.graph.owners, tried)
        plan = _plan(self.graph.near, self.cubes, self.members, *forests[:3], problem.demand.pieces)
        return problem.topology, problem.demand, plan


def _plan(near: Neighbours, cubes: Cubes, members: I64, cube: I64, up: I64, down: I64, pieces: int) -> TransferPlan:
    """The transfers of all chunks: up the trees, the exchange stage by stage, down the trees."""
    chunks, nodes = up.shape
    width = members.shape[1]  # roots of a chunk
    stages = width.bit_length() - 1
    at = np.full((chunks, nodes), -1)  # the position of each node among the roots of the chunk
    np.put_along_axis(at, members[cube], np.arange(width)[None, :], axis=1)
    exchange = cubes.exchange[cube].reshape(chunks, stages, width)
    tables = (up, exchange.reshape(chunks, -1), down)
    depth = (
        -cubes.to_ps[cube],
        np.broadcast_to(np.repeat(np.arange(stages), width), (chunks, stages * width)),
        cubes.from_ps[cube],
    )
    used = [np.flatnonzero(table.reshape(-1) >= 0) for table in tables]
    phase = np.repeat(np.arange(3), [len(some) for some in used])
    keys = np.concatenate([d.reshape(-1)[some] for d, some in zip(depth, used, strict=True)])
    order = np.lexsort((keys, phase))
    row = np.empty(len(order), dtype=np.int64)
    row[order] = np.arange(len(order))
    rows = [np.full(table.shape, -1, dtype=np.int64) for table in tables]
    for numbers, some, own in zip(rows, used, np.split(row, np.cumsum([len(some) for some in used])[:-1]), strict=True):
        numbers.reshape(-1)[some] = own
    row_up, row_exchange, row_down = rows[0], rows[1].reshape(chunks, stages, width), rows[2]
    pair = np.concatenate([table.reshape(-1)[some] for table, some in zip(tables, used, strict=True)])[order]
    chunk = np.concatenate([some // max(table.shape[1], 1) for table, some in zip(tables, used, strict=True)])[order]
    waits = _waits(near, (up, down), at, (row_up, row_exchange, row_down))
    job = np.arange(len(pair))
    for stage in range(stages):
        both = row_exchange[:, stage]
        job[both] = np.minimum(both, both[:, np.arange(width) ^ 1 << stage])
    zero = np.zeros(len(pair), dtype=np.int64)
    reduce = (phase < 2)[order]
    return TransferPlan(
        near.routes, chunk, pair, reduce, waits[0], waits[1], job, zero, chunk % pieces, zero, np.full(len(pair), -1)
    )


def _waits(near: Neighbours, trees: tuple[I64, I64], at: I64, rows: tuple[I64, I64, I64]) -> I64:
    """For each wait, the transfer that brings the data and the one that sends it on."""
    (up, down), (row_up, row_exchange, row_down) = trees, rows
    stages = row_exchange.shape[1]
    chunk, node = np.nonzero(up >= 0)
    parent = near.end[up[chunk, node]]
    inner = at[chunk, parent] < 0
    found = [np.stack((row_up[chunk, node], row_up[chunk, parent]))[:, inner]]
    to_root = np.stack((row_up[chunk, node], chunk, at[chunk, parent]))[:, ~inner]
    chunk, node = np.nonzero(down >= 0)
    parent = near.src[down[chunk, node]]
    inner = at[chunk, parent] < 0
    found.append(np.stack((row_down[chunk, parent], row_down[chunk, node]))[:, inner])
    from_root = np.stack((row_down[chunk, node], chunk, at[chunk, parent]))[:, ~inner]
    if stages == 0:  # every copy from the root waits for all that it receives
        count = np.bincount(from_root[1], minlength=len(up))
        first = np.concatenate(([0], np.cumsum(count)))
        times = count[to_root[1]]
        turn = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
        found.append(np.stack((np.repeat(to_root[0], times), from_root[0][np.repeat(first[to_root[1]], times) + turn])))
        return np.concatenate(found, axis=1)
    found.append(np.stack((to_root[0], row_exchange[to_root[1], 0, to_root[2]])))
    roots = np.arange(row_exchange.shape[2])
    for stage in range(1, stages):
        brought = row_exchange[:, stage - 1, roots ^ 1 << (stage - 1)]
        found.append(np.stack((brought.reshape(-1), row_exchange[:, stage].reshape(-1))))
    brought = row_exchange[from_root[1], stages - 1, from_root[2] ^ 1 << (stages - 1)]
    found.append(np.stack((brought, from_root[0])))
    return np.concatenate(found, axis=1)
