"""Plans: the transfers of all chunks on a hierarchy, and what each of them waits for.

A chunk with one source goes down a tree. In an allreduce, a chunk goes up a tree to a root and down a tree from there.
Or each group of the outermost level reduces a chunk to its gateway, the gateways exchange what they have, and each
spreads the result in its group; some chunks may go like that while others have roots. Or the groups of the
innermost level do so, and exchange in stages, level by level: on every other rail from the outermost level inwards, on
the others from the innermost level outwards, so that the outermost links are busy early and late. Other reductions are
plans of the reversed demand, run backwards.
"""

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.methods.hierarchical.loads import LoadedRoutes
from flowccl.methods.hierarchical.roots import RootChoice
from flowccl.methods.hierarchical.row_kernels import EXCHANGE, REDUCE, SPREAD
from flowccl.methods.hierarchical.rows import GrowingRows
from flowccl.methods.hierarchical.scheduling import TransferPlan
from flowccl.methods.hierarchical.trees import DIRECT, TreeBuilder, TreeShape
from flowccl.topology.topology import Topology

I64 = NDArray[np.int64]
_OVERLOADED = 1.5  # load over the mean load of links like it; whole chunks make smaller differences


@dataclass(eq=False)
class HierarchicalPlanner:
    """Plans chunk after chunk: a chunk with one source, or with the same sources and destinations.

    `demand` has one chunk per block. The plan of more chunks of every block is that of fewer, and then goes on by the
    loads that those leave.
    """

    topology: Topology
    demand: Demand
    shape: TreeShape
    overloaded: NDArray[np.bool_] | None = None
    chunks: list[I64] = field(default_factory=list)  # block, rail, root, transfers up to here; by round
    lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.load_ps = load_ps = np.zeros(len(self.topology.links) + 1)
        self.forward = TreeBuilder(LoadedRoutes(self.topology, load_ps, by_rate=self.shape.by_rate), self.shape)
        self.backward = self.forward
        if self.demand.reduces:
            back = LoadedRoutes(self.topology.reversed, load_ps, by_rate=self.shape.by_rate)
            self.backward = TreeBuilder(back, self.shape)
        for tree in (self.forward, self.backward):
            if self.overloaded is not None:
                tree.network.overloaded = self.overloaded
        self.width, self.groups = max(map(len, self.forward.members[-1])), len(self.forward.members[0])
        self.order = _in_turns(self.demand)
        self.rows = GrowingRows(len(self.topology.nodes))
        self.ends = [(0, 0)]  # the marks of the rows after each chunk of every block
        self.rails: dict[tuple[int, ...], int] = {}  # the sets of gateways of exchanges, numbered
        self.turn, self.rail, self.root = 0, -1, -1  # of the present chunk: its number in the plan; see `chunks`

    def found_overloaded(self) -> NDArray[np.bool_]:
        """The links between groups with more load than the links like them have on average, as a slow network card.

        Where the links of a whole group have more, all of them count: none is better than the others.
        """
        topology, joins = self.topology, np.zeros(len(self.load_ps), dtype=np.bool_)
        network, label = self.forward.network, np.array(self.shape.labels[0])
        joins[network.links[network.joins_groups(label)]] = True
        kind = 2 * topology.stores[topology.link_src] + topology.stores[topology.link_dst]
        used = np.flatnonzero(joins[:-1] & (self.load_ps[:-1] > 0))
        load, kind = self.load_ps[used], kind[used]
        group = np.full(len(topology.nodes), -1)
        group[: len(label)] = label
        own = 4 * (1 + np.maximum(group[topology.link_src], group[topology.link_dst])[used]) + kind
        mean, whole = (np.bincount(of, load) / np.maximum(np.bincount(of), 1) for of in (kind, own))
        highest = np.where(own >= 4, np.maximum(load, whole[own]), load)
        found = np.zeros(len(self.load_ps), dtype=np.bool_)
        found[used] = highest > _OVERLOADED * mean[kind]
        return found

    def grow(self, pieces: int) -> None:
        """Choose the routes of some chunks of every block, and count their loads."""
        with self.lock:
            while len(self.ends) <= pieces:
                # Every other round runs backwards, since blocks that choose first load the best links.
                blocks = self.order if len(self.ends) % 2 else self.order[::-1].copy()
                self.chunks.append(self._spread_all(blocks) if self.is_spread else self._plan_each(blocks))
                self.ends.append(self.rows.marks)

    def plan(self, pieces: int) -> TransferPlan:
        """The plan of some chunks of every block."""
        self.grow(pieces)
        count = self.ends[pieces][0]
        routes, route = self.rows.routes(count).distinct()
        index, start = self.forward.index, self.topology.link_src[routes.link[routes.ptr[route]]]
        end, reduce = self.rows.rows.end[:count].copy(), self.rows.rows.reduce[:count].copy()
        shift = (index[end] - index[start]) % self.width
        blocks, rail, root, last = np.concatenate(self.chunks[:pieces]).T
        turn = np.repeat(np.arange(len(last)), np.diff(last, prepend=0))  # of the chunk of each transfer
        rounds = turn // self.width
        if self.shape.rooted:
            away = self._away(root[turn], np.where(reduce, start, end), reduce)
            rounds = turn // len(self.order) * self.groups + np.where(root[turn] >= 0, away, 0)
        before, after, joins = self.rows.waits(self.ends[pieces])
        return TransferPlan(
            routes,
            blocks[turn] * pieces + turn // len(self.order),
            route.astype(np.int64),
            reduce,
            before,
            after,
            rounds,
            shift,
            rail[turn],
            self.rows.exchanges(count),
            joins,
        )

    def _away(self, root: NDArray[np.int64], node: NDArray[np.int64], reduce: NDArray[np.bool_]) -> NDArray[np.int64]:
        """How many groups the root is after the group of a sender, or the group of a receiver after that of the root.

        In this order, the groups send to different ones at the same time.
        """
        label = np.full(len(self.topology.nodes), 0)
        label[: len(self.shape.labels[0])] = self.shape.labels[0]
        after = label[root] - label[node]
        return np.asarray(np.where(reduce, after, -after) % self.groups, dtype=np.int64)

    @cached_property
    def is_spread(self) -> bool:
        """Whether every chunk has one source."""
        return len(self.demand.source_rank) == len(self.demand)

    def _spread_all(self, blocks: I64) -> I64:
        """Send a chunk of each block from its source: the block, no rail, no root, and the transfers up to there."""
        demand, until = self.demand, np.zeros(len(blocks), dtype=np.int64)
        source, destination = demand.source_rank.astype(np.int64), demand.destination_rank.astype(np.int64)
        size = demand.chunk_bytes.astype(np.float64)
        chunks = (blocks, source, demand.destination_ptr, destination, size)
        at = 0
        while at < len(blocks):
            at = self.forward.add_spreads(self.rows.with_space(self.forward), at, chunks, until)
        none = np.full(len(blocks), -1)
        return np.stack((blocks, none, none, until), axis=1)

    def _plan_each(self, blocks: I64) -> I64:
        """Plan a chunk of each block: the block, its rail, its root, and the transfers up to there."""
        result = []
        for block in blocks.tolist():
            self.rail, self.root = -1, -1
            self.rows.begin_chunk()
            self._plan_chunk(block)
            result.append((block, self.rail, self.root, self.rows.marks[0]))
            self.turn += 1
        return np.array(result, dtype=np.int64)

    def _plan_chunk(self, chunk: int) -> None:
        demand = self.demand
        sources, wanted = demand.sources(chunk).tolist(), demand.destinations(chunk).tolist()
        size = int(demand.chunk_bytes[chunk])
        if len(sources) == 1:
            self._spread(sources[0], wanted, size, DIRECT)
        elif self.shape.has_root(len(self.ends) - 1):
            self.root, arity = self.roots.root(wanted, chunk, self.turn, size)
            self._reduce(self.root, sources, size, arity)
            self._spread(self.root, wanted, size, arity)
        else:
            self._exchange(sources, wanted, size)

    def _spread(self, root: int, wanted: list[int], size: int, arity: int, level: int = 0) -> None:
        """Down a tree: each parent sends what it has."""
        self.forward.add(self.rows.with_space(self.forward), SPREAD, root, wanted, size, level, arity)

    def _reduce(self, root: int, sources: list[int], size: int, arity: int, level: int = 0) -> None:
        """Up a tree of the reversed machine: each child sends when it has all contributions from below."""
        self.backward.add(self.rows.with_space(self.backward), REDUCE, root, sources, size, level, arity)

    def _exchange(self, sources: list[int], wanted: list[int], size: int) -> None:
        """Reduce to the gateway of every group, exchange between the gateways, spread from each gateway.

        The groups are those of the outermost level; of an exchange in stages, those of the innermost one.
        """
        depth = len(self.shape.labels) if self.shape.is_staged else 1
        label = self.shape.labels[depth - 1]
        groups = sorted({label[rank] for rank in sources})
        inside = {g: [rank for rank in sources if label[rank] == g] for g in groups}
        choose = self._on_one_rail if self.shape.is_staged else self._gateways
        gateway = choose(groups, inside, size, self.turn)
        self.rail = self.rails.setdefault(tuple(gateway[group] for group in groups), len(self.rails))
        for group in groups:
            self._reduce(gateway[group], inside[group], size, DIRECT, depth)
        stages = self.stages if self.shape.is_staged else [[groups]]
        for stage in stages if self.rail % 2 == 0 else stages[::-1]:
            for members in stage:
                self._exchange_among([gateway[group] for group in members], size)
        for group in groups:
            ends = [rank for rank in wanted if label[rank] == group]
            self._spread(gateway[group], ends, size, DIRECT, depth)

    def _exchange_among(self, gateways: list[int], size: int) -> None:
        """Each gateway sends what it has to all others."""
        rows = self.rows.with_space(self.forward, len(gateways) ** 2)
        self.forward.add(rows, EXCHANGE, -1, gateways, size)

    @cached_property
    def roots(self) -> RootChoice:
        """The choice of roots, by the loads so far."""
        return RootChoice(self.forward)

    @cached_property
    def stages(self) -> list[list[list[int]]]:
        """For each level, the sets of innermost groups that exchange there: those with the same place on all others.

        The place of a group on a level is its number within the group around it. Raises NoExchangeError where groups
        of a level have different numbers of groups inside.
        """
        labels = [np.array(label) for label in self.shape.labels]
        first = np.unique(labels[-1], return_index=True)[1]
        around = [np.zeros(len(first), dtype=np.int64), *(label[first] for label in labels)]
        places = []
        for outer, inner in pairwise(around):
            place = np.array(
                [len(np.unique(inner[(outer == o) & (inner < i)])) for o, i in zip(outer, inner, strict=True)]
            )
            places.append(place)
        stages = []
        for level, place in enumerate(places):
            others = np.array([other for at, other in enumerate(places) if at != level]).reshape(-1, len(first))
            _, key = np.unique(others, axis=1, return_inverse=True)
            sets = [np.flatnonzero(key.reshape(-1) == k).tolist() for k in range(int(key.max()) + 1)]
            if any(len(members) != int(place.max()) + 1 for members in sets):
                raise NoExchangeError
            stages.append(sets)
        return stages

    def _gateways(self, groups: list[int], inside: dict[int, list[int]], size: int, turn: int) -> dict[int, int]:
        """One GPU per group, each a neighbour of those of all other groups, at the least cost."""
        own = {g: self._own_cost(ranks, size) for g, ranks in inside.items()}
        first = groups[turn % len(groups)]
        others = [group for group in groups if group != first]
        ranks = np.array(inside[first])
        joint = [(self._pair_cost(inside[first], inside[g], size) + own[g][None, :]).min(axis=1) for g in others]
        cost = own[first] + np.sum(joint, axis=0)
        if not np.isfinite(cost.min()):
            raise NoExchangeError
        index = self.forward.index
        at = int(np.lexsort(((index[ranks] - turn) % len(ranks), cost))[0])
        chosen = {first: int(ranks[at])}
        for g in others:
            ends = np.array(inside[g])
            off_rail = (index[ends] - index[ranks[at]]) % len(index)
            cost = own[g] + self._pair_cost(list(chosen.values()), inside[g], size).sum(axis=0)
            if not np.isfinite(cost.min()):
                raise NoExchangeError
            chosen[g] = int(ends[np.lexsort((off_rail, cost))[0]])
        return chosen

    def _on_one_rail(self, groups: list[int], inside: dict[int, list[int]], size: int, turn: int) -> dict[int, int]:
        """GPUs with the same number in each group, at the least cost; groups of different sizes have none."""
        width = len(inside[groups[0]])
        if any(len(inside[group]) != width for group in groups):
            raise NoExchangeError
        own = [self._own_cost(inside[group], size) for group in groups]
        pairs = [np.diag(self._pair_cost(inside[a], inside[b], size)) for a, b in pairwise(groups)]
        cost = np.sum([*own, *pairs], axis=0)
        if not np.isfinite(cost.min()):
            raise NoExchangeError
        at = int(np.lexsort(((np.arange(width) - turn) % width, cost))[0])
        return {group: inside[group][at] for group in groups}

    def _own_cost(self, ranks: list[int], size: int) -> NDArray[np.float64]:
        """The cost of each GPU as a gateway of its group: what it receives to reduce and what it forwards."""
        return self.forward.spread_cost(ranks, ranks, size) + self.backward.spread_cost(ranks, ranks, size)

    def _pair_cost(self, ones: list[int], others: list[int], size: int) -> NDArray[np.float64]:
        """The cost of the routes between GPUs of two groups, in both directions; inf where there is none."""
        a, b = (table.reshape(-1) for table in np.meshgrid(ones, others, indexing="ij"))
        network = self.forward.network
        return (network.hop_cost(a, b, size) + network.hop_cost(b, a, size)).reshape(len(ones), len(others))


class NoExchangeError(Exception):
    """No GPUs of all groups are neighbours of each other."""


def _in_turns(demand: Demand) -> I64:
    """All chunks: the first of every source (or destination), then the second, those for nearby ranks first."""
    first = demand.source_rank[demand.source_ptr[:-1]].astype(np.int64)
    last = demand.destination_rank[demand.destination_ptr[:-1]].astype(np.int64)
    single = np.diff(demand.source_ptr) == 1
    owner = np.where(single, first, last)
    many = ~single & (np.diff(demand.destination_ptr) > 1)
    piece = np.arange(len(demand)) % demand.pieces
    owner = np.where(many, np.arange(len(demand)) // demand.pieces, owner)
    away = np.where(single & (np.diff(demand.destination_ptr) == 1), (last - first) % demand.num_gpus, 0)
    return np.lexsort((owner, away, piece)).astype(np.int64)
