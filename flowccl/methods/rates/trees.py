"""Optimal rates of trees, by column generation: how much of the data of each root travels over which tree.

A linear program minimizes the time T in which all data crosses the links and limits:

    minimize T   such that   sum over columns j of load(j, k) x(j) <= bandwidth(k) T   for every link and limit k,
                             sum over the trees j of root r of x(j) = the data of root r.

The columns are spanning trees whose edges are routes over switches. For the dual prices of links and limits, the
cheapest routes between GPUs and then the cheapest spanning tree (Edmonds) of each root are the columns that can lower T
most; where none can, T is optimal. For allreduce, data is reduced over a tree into its root and broadcast over another
one, and the program also chooses how much data each root gets. Prices with a total of one unit of bandwidth prove a
lower bound of T for all trees: the data of each root times the cost of its cheapest tree.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flowccl.errors import DemandError
from flowccl.methods.rates.network import F64, I64, PricedNetwork
from flowccl.methods.rates.tree_columns import PricedTrees, TreeColumn, gpu_prices, priced_trees
from flowccl.solver import ProgramBuilder, Session, SolverOptions
from flowccl.topology.topology import Topology

_CLOSE = 0.002  # relative distance of T to its lower bound at which columns suffice
_PATIENCE, _NEAR = 5, 0.05  # programs that hardly lower T, this near to its bound, before T counts as optimal
_DEPTH_WEIGHT = 2e-3  # part of T that a level of all trees costs: of equal trees, shallow ones are chosen
_SMOOTH = 0.5  # weight of the prices of the best bound (Wentges)
_WARM_STEPS = 3  # trees of each root with prices that follow the loads, before the first program is solved
_TURNS = 16  # times that these prices follow within a step
_WORTH = 1e-3  # part of its cost that a deeper tree must save to be kept beside a shallow one
_FULL = (0.5, 0.75, 0.875, 0.9375)  # parts of the time from which a resource that is busy longer costs more
_FEWER = 4  # programs that follow each other to find fewer trees
_NEGLIGIBLE = 1e-6  # part of the data of a root below which a tree is not used


@dataclass(frozen=True, slots=True)
class TreeRates:
    """Trees with the amount of data on each (the total of all roots is one), the time for that and its lower bound.

    `even` are other amounts, with which links that can be idle are less busy. The bound is exact up to a millionth, by
    which prices differ to prefer short paths.
    """

    trees: tuple[TreeColumn, ...]
    amount: F64
    even: F64
    time: float
    bound: float
    price: F64 = field(repr=False)
    load: tuple[F64, ...] = field(repr=False)
    limit_s: float = field(repr=False)
    """Seconds within which the rates were to be found."""


def tree_rates(network: PricedNetwork, data: F64 | None, time_limit_s: float) -> TreeRates:
    """Return trees and rates for data of each root (an allgather), or for an allreduce whose roots are free (None)."""
    network.check_connected()
    began = time.monotonic()
    master = _Master(network, data, began + time_limit_s)
    load = np.zeros(len(network.capacity))
    for step in range(_WARM_STEPS):
        master.spread(load)
        if time.monotonic() - began > time_limit_s / 3 and step:
            break
    return _generate(master, load, time_limit_s)


def pair_bound(network: PricedNetwork) -> float:
    """A lower bound of the time of all data over pairs of trees, quickly: each GPU receives what arrives there."""
    master = _Master(network, None, math.inf)
    return master.priced(master.arrivals())[0]


def least_of_halves(topology: Topology) -> float:
    """A lower bound of the time of all data over a reduce-scatter and then an allgather, from each GPU's own links."""
    count = topology.num_gpus
    ends = (topology.link_dst, topology.link_src)
    rates = (np.bincount(end, topology.link_GBps, len(topology.nodes))[:count] for end in ends)
    return sum((1 - 1 / count) / float(rate.min()) for rate in rates)


