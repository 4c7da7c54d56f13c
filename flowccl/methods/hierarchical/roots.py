"""The root of each chunk of an allreduce: contributions are reduced there, and the result is spread from there.

The group of a root sends the result to all others, and receives from all others: more than they do. So a host with a
slow or lost network card has fewer roots. Chunks that would have their roots there have them where links have time
left (`LEAST`), or only at GPUs with routes to all groups (`NEAR`). Or they go along binary trees (`BINARY`) with that
host as a leaf: one chunk more, to all groups, would load the network card of another root by much.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import distinct
from flowccl.methods.hierarchical.loads import POWER
from flowccl.methods.hierarchical.trees import DIRECT, TreeBuilder
from flowccl.schedule.timing import spread

F64 = NDArray[np.float64]
_EQUAL = 1 + 1e-9  # costs that differ by less are equal
_BINARY = 2
LEAST, NEAR, BINARY = "least", "near", "binary"  # what decides where roots are


class RootChoice:
    """Chooses roots by the loads of the links of each GPU, and of each outermost group, to other groups."""

    def __init__(self, trees: TreeBuilder) -> None:
        network, label = trees.network, np.array(trees.shape.labels[0])
        self.network, self.index, self.label, self.groups = network, trees.index, label, int(label.max()) + 1
        self.placement = trees.shape.roots
        between = network.joins_groups(label)
        used, none = network.links[between], len(network.topology.links)
        last = (used < none).sum(axis=1) - 1
        out = network.src[between] * np.int64(none) + used[:, 0]
        into = network.end[between] * np.int64(none) + used[np.arange(len(used)), last]
        self.sides = [self._side(side, used) for side in (out, into)]
        self.transfers = {arity: _transfers(self.groups, arity) for arity in (DIRECT, _BINARY)}
        self.placed_at = np.zeros(len(label))
        self.asked, self.placed = np.zeros((2, self.groups))  # chunks of each group so far, and those with roots there

    @cached_property
    def is_even(self) -> bool:
        """Whether all GPUs have the same bandwidth to other groups."""
        rates = [self._rates(side, side.gpu, len(self.label))[0] for side in self.sides]
        return all(bool((rate == rate[0]).all()) for rate in rates)

    @cached_property
    def is_alike(self) -> NDArray[np.bool_]:
        """Whether all GPUs of each group have the same bandwidth to other groups."""
        rates = np.minimum(*(self._rates(side, side.gpu, len(self.label))[0] for side in self.sides))
        least, most = np.full(self.groups, np.inf), np.zeros(self.groups)
        np.minimum.at(least, self.label, rates)
        np.maximum.at(most, self.label, rates)
        return np.asarray(least * _EQUAL >= most)

    @cached_property
    def reaches_all(self) -> NDArray[np.bool_]:
        """Whether each GPU has routes to and from all other groups, over links that are not overloaded."""
        network, label = self.network, self.label
        usable = network.joins_groups(label) & ~network.overloaded[network.links].any(axis=1)
        result = np.ones(len(label), dtype=np.bool_)
        for gpu, other in ((network.src, network.end), (network.end, network.src)):
            pairs = np.unique(np.stack((gpu[usable].astype(np.int64), label[other[usable]])), axis=1)
            result &= np.bincount(pairs[0], minlength=len(label)) == self.groups - 1
        return result

    @cached_property
    def share(self) -> F64:
        """The part of the chunks of each group that have their roots there: all, unless it would be late.

        A group sends the contribution to each chunk of another group, and sends its own chunks to all other groups: in
        units of all data, 1 + part (groups - 2), where part is that of the chunks with roots there.
        """
        if self.groups <= 2:
            return np.ones(self.groups)
        rates = [self._rates(side, self.label[side.gpu], self.groups)[0] for side in self.sides]
        rate = np.maximum(np.minimum(*rates), 1e-9)
        takes = max(2 * (self.groups - 1) / float(rate.sum()), float(1 / rate.min()))
        return np.clip((takes * rate - 1) * self.groups / (self.groups - 2), 0.0, 1.0)

    @cached_property
    def part(self) -> F64:
        """The part of the chunks of its group that have their roots at each GPU, by its rate."""
        rates = np.minimum(*(self._rates(side, side.gpu, len(self.label))[0] for side in self.sides))
        whole = np.bincount(self.label, rates, self.groups)
        return np.asarray(self.share[self.label] * rates / np.maximum(whole[self.label], 1e-9))

    def root(self, wanted: list[int], block: int, turn: int, size: int) -> tuple[int, int]:
        """The root of the chunk of a block that is planned in this turn, one of the GPUs that want it; and the arity.

        Where all are alike, they are roots in turn, so that each sends as much of the results as the others.
        """
        if self.placement == NEAR and (near := [rank for rank in wanted if self.reaches_all[rank]]):
            return near[turn % len(near)], DIRECT
        preferred = wanted[block % len(wanted)]
        if self.is_even:
            return preferred, DIRECT
        ranks, group, arity = np.array(wanted), int(self.label[preferred]), DIRECT
        if self.placement == BINARY and self.share[group] < 1 and not self.is_alike[group]:
            self.asked[group] += 1
            own = ranks[self.label[ranks] == group]
            free = own[self.placed_at[own] + 1 <= self.part[own] * self.asked[group]]
            if len(free):
                root = preferred if preferred in free else self._least_loaded(free, preferred, size)
                self.placed_at[root] += 1
                return root, DIRECT
            arity = _BINARY
        elif self.placement == BINARY:
            self.asked[group] += 1
            stays = self.placed[group] + 0.5 <= self.share[group] * self.asked[group]
            self.placed[group] += stays
            arity = DIRECT if stays else _BINARY
            if stays and self.is_alike[group]:
                return preferred, arity  # else some GPUs would be roots of two chunks of a round, and others of none
        if self.placement != BINARY or arity == _BINARY:
            cost, allowed = self._group_cost(size, arity), np.unique(self.label[ranks])
            best = allowed[cost[allowed] <= cost[allowed].min() * _EQUAL]
            group = int(best[np.argmin((best - group) % self.groups)])
        return self._least_loaded(ranks[self.label[ranks] == group], preferred, size), arity

    def _least_loaded(self, ranks: NDArray[np.int64], preferred: int, size: int) -> int:
        """The best of some GPUs; of equally good ones the preferred one, or the next after it."""
        time = self._gpu_time(size)[ranks]
        equal = ranks[time <= time.min() * _EQUAL]
        away = (self.index[equal] - self.index[preferred]) % len(self.index)
        return int(equal[np.argmin(away)])

    def _group_cost(self, size: int, arity: int) -> F64:
        """What a tree with its root in each group costs: the sum of the powers of the loads that groups then have."""
        total = np.zeros(self.groups)
        for side in self.sides:
            rate, load = self._rates(side, self.label[side.gpu], self.groups)
            then = (load[None, :] + size * self.transfers[arity]) / np.maximum(rate, 1e-9)[None, :]
            total += (then**POWER).sum(axis=1)
        return total

    def _gpu_time(self, size: int) -> F64:
        """The time that the links of each GPU to other groups need for a chunk more; inf without such links.

        Overloaded ones do not count: what a root sends would go over other GPUs.
        """
        result = np.zeros(len(self.label))
        for side in self.sides:
            usable = ~self.network.overloaded[side.link]
            some = _Side(side.gpu[usable], side.link[usable], side.rate[usable])
            rate, load = self._rates(some, some.gpu, len(self.label))
            result += np.where(rate > 0, (load + size) / np.where(rate > 0, rate, 1.0), np.inf)
        return result

    def _rates(self, side: "_Side", owner: NDArray[np.int64], count: int) -> tuple[F64, F64]:
        """The rate of the links of each owner together, in bytes per ps, and the bytes that they carry so far."""
        carried = self.network.load_ps[side.link] / self.network.per_byte_ps[side.link]
        rates, loads = np.bincount(owner, side.rate, count), np.bincount(owner, carried, count)
        return rates.astype(np.float64), loads.astype(np.float64)

    def _side(self, key: NDArray[np.int64], used: NDArray[np.int64]) -> "_Side":
        """The GPUs and links of routes with the links `used`, and their rates; `key` has both of each route."""
        order, topology = np.argsort(key, kind="stable"), self.network.topology
        key, used, none = key[order], used[order], len(topology.links)
        begin = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
        of, some = np.repeat(np.arange(len(begin)), np.diff(np.append(begin, len(key)))), used[begin]
        on_all = [np.logical_and.reduceat((used == one[of, None]).any(axis=1), begin) for one in some.T]
        row, column = np.nonzero(np.stack(on_all, axis=1) & (some < none))
        link = some[row, column]
        rate = np.full(len(begin), np.inf)
        np.minimum.at(rate, row, 1 / (self.network.per_byte_ps[link] * np.bincount(link)[link]))
        pointer, limit = topology.link_limits
        of_limit, place = spread(pointer, link.astype(np.int32))
        shared = distinct(row[of_limit] * np.int64(len(topology.limits)) + limit[place])
        row, which = np.divmod(shared, max(len(topology.limits), 1))
        np.minimum.at(rate, row, topology.limit_GBps[which] / (1000 * np.bincount(which)[which]))
        return _Side(*np.divmod(key[begin], none), rate)


class _Side(NamedTuple):
    """Links of GPUs to other groups, or from there.

    `rate` is the share of each, in bytes per ps, of what all its routes use: another link or a limit may be slower, or
    shared by several GPUs.
    """

    gpu: NDArray[np.int64]
    link: NDArray[np.int64]
    rate: F64


def _transfers(groups: int, arity: int) -> NDArray[np.int64]:
    """What each group (column) sends, or receives, for a chunk with its root in a group (row)."""
    children = np.bincount((np.arange(1, groups) - 1) // arity, minlength=groups)
    transfers, numbers = children + (np.arange(groups) > 0), np.arange(groups)
    return np.asarray(transfers[(numbers[None, :] - numbers[:, None]) % groups])
