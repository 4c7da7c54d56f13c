"""Whole chunks for rates: each chunk takes one tree, such that the loads stay close to those of the rates."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.methods.rates.network import F64, I64
from flowccl.solver import ProgramBuilder, SolverOptions, solve

_SWEEPS = 40
EVEN = 1.01  # load of the busiest link, relative to the least possible one, up to which chunks are evenly spread


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns as sparse rows of resources, by group; `weight` is the data that the rates put on each."""

    group: I64
    weight: F64
    ptr: I64
    resource: I64
    amount: F64

    @classmethod
    def of(cls, group: I64, weight: F64, loads: "tuple[F64, ...]") -> "Columns":
        """Columns from their groups, weights, and loads of all resources."""
        used = [np.flatnonzero(load) for load in loads]
        ptr = pointers([len(one) for one in used])
        resource = np.concatenate(used).astype(np.int64)
        return cls(group, weight, ptr, resource, np.concatenate([load[k] for load, k in zip(loads, used, strict=True)]))

    def load(self, weight: F64, capacity: F64) -> F64:
        """How long each resource is busy with a weight on each column."""
        sent = self.amount * np.repeat(weight, np.diff(self.ptr))
        return np.bincount(self.resource, sent, len(capacity)) / capacity

    def with_parts(self, least: float) -> "Columns":
        """The columns; those with less than this part of the weight of the heaviest one of their group in no group."""
        heaviest = np.zeros(int(self.group.max()) + 1)
        np.maximum.at(heaviest, self.group, self.weight)
        return replace(self, group=np.where(self.weight >= least * heaviest[self.group], self.group, -1))

    def by_group(self, groups: int) -> tuple[I64, I64]:
        """The columns of each group: pointer, column."""
        order = np.argsort(self.group, kind="stable").astype(np.int64)
        return np.searchsorted(self.group[order], np.arange(groups + 1)).astype(np.int64), order


def deal_columns(columns: Columns, group: I64) -> I64:
    """Return a column for every chunk, given its group: chunks are dealt to the columns of their group by weight."""
    groups = int(max(group.max(), columns.group.max())) + 1
    ptr, column = columns.by_group(groups)
    choice = np.empty(len(group), dtype=np.int64)
    by_group = np.argsort(group, kind="stable")
    for chunks in np.split(by_group, np.flatnonzero(np.diff(group[by_group])) + 1):
        choices = column[ptr[group[chunks[0]]] : ptr[group[chunks[0]] + 1]]
        choice[chunks] = choices[dealt(columns.weight[choices], len(chunks))] if len(choices) > 1 else choices[0]
    return choice


def whole_chunks(columns: Columns, capacity: F64, count: I64, limit_s: float) -> F64 | None:
    """Return how many chunks take each column, for `count` chunks of each group.

    What the most delayed resource is busy for longer than with the weights is the least. None where no solution is
    found in the time.
    """
    of = np.repeat(np.arange(len(columns.group)), np.diff(columns.ptr))
    planned = columns.load(columns.weight / columns.weight.sum() * count.sum(), capacity)
    model = ProgramBuilder()
    longer, chunks = model.variables("longer", cost=1), model.variables("chunks", len(columns.group), integer=True)
    loads = model.rows("resource", len(capacity), upper=planned * capacity).add(longer, times=-capacity)
    loads.add_at(columns.resource, chunks[of], columns.amount)
    model.rows("group", len(count), equals=count).add_at(columns.group, chunks)
    found = solve(model.build(), SolverOptions(time_limit_s=limit_s))
    return None if found.values is None else np.rint(found.values[1:])


def balanced(columns: Columns, group: I64, size: NDArray[np.int64], capacity: F64, choice: I64) -> I64:
    """Return another choice of columns, in which chunks have moved while that lowers the largest loads."""
    from flowccl.methods.rates.pricing_kernels import balance

    ptr, column = columns.by_group(int(max(group.max(), columns.group.max())) + 1)
    moved, order = choice.copy(), np.arange(len(group))
    numbers = size.astype(np.float64)
    balance(moved, numbers, group, ptr, column, columns.ptr, columns.resource, columns.amount, capacity, order, _SWEEPS)
    return moved


def dealt(weight: F64, count: int) -> I64:
    """Return which receiver gets each of `count` items, in proportion to the weights and evenly interleaved."""
    share = weight / weight.sum() * count
    most = np.ceil(share).astype(np.int64) + 1
    receiver = np.repeat(np.arange(len(weight)), np.where(share > 0, most, 0))
    turn = np.arange(len(receiver)) - np.searchsorted(receiver, receiver)
    order = np.lexsort((receiver, (turn + 0.5) / share[receiver]))
    return np.asarray(receiver[order[:count]])