def _generate(master: "_Master", load: F64, time_limit_s: float) -> TreeRates:
    """Solve and add columns until the time is close to its bound, falls no more, or the time limit is over.

    `load` is that of the first trees.
    """
    solved = master.solve()
    if solved is None:
        raise DemandError(f"method packed-trees found no rates in {time_limit_s:.3g} s")
    total, price, amount = solved
    bound, center = _best_prices(master, [price, master.arrivals(), *master.crowded(amount, load)])
    slow = 0  # programs in a row that hardly lowered the time
    while total > bound * (1 + _CLOSE) and time.monotonic() < master.until:
        if slow >= _PATIENCE and total <= bound * (1 + _NEAR):
            break
        asked = _SMOOTH * center + (1 - _SMOOTH) * price
        value, found = master.priced(asked)
        if value <= bound:
            asked = price
            value, found = master.priced(price)
        if value > bound:
            bound, center = value, asked
        if not master.add(found):  # the smoothed prices have nothing new: use the prices themselves
            value, found = master.priced(price)
            if value > bound:
                bound, center = value, price
            if not master.add(found):
                break
        before, solved = total, master.solve()
        if solved is None:
            break
        total, price, amount = solved
        slow = slow + 1 if total > before * (1 - _CLOSE) else 0
    master.add(master.priced(center)[1])  # with shallow ones, to choose from where there are few chunks
    amount = np.concatenate((amount, np.zeros(len(master.trees) - len(amount))))
    even = master.evened(total, amount)
    used = master.useful(price, np.maximum(amount, even))
    return TreeRates(
        tuple(master.trees[j] for j in used),
        amount[used],
        even[used],
        total,
        bound,
        center,
        tuple(master.load_of[j] for j in used),
        time_limit_s,
    )


def _best_prices(master: "_Master", prices: Sequence[F64]) -> tuple[float, F64]:
    """The prices with the highest lower bound, and that bound."""
    bounds = [master.priced(price)[0] for price in prices]
    best = int(np.argmax(bounds))
    return bounds[best], prices[best]


def fewer_trees(network: PricedNetwork, rates: TreeRates, data: F64 | None, chunks: int, size_bytes: int) -> list[F64]:
    """Return amounts on the same trees for a number of chunks: those of the rates, and others on fewer trees.

    A tree with n chunks keeps its links busy for n - 1 + D periods, where D is its longest path in periods, and loses
    its latency L of the time T. So its data counts (n - 1 + D) / n + L / T times; n follows from the program before.
    """
    full = np.array(rates.load).T @ rates.amount / network.capacity
    links = full[: len(network.topology.links)] / full.max()  # a link that is used in part delays by that part
    latency, none = network.topology.link_latency_ps / (1000 * rates.time * size_bytes), np.zeros(len(links))
    path = np.array([tree.longest_path(links, none) for tree in rates.trees])
    lost = np.array([tree.longest_path(none, latency) for tree in rates.trees])
    if data is None:  # a pair of trees is as long as both
        path += float(path @ rates.amount / rates.amount.sum())
        lost += float(lost @ rates.amount / rates.amount.sum())
    amounts = [rates.amount]
    for _ in range(_FEWER):
        extra = np.maximum(path - 1, 0) / np.maximum(chunks * amounts[-1], 1) + lost
        master = _Master(network, data, time.monotonic() + rates.limit_s)
        master.add_loads(rates.trees, [load * (1 + more) for load, more in zip(rates.load, extra, strict=True)])
        solved = master.solve()
        if solved is None:
            break
        amounts.append(np.maximum(solved[2], 0))
    return amounts


