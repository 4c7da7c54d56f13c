"""Whole chunks for rates: each chunk takes one tree, such that the loads stay close to those of the rates."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.methods.rates.network import F64, I64

_SWEEPS = 40


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
        ptr = np.concatenate(([0], np.cumsum([len(one) for one in used]))).astype(np.int64)
        resource = np.concatenate(used).astype(np.int64)
        return cls(group, weight, ptr, resource, np.concatenate([load[k] for load, k in zip(loads, used, strict=True)]))

    def by_group(self, groups: int) -> tuple[I64, I64]:
        """The columns of each group: pointer, column."""
        order = np.argsort(self.group, kind="stable").astype(np.int64)
        return np.searchsorted(self.group[order], np.arange(groups + 1)).astype(np.int64), order


def choose_columns(
    columns: Columns, group: I64, size: NDArray[np.int64], capacity: F64, random: np.random.Generator | None
) -> tuple[I64, float]:
    """Return a column for every chunk, given its group and its bytes, and the largest time of a resource.

    First, the chunks of a group are dealt to its columns by weight; then chunks move while that lowers the largest
    loads.
    """
    from flowccl.methods.rates.pricing_kernels import balance

    groups = int(max(group.max(), columns.group.max())) + 1
    ptr, column = columns.by_group(groups)
    choice = np.empty(len(group), dtype=np.int64)
    by_group = np.argsort(group, kind="stable")
    for chunks in np.split(by_group, np.flatnonzero(np.diff(group[by_group])) + 1):
        mine = column[ptr[group[chunks[0]]] : ptr[group[chunks[0]] + 1]]
        choice[chunks] = mine[dealt(columns.weight[mine], len(chunks))] if len(mine) > 1 else mine[0]
    order = np.arange(len(group)) if random is None else random.permutation(len(group))
    load = balance(
        choice,
        size.astype(np.float64),
        group,
        ptr,
        column,
        columns.ptr,
        columns.resource,
        columns.amount,
        capacity,
        order.astype(np.int64),
        _SWEEPS,
    )
    return choice, float(load.max())


def dealt(weight: F64, count: int) -> I64:
    """Return which receiver gets each of `count` items, in proportion to the weights and evenly interleaved."""
    share = weight / weight.sum() * count
    given, result = np.zeros(len(weight)), np.empty(count, dtype=np.int64)
    for i in range(count):
        behind = share * (i + 1) / count - given
        result[i] = int(np.argmax(behind))
        given[result[i]] += 1
    return result
