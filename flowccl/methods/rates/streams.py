"""Pipelines for the chunks of a demand, made from rates of trees: which trees, how many, and when each chunk starts."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from flowccl.adapters.reversal import opposite_links
from flowccl.demand.demand import Demand
from flowccl.methods.rates.network import F64, I64, PricedNetwork
from flowccl.methods.rates.pipeline import ChunkStream, Pipelines
from flowccl.methods.rates.rounding import EVEN, Columns, deal_columns, dealt, whole_chunks
from flowccl.methods.rates.sequence import in_sequence
from flowccl.methods.rates.trees import TreeRates, fewer_trees
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import reverse
from flowccl.topology.topology import Topology

_WHOLE_SHARE = 0.25  # of the time limit for the rates: for the program that places whole chunks
_LEAST_PARTS = (0.001, 0.1)  # of the largest tree of a root: trees with less data are left out


class Planned(NamedTuple):
    """A schedule that was not made yet, with its expected completion time.

    `crowded` is the sum of the squares of the times for which links and limits are busy.
    """

    time_ps: float
    crowded: float
    make: Callable[[], Schedule]


@dataclass
class TreePipelines:
    """Pipelines with few or many trees: from the roots that have the data, or over pairs of trees of free roots."""

    topology: Topology
    demand: Demand
    rates: TreeRates
    data: F64 | None
    method: str

    @cached_property
    def network(self) -> PricedNetwork:
        """The resources of the machine."""
        return PricedNetwork(self.topology)

    def in_order(self) -> list[Planned]:
        """All pipelines, the earliest first."""
        trees, rates = self.rates.trees, self.rates
        roots = np.array([tree.root + self.topology.num_gpus * tree.inward for tree in trees])
        columns = Columns.of(roots, rates.even, rates.load)
        amounts = fewer_trees(self.network, rates, self.data, len(self.demand), int(self.demand.chunk_bytes.sum()))
        amounts += [rates.even] if self.data is None else [rates.even, *self._whole_chunks(columns)]
        some = [self._pipelines(replace(columns, weight=one), least) for one in amounts for least in _LEAST_PARTS]
        some.sort(key=lambda one: one.time_ps)
        return [
            Planned(one.time_ps, float(np.square(one.load_ps).sum()), partial(one.schedule, self.method))
            for one in some
        ]

    def _whole_chunks(self, columns: Columns) -> list[F64]:
        """Whole chunks on each tree, where chunks that follow the rates load some links by much more."""
        source, capacity = self.demand.source.astype(np.int64), self.network.capacity
        whole = np.bincount(deal_columns(columns, source), minlength=len(columns.group)) / len(source)
        longer = columns.load(whole, capacity) - columns.load(self.rates.even, capacity)
        if float(longer.max()) <= (EVEN - 1) * self.rates.time:
            return []
        count = np.bincount(source, minlength=self.topology.num_gpus)
        found = whole_chunks(columns, capacity, count, self.rates.limit_s * _WHOLE_SHARE)
        return [] if found is None else [found]

    def _pipelines(self, columns: Columns, least: float) -> Pipelines:
        """Chunks in proportion to weights, on trees with this part of the largest of their root or more."""
        return Pipelines(self.network, self.demand, self._streams(columns.with_parts(least), least))

    def _streams(self, columns: Columns, least: float) -> list[ChunkStream]:
        demand, trees = self.demand, self.rates.trees
        if self.data is not None:
            choice = deal_columns(columns, demand.source.astype(np.int64))
            return [ChunkStream(trees[j].plan, np.flatnonzero(choice == j)) for j in np.unique(choice).tolist()]
        up, down = self._pairs(columns, least)
        pair = np.stack((up, down), axis=1)
        both, which = np.unique(pair, axis=0, return_inverse=True)
        return [
            ChunkStream(trees[a].plan.then(trees[b].plan), np.flatnonzero(which.reshape(-1) == i))
            for i, (a, b) in enumerate(both.tolist())
        ]

    def _pairs(self, columns: Columns, least: float) -> tuple[I64, I64]:
        """A tree into a root and one from it for each chunk of an allreduce, with few different pairs."""
        count = self.topology.num_gpus
        weight = np.where(columns.group < 0, 0, columns.weight)
        owned = np.bincount(np.maximum(columns.group, 0), weight, 2 * count)[:count]
        owner = dealt(np.where(owned >= least * owned.max(), owned, 0.0), len(self.demand))
        down, up = deal_columns(columns, owner), deal_columns(columns, owner + count)
        by_down, by_up, by_owner = (np.lexsort((one, owner)) for one in (down, up, owner))
        up[by_owner], down[by_owner] = up[by_up], down[by_down]
        return up, down


@dataclass
class HalvesPipelines:
    """An allreduce as a reduce-scatter and an allgather: `back` distributes on the reversed machine, for the first one.

    Where the machine equals its own reversal, one distribution serves both, and there is no `back`.
    """

    demand: Demand
    spread: TreePipelines
    back: TreePipelines | None

    @property
    def time(self) -> float:
        """The time of all data with these rates."""
        return self.spread.rates.time + (self.back or self.spread).rates.time

    def in_order(self) -> list[Planned]:
        """The earliest pipelines of both halves together, then the next ones."""
        there = self.spread.in_order()
        back = there if self.back is None else self.back.in_order()
        return [
            Planned(one.time_ps + other.time_ps, one.crowded + other.crowded, partial(self._both, one, other))
            for one, other in zip(back, there, strict=False)
        ]

    def _both(self, back: Planned, there: Planned) -> Schedule:
        topology, second = self.spread.topology, there.make()
        if self.back is None:
            opposite = opposite_links(topology)
            assert opposite is not None
            opposed = replace(second, topology=topology.reversed, routes=second.routes.renamed(opposite))
        else:
            opposed = back.make()
        return in_sequence(reversed_reduction(opposed, topology, self.demand.halves[0][0]), second, self.demand)


def reversed_reduction(found: Schedule, topology: Topology, demand: Demand) -> Schedule:
    """The reduction on a machine that is the reversal of a distribution on the reversed machine."""
    return replace(reverse(found, demand, reduce=True), topology=topology)
