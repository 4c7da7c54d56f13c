"""From cubes and trees to the transfers of method `tree-exchange`, and what each waits for."""

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.methods.hierarchical.scheduling import TransferPlan
from flowccl.methods.tree_exchange.cubes import Cubes
from flowccl.topology.neighbours import Neighbours

I64 = NDArray[np.int64]


def exchange_plan(near: Neighbours, cubes: Cubes, cube: I64, up: I64, down: I64, pieces: int) -> TransferPlan:
    """Up the trees, the exchange stage by stage, down the trees.

    `cube` is the cube of every chunk; `up` and `down` have the pair between each node and its tree, -1 at roots.
    """
    chunks, nodes = up.shape
    width, stages = cubes.members.shape[1], cubes.dimension
    at = np.full((chunks, nodes), -1)  # the position of each node among the roots of the chunk
    np.put_along_axis(at, cubes.members[cube], np.arange(width)[None, :], axis=1)
    tables = (up, cubes.exchange.pair[cube], down)
    depth = (
        -cubes.up.away_ps[cube],
        np.broadcast_to(np.repeat(np.arange(stages), width), (chunks, stages * width)),
        cubes.down.away_ps[cube],
    )
    used = [np.flatnonzero(table.reshape(-1) >= 0) for table in tables]
    phase = np.repeat(np.arange(3), [len(some) for some in used])
    keys = np.concatenate([d.reshape(-1)[some] for d, some in zip(depth, used, strict=True)])
    order = np.lexsort((keys, phase))
    row = np.empty(len(order), dtype=np.int64)
    row[order] = np.arange(len(order))
    rows = [np.full(table.shape, -1, dtype=np.int64) for table in tables]
    own_rows = np.split(row, np.cumsum([len(some) for some in used])[:-1])
    for numbers, some, own in zip(rows, used, own_rows, strict=True):
        numbers.reshape(-1)[some] = own
    row_exchange = rows[1].reshape(chunks, stages, width)
    pair = np.concatenate([table.reshape(-1)[some] for table, some in zip(tables, used, strict=True)])[order]
    chunk = np.concatenate([some // max(table.shape[1], 1) for table, some in zip(tables, used, strict=True)])[order]
    exchange = np.full(len(pair), -1)
    for stage in range(stages):
        both = row_exchange[:, stage], row_exchange[:, stage, np.arange(width) ^ 1 << stage]
        exchange[both[0]] = np.minimum(*both)
    before, after = _waits(near, (up, down), at, (rows[0], row_exchange, rows[2]))
    zero, none = np.zeros(len(pair), dtype=np.int64), np.full(len(pair), -1)
    reduce = (phase < 2)[order]
    rounds = chunk % pieces
    return TransferPlan(near.routes, chunk, pair, reduce, before, after, rounds, zero, none, exchange)


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
        first = pointers(count)
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
