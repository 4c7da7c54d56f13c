"""Loops: threadblocks repeat their operations, each time with the next part of every chunk.

The schedule of a part of the data is carried out many times, while the parts before are still under way. The
threadblocks of a GPU divide what it does by stages, so that those of the first stage begin with the next part while
others still work on the one before. A program with loops has as many operations as that of one part.

Chunk c of the data has the parts `c * loops` to `c * loops + loops - 1`, which are chunks of the whole schedule.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.demand.division import like_chunks
from flowccl.errors import InputError
from flowccl.runtimes.limits import FURTHER_OPERATIONS, ISSUE_OPERATIONS, RECEIVE_OPERATIONS, USABLE_OPERATIONS
from flowccl.runtimes.posters import BlockTask
from flowccl.runtimes.profiles import ALIGNMENT_BYTES
from flowccl.schedule.clock import MessageTimes
from flowccl.schedule.generation.engine import Engine, leaves_first
from flowccl.schedule.generation.engine_inputs import Waits
from flowccl.schedule.generation.precedence import feeding, stages_of
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.timing import spread

I64 = NDArray[np.int64]
_FILLED = 0.8 * USABLE_OPERATIONS  # of a group, where operations do not divide evenly
_COLUMNS = ("route", "start_ps", "reduce", "message", "issuer", "receiver", "work_from_ps", "rate_GBps")


def part_of(demand: Demand, loops: int) -> Demand | None:
    """Return the demand with the first part of every chunk; the last part may be smaller.

    Parts are multiples of the bytes that a runtime aligns. None where the chunks have fewer of them than parts, or
    are not all of the same size.
    """
    size = int(demand.chunk_bytes[0])
    part = -(-size // (loops * ALIGNMENT_BYTES)) * ALIGNMENT_BYTES
    if np.any(demand.chunk_bytes != size) or size % ALIGNMENT_BYTES or -(-size // part) != loops:
        return None
    return replace(demand, chunk_bytes=np.full(len(demand), part), size_bytes=demand.size_bytes // size * part)


def in_parts(demand: Demand, part: Demand, loops: int) -> Demand:
    """Return a demand whose chunks are the parts of the chunks of another one; `part` is that with the first parts."""
    of = np.repeat(np.arange(len(demand), dtype=np.int32), loops)
    size = np.full(len(of), part.chunk_bytes[0])
    size[loops - 1 :: loops] = demand.chunk_bytes - (loops - 1) * part.chunk_bytes
    return replace(like_chunks(demand, of, demand.pieces * loops), chunk_bytes=size)


def first_part(schedule: Schedule) -> Schedule:
    """Return what the threadblocks of a schedule with loops do once: the schedule of the first part of the data."""
    assert schedule.execution is not None
    loops, demand = schedule.execution.loops, schedule.demand
    keep = np.flatnonzero(schedule.chunk % loops == 0)
    of = np.arange(0, len(demand), loops, dtype=np.int32)
    whole_bytes = int(demand.chunk_bytes[:loops].sum())
    size_bytes = demand.size_bytes // whole_bytes * int(demand.chunk_bytes[0])
    part = replace(like_chunks(demand, of, demand.pieces // loops), size_bytes=size_bytes)
    columns: dict[str, Any] = {name: getattr(schedule, name)[keep] for name in _COLUMNS}
    return replace(schedule, demand=part, chunk=schedule.chunk[keep] // loops, **columns)


def rows_of_parts(schedule: Schedule) -> I64:
    """Return a row for each transfer of the first part, with the transfers that do the same with all parts."""
    assert schedule.execution is not None
    loops = schedule.execution.loops
    order = np.lexsort((schedule.chunk, schedule.reduce, schedule.route, schedule.chunk // loops))
    rows = order.reshape(-1, loops) if not len(order) % loops else order[:0].reshape(0, loops)
    is_next = schedule.chunk[rows] == schedule.chunk[rows[:, :1]] + np.arange(loops)
    is_same = schedule.route[rows] == schedule.route[rows[:, :1]]
    is_same &= schedule.reduce[rows] == schedule.reduce[rows[:, :1]]
    if len(rows) * loops < len(order) or not (is_next & is_same).all():
        raise InputError(f"the schedule does not do the same with each of {loops} parts of its chunks")
    return rows[np.argsort(rows[:, 0])]


def with_loops(base: Schedule, demand: Demand) -> Schedule | None:
    """Return the draft of a schedule for a demand in which threadblocks repeat what they do in `base`, for one part.

    The draft says in which order groups do things; its times are those of one part after the other. None where the
    groups cannot hold the operations.
    """
    assert base.execution is not None
    waits, loops = Engine(base, base.execution).waits, base.execution.loops
    grouped = by_stage(base, waits)
    if grouped is None:
        return None
    count, after = len(base), np.arange(loops, dtype=np.int64) * (base.finish_ps + 1)
    part = np.tile(np.arange(loops, dtype=np.int32), count)
    columns: dict[str, Any] = {name: np.repeat(getattr(grouped, name), loops) for name in _COLUMNS}
    columns["start_ps"] += after[part]
    columns["work_from_ps"] += after[part]
    draft = replace(
        grouped,
        demand=in_parts(demand, base.demand, loops),
        chunk=np.repeat(base.chunk, loops) * loops + part,
        **columns,
    )
    draft.cache["waits"] = _waits_of_parts(waits, loops)
    pairs = [(_of_parts(leaves, loops), _of_parts(arrives, loops)) for leaves, arrives in leaves_first(base)]
    draft.cache["leaves first"] = pairs
    return draft


def _of_parts(transfers: I64, loops: int) -> I64:
    """The transfers of all parts, one part of each transfer after the other; also for their starts and ends."""
    return np.repeat(transfers, loops) * loops + np.tile(np.arange(loops), len(transfers))


def tasks_of(part: Schedule, is_proxied: NDArray[np.bool_]) -> list[tuple[BlockTask, int, int]]:
    """Return (task, transfer, GPU) for what threadblocks do beside those that send and reduce.

    The schedule is that of a part, in which each transfer is a message; `is_proxied` are those over NICs. A threadblock
    that uses a message waits for it itself if it is the only one.
    """
    root, end = feeding(part)
    shape, timing, count = part.shape, part.timing, len(part)
    src = shape.root_node[shape.root_ptr[:-1][part.route]].tolist()
    dst = shape.end_node[shape.end_ptr[:-1][part.route]].tolist()
    given, user = timing.end_transfer[end], timing.root_transfer[root]
    uses = np.bincount(given, minlength=count) + np.bincount(given[is_proxied[user]], minlength=count)
    found = []
    for t in np.flatnonzero(is_proxied).tolist():
        found += [(BlockTask.POST, t, src[t]), (BlockTask.AWAIT_NIC, t, dst[t])]
    for t in np.flatnonzero(~is_proxied & ~part.reduce & (uses != 1)).tolist():
        found.append((BlockTask.AWAIT if uses[t] else BlockTask.AWAIT_LATE, t, dst[t]))
    return found


def _waits_of_parts(waits: Waits, loops: int) -> Waits:
    """Return which messages come after which in a draft, from those of one part."""
    x, y, row = (_of_parts(column, loops) for column in waits[:3])
    order = np.lexsort((y, x))
    return x[order], y[order], row[order], np.repeat(waits[3], loops)[order]


def by_stage(base: Schedule, waits: Waits) -> Schedule | None:
    """Return the schedule with other groups: what belongs to the same stage and peer, or chunk, shares a group.

    What is reduced into the same chunk in the same stage is one operation, as far as the runtime has such operations
    and the threadblock keeps up with the links.
    `waits` says which transfers come after which. None where the groups cannot hold the operations.
    """
    execution, timing = base.execution, base.timing
    assert execution is not None
    none = np.full(len(base), -1)
    costs = replace(base, receiver=none.astype(np.int32), work_from_ps=none).costs
    assert costs is not None
    shape, route = base.shape, base.route
    source, target = shape.root_node[shape.root_ptr[:-1][route]], shape.end_node[shape.end_ptr[:-1][route]]
    source = np.where(shape.reduces_inside[route], target, source)
    sent = np.zeros(len(base), dtype=np.int64)
    np.maximum.at(sent, timing.root_transfer, timing.root_to_ps)
    stage, issues = stages_of(base), np.flatnonzero(base.issuer >= 0)
    worked = np.flatnonzero(costs.work_ps > 0)
    columns = stage, _sent_before(stage, waits), base.chunk, target
    first = reduced_at_once(base, costs, execution.most_together, columns)[worked]
    works, of, count = np.unique(first, return_inverse=True, return_counts=True)
    of = of.reshape(-1)
    begin, spent = np.zeros(len(works), dtype=np.int64), costs.work_ps[works]
    np.maximum.at(begin, of, base.work_from_ps[worked])
    begin += np.arange(len(works))  # no two begin together, which would be one operation
    np.add.at(spent, of, np.where(first == worked, 0, costs.further_ps[worked]))
    node = np.append(source[issues], target[works])
    time, takes = np.append(base.start_ps[issues], begin), np.append(sent[issues] - base.start_ps[issues], spent)
    received = RECEIVE_OPERATIONS + (count - 1) * FURTHER_OPERATIONS
    operations = np.append(np.full(len(issues), ISSUE_OPERATIONS), received)
    stage = np.append(2 * stage[issues], 2 * stage[works] + 1)
    shared = np.append(target[issues], base.chunk[works])
    group = np.full(len(node), -1, dtype=np.int32)
    for gpu in range(base.topology.num_gpus):
        rows = np.flatnonzero(node == gpu)
        rows = rows[np.lexsort((time[rows], shared[rows], stage[rows]))]
        found = _cut(execution.groups, takes[rows], operations[rows])
        if found is None:
            return None
        group[rows] = found
    issuer, receiver, work_from = none.astype(np.int32), none.astype(np.int32), none.astype(np.int64)
    issuer[issues], receiver[worked], work_from[worked] = group[: len(issues)], group[len(issues) :][of], begin[of]
    return replace(base, issuer=issuer, receiver=receiver, work_from_ps=work_from)


def _sent_before(stage: I64, waits: Waits) -> I64:
    """For each transfer, the last stage of what must leave its receiver before it is worked on; -1: nothing must."""
    before, after, _, from_end = waits
    last = np.full(len(stage), -1, dtype=np.int64)
    np.maximum.at(last, after[~from_end], stage[before[~from_end]])
    return last


def busiest_link_ps(schedule: Schedule) -> float:
    """The time for which the busiest link or limit is busy with all transfers."""
    topology, shape = schedule.topology, schedule.shape
    of, hop = spread(shape.routes.ptr, schedule.route)
    moved = schedule.sent_bytes[of] * shape.hop_weight[hop]
    load = np.bincount(shape.routes.link[hop], moved, len(topology.links)) * 1000.0
    limits = [float(load[list(limit.links)].sum()) / limit.bandwidth_GBps for limit in topology.limits]
    return max([float((load / topology.link_GBps).max(initial=0.0)), *limits])


def reduced_at_once(schedule: Schedule, costs: MessageTimes, most: int, columns: tuple[NDArray[Any], ...]) -> I64:
    """For each transfer, the first one that is reduced in the same operation: itself where it is alone.

    Those are reductions with equal `columns`, at most `most` in one operation, and no more than the threadblock can
    reduce while the busiest link is busy.
    """
    worked = np.flatnonzero(costs.work_ps > 0)
    space_ps = busiest_link_ps(schedule) - costs.work_ps[worked]
    fit = 1 + np.minimum(space_ps.clip(0.0) // np.maximum(costs.further_ps[worked], 1), most - 1)
    keys = [np.where(schedule.reduce[worked], -1, worked), *(column[worked] for column in columns)]
    order = np.lexsort((schedule.work_from_ps[worked], *keys))
    begins = np.append(True, np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0))[: len(order)]
    of, place = np.cumsum(begins) - 1, np.arange(len(order))
    count, number = np.bincount(of)[of] if len(of) else of, place - np.maximum.accumulate(np.where(begins, place, 0))
    operations = -(-count // fit[order].astype(np.int64))  # into which the reductions are divided evenly
    part = number * operations // np.maximum(count, 1)
    begins[1:] |= np.diff(part) != 0
    first = np.arange(len(schedule))
    if len(order):
        first[worked[order]] = np.minimum.reduceat(worked[order], np.flatnonzero(begins))[np.cumsum(begins) - 1]
    return first


def _cut(groups: int, takes_ps: I64, operations: I64) -> I64 | None:
    """Divide the work of a GPU into groups, in its order, with about equal sums; return the group of each item.

    None where the groups cannot hold the operations.
    """
    left, left_size = float(takes_ps.sum()), int(operations.sum())
    at, used, done = 0, 0, 0.0
    chosen = np.empty(len(takes_ps), dtype=np.int64)
    for k, (takes, count) in enumerate(zip(takes_ps.tolist(), operations.tolist(), strict=True)):
        free = groups - at - 1
        is_loaded = done and done + takes / 2 > (left + done) / (free + 1) and left_size <= free * _FILLED
        if used + count > USABLE_OPERATIONS or is_loaded:
            at, used, done = at + 1, 0, 0.0
        if at >= groups:
            return None
        chosen[k] = at
        used, done = used + count, done + takes
        left, left_size = left - takes, left_size - count
    return chosen