class _Master:
    """The program: T, the data of each root where roots are free, and one column per tree."""

    def __init__(self, network: PricedNetwork, data: F64 | None, until: float) -> None:
        self.network, self.data, self.until = network, data, until
        self.count = network.topology.num_gpus
        self.reversed = PricedNetwork(network.topology.reversed) if data is None else None
        self.trees = list[TreeColumn]()
        self.load_of = list[F64]()
        self.known = set[tuple[int, bool, int, bytes]]()
        model = ProgramBuilder()
        total = model.variables("time", cost=1)
        resources, groups = len(network.capacity), self.count * (1 if data is not None else 2)
        model.rows("resource", resources, upper=0).add(total, times=-network.capacity)
        if data is not None:
            model.rows("root", groups, equals=data)
        else:
            share = model.variables("share", self.count)
            rows = model.rows("root", groups, equals=0)
            rows.add_at(np.arange(self.count), share, times=-1)
            rows.add_at(np.arange(self.count) + self.count, share, times=-1)
            model.rows("all", equals=1).add(share, sum_axis=0)
        self.fixed = 1 if data is not None else 1 + self.count
        self.session = Session(model.build(), SolverOptions(method="simplex"))
        self.scale = 0.0

    def solve(self) -> tuple[float, F64, F64] | None:
        """The least time with the trees so far, the prices of resources, and the data on each tree.

        None where the time is over before that.
        """
        solution = self.session.solve(max(self.until - time.monotonic(), 0.0))
        if solution.values is None or solution.duals is None:
            return None
        price = np.maximum(-solution.duals[: len(self.network.capacity)], 0.0)
        price /= max(float(price @ self.network.capacity), 1e-300)
        return float(solution.values[0]), price, solution.values[self.fixed :]

    def evened(self, total: float, amount: F64) -> F64:
        """Data on all trees in about the same time, with less on resources that are busy for nearly all of it.

        The fuller, the more it costs: a schedule waits for what is nearly full, while a pipeline fills early over what
        is not. The amounts themselves where there is no time for that. This is the last program of the session.
        """
        from scipy import sparse

        used = np.flatnonzero(np.array(self.load_of).any(axis=0))
        capacity, count = total * self.network.capacity[used], len(used) * len(_FULL)
        loads = sparse.csr_array(np.array(self.load_of).T[used] / capacity[:, None])
        beyond = self.session.add_columns(
            np.full(count, total / len(used)), sparse.csc_array((self.session.program.num_rows, count))
        )
        before = sparse.csr_array((count, self.fixed))
        trees = sparse.vstack([loads] * len(_FULL))
        rows: Any = sparse.hstack((before, trees, -sparse.eye_array(count)))
        self.session.add_rows(rows, upper=np.repeat(_FULL, len(used)))
        only_time = np.eye(1, self.session.program.num_columns)
        self.session.add_rows(only_time, upper=total * (1 + _CLOSE))
        solution = self.session.solve(max(self.until - time.monotonic(), 0.0))
        return amount if solution.values is None else np.maximum(solution.values[self.fixed : int(beyond[0])], 0.0)

    def crowded(self, amount: F64, load: F64) -> list[F64]:
        """Prices on the most loaded resources only: those that the program fills, and those that the first trees fill.

        Where machines are regular, the prices of the program are far from the only ones, and often poor bounds.
        """
        capacity = self.network.capacity
        full = np.array(self.load_of).T @ amount / capacity
        full, first = full / full.max(), load / capacity / (load / capacity).max()
        weights = (full > 1 - _CLOSE, full > 1 - _NEAR, first**16, first**64)
        return [np.asarray(weight / capacity / weight.sum()) for weight in weights]

    def arrivals(self) -> F64:
        """The same price on every link into a GPU: all GPUs receive everything, which is often what takes longest."""
        price = np.zeros(len(self.network.capacity))
        price[: len(self.network.topology.links)] = self.network.topology.link_dst < self.count
        return price

    def useful(self, price: F64, amount: F64) -> I64:
        """The trees with data, and for each root shallower ones: the cheapest of each depth that is worth its depth."""
        cost = np.array(self.load_of) @ price
        group = np.array([tree.root + self.count * tree.inward for tree in self.trees])
        depth = np.array([tree.depth for tree in self.trees])
        has_data = amount > _NEGLIGIBLE / self.count
        kept, least = has_data.copy(), np.full(2 * self.count, np.inf)
        able = np.ones(len(group), dtype=np.bool_)
        if self.data is None:  # only roots with data
            able = np.isin(group % self.count, np.unique(group[has_data] % self.count))
        for j in np.lexsort((cost, depth, group)).tolist():
            if able[j] and cost[j] < least[group[j]] * (1 - _WORTH):
                kept[j], least[group[j]] = True, cost[j]
        return np.flatnonzero(kept)

    def priced(self, price: F64) -> tuple[float, list[PricedTrees]]:
        """The least cost of all data for these prices, and the cheapest trees of each root, some of them shallow."""
        price = price / max(float(price @ self.network.capacity), 1e-300)
        cost, found = self._cheapest(self.network, price, inward=False)
        if self.data is not None:
            return float(self.data @ cost), [found]
        assert self.reversed is not None
        back_cost, back = self._cheapest(self.reversed, price, inward=True)
        return float((cost + back_cost).min()), [found, back]

    def _cheapest(self, network: PricedNetwork, price: F64, *, inward: bool) -> tuple[F64, PricedTrees]:
        between, last, typical = gpu_prices(network, price)
        roots = np.arange(self.count) if self.data is None else np.flatnonzero(self.data)
        found = priced_trees(network, roots, between, last, typical, inward)
        cost = np.zeros(self.count)
        for row, tree in enumerate(found.columns[: len(roots)]):
            others = np.arange(self.count) != tree.root
            cost[roots[row]] = between[tree.parent[others], np.flatnonzero(others)].sum()
        return cost, found

    def spread(self, load: F64) -> None:
        """Add trees for some roots after others, cheapest for prices that grow with the load so far: it is updated."""
        capacity, found = self.network.capacity, []
        roots = np.flatnonzero(np.ones(self.count) if self.data is None else self.data)
        data = np.ones(self.count) if self.data is None else self.data
        for some in np.array_split(roots, min(len(roots), _TURNS)):
            for network in filter(None, (self.network, self.reversed)):
                relative = load / capacity / max(float((load / capacity).max()), 1e-300)
                between, last, typical = gpu_prices(network, (0.02 + relative**4) / capacity)
                trees = priced_trees(network, some, between, last, typical, network is self.reversed)
                load += data[np.tile(some, 2)] @ trees.loads[: 2 * len(some)] / 2
                found.append(trees)
        self.add(found)

    def add(self, found: list[PricedTrees]) -> int:
        """Add the trees that are new; return their number."""
        new, loads = list[TreeColumn](), list[F64]()
        for trees in found:
            for tree, load in zip(trees.columns, trees.loads, strict=True):
                key = (tree.root, tree.inward, tree.depth, load.tobytes())
                if key not in self.known:
                    self.known.add(key)
                    new.append(tree)
                    loads.append(load)
        if new:
            self.add_loads(new, loads)
        return len(new)

    def add_loads(self, new: Sequence[TreeColumn], loads: list[F64]) -> None:
        """Add trees with their loads."""
        from scipy import sparse

        resources, rows = len(self.network.capacity), self.session.program.num_rows
        column, resource = np.nonzero(np.array(loads))
        group = [resources + tree.root + (self.count if tree.inward else 0) for tree in new]
        value = np.concatenate((np.array(loads)[column, resource], np.ones(len(new))))
        at = np.concatenate((resource, group)), np.concatenate((column, np.arange(len(new))))
        entries = sparse.csc_array((value, at), shape=(rows, len(new)))
        if not self.scale:  # the time of the first trees alone, for the price of depth
            weight = self.data if self.data is not None else np.full(self.count, 1.0 / self.count)
            first = sum((weight[tree.root] * load for tree, load in zip(new, loads, strict=True)), np.zeros(1)) / 2
            self.scale = float((first / self.network.capacity).max())
        cost = np.array([tree.depth * _DEPTH_WEIGHT * self.scale for tree in new])
        self.session.add_columns(cost, entries)
        self.trees += new
        self.load_of += loads
