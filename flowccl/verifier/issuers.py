"""Verification of what issues and receives messages on a runtime: groups of threadblocks, and proxies of NICs."""

import numpy as np
from numpy.typing import NDArray

from flowccl.runtimes.execution import Execution
from flowccl.schedule.schedule import Schedule
from flowccl.verifier.violation import Violation, exact_us, transfer_name

I64 = NDArray[np.int64]


def check_issuers(schedule: Schedule, execution: Execution) -> list[Violation]:
    """Every message has the groups that it needs, and each group and proxy works on one message at a time."""
    if schedule.costs is None or not len(schedule):
        return []
    found = [*_missing(schedule, execution), *check_overlaps(schedule, execution), *_reductions(schedule)]
    return [*found, *_operands(schedule, execution)]


def _operands(schedule: Schedule, execution: Execution) -> list[Violation]:
    """No operation reduces more than the runtime can reduce at once."""
    rows = np.flatnonzero(_is_planned(schedule))
    node = schedule.shape.end_node[schedule.shape.end_ptr[schedule.route[rows]]].astype(np.int64)
    columns = node, schedule.chunk[rows], schedule.receiver[rows], schedule.work_from_ps[rows]
    order = np.lexsort(columns)
    is_new = np.append(True, np.any([column[order][1:] != column[order][:-1] for column in columns], axis=0))
    begin = np.flatnonzero(is_new[: len(rows)])
    count = np.diff(np.append(begin, len(rows)))
    result = []
    for k in np.flatnonzero(count > execution.most_together).tolist():
        row = int(rows[order[begin[k]]])
        name = schedule.topology.nodes[int(node[order[begin[k]]])].name
        text = f"{name} reduces {count[k]} transfers into chunk {schedule.chunk[row]} at once"
        most = f"{execution.profile.name} at most {execution.most_together}"
        result.append(Violation("threadblocks", f"{text}, {most}", (row,)))
    return result


def _is_planned(schedule: Schedule) -> NDArray[np.bool_]:
    """Transfers that a group reduces from a given time on, together with those of the same chunk and time."""
    return np.asarray(schedule.reduce & (schedule.receiver >= 0) & (schedule.work_from_ps >= 0))


def _reductions(schedule: Schedule) -> list[Violation]:
    """A GPU does one operation after the other that reduces into the same chunk."""
    costs, timing, nodes = schedule.costs, schedule.timing, len(schedule.topology.nodes)
    assert costs is not None
    rows = np.flatnonzero((costs.work_ps > 0)[timing.end_transfer] & schedule.reduce[timing.end_transfer])
    transfer = timing.end_transfer[rows]
    key = schedule.chunk[transfer].astype(np.int64) * nodes + timing.end_node[rows]
    end = timing.end_arrival_ps[rows]
    begin = end - costs.work_ps[transfer]
    order = np.lexsort((begin, key))
    is_late = (key[order][1:] == key[order][:-1]) & (begin[order][1:] < end[order][:-1])
    together = _is_planned(schedule)[transfer] & (begin == schedule.work_from_ps[transfer])
    group = np.where(together, schedule.receiver[transfer], -1)[order]
    is_same = (group[1:] == group[:-1]) & (group[1:] >= 0) & (begin[order][1:] == begin[order][:-1])
    result = []
    for k in np.flatnonzero(is_late & ~is_same).tolist():
        pair = int(transfer[order[k]]), int(transfer[order[k + 1]])
        name = schedule.topology.nodes[int(timing.end_node[rows[order[k]]])].name
        text = (
            f"{name} reduces transfer {pair[0]} into chunk {schedule.chunk[pair[0]]} until "
            f"{exact_us(int(end[order[k]]))}, but transfer {pair[1]} from {exact_us(int(begin[order[k + 1]]))} on"
        )
        result.append(Violation("reduce", text, pair))
    return result


def _missing(schedule: Schedule, execution: Execution) -> list[Violation]:
    """Messages without a group that they need, or with one that the GPU does not have."""
    costs, result = schedule.costs, []
    assert costs is not None
    needed_by = {"issuer": ~costs.is_proxied | (costs.pack_ps > 0), "receiver": costs.work_ps > 0}
    for name, needed in needed_by.items():
        group = getattr(schedule, name)
        for i in np.flatnonzero((needed & (group < 0)) | (group >= execution.groups)).tolist():
            words = f"has group {group[i]} as its {name}, the GPU has groups 0 to {execution.groups - 1}"
            result.append(Violation("threadblocks", f"{transfer_name(schedule, i)}: {words}", (i,)))
    first, several = schedule.receiver, execution.receivers
    odd = (first >= 0) & (first < execution.groups) & ((first % several > 0) | (first + several > execution.groups))
    for i in np.flatnonzero(odd).tolist():
        words = f"group {first[i]} is not the first of {several} of {execution.groups} that work on a message together"
        result.append(Violation("threadblocks", f"{transfer_name(schedule, i)}: {words}", (i,)))
    return result


def check_overlaps(schedule: Schedule, execution: Execution, *, by_one: bool = False) -> list[Violation]:
    """Two messages that occupy a group or a proxy at the same time; `by_one`: as if all were those of one GPU."""
    worker, transfer, begin, end = _occupied(schedule, execution)
    worker = worker % (execution.groups + 1) if by_one else worker
    order = np.lexsort((begin, worker))
    worker, transfer, begin, end = worker[order], transfer[order], begin[order], end[order]
    result = []
    for k in np.flatnonzero((worker[1:] == worker[:-1]) & (begin[1:] < end[:-1])).tolist():
        node, group = divmod(int(worker[k]), execution.groups + 1)
        name = "the proxy" if group == execution.groups else f"group {group}"
        pair = int(transfer[k]), int(transfer[k + 1])
        text = (
            f"{name} of {schedule.topology.nodes[node].name} works on transfer {pair[0]} until "
            f"{exact_us(int(end[k]))}, but transfer {pair[1]} begins at {exact_us(int(begin[k + 1]))}"
        )
        result.append(Violation("threadblocks", text, pair))
    return result


def _occupied(schedule: Schedule, execution: Execution) -> tuple[I64, I64, I64, I64]:
    """Intervals in which groups and proxies are busy: (number of the group, transfer, from, until)."""
    costs, timing, width = schedule.costs, schedule.timing, execution.groups + 1
    assert costs is not None
    first = np.flatnonzero(schedule.leader == np.arange(len(schedule)))
    src = issuing_gpus(schedule)
    start, packed = schedule.start_ps, schedule.start_ps + costs.pack_ps
    last = np.zeros(len(schedule), dtype=np.int64)  # when the last byte has left
    np.maximum.at(last, timing.root_transfer, timing.root_to_ps)
    worked = np.zeros(len(schedule), dtype=np.int64)
    np.maximum.at(worked, timing.end_transfer, timing.end_arrival_ps)
    dst = np.zeros(len(schedule), dtype=np.int64)
    dst[timing.end_transfer] = timing.end_node
    proxied = first[costs.is_proxied[first]]
    direct = first[~costs.is_proxied[first] & (schedule.issuer[first] >= 0)]
    packs = proxied[(costs.pack_ps[proxied] > 0) & (schedule.issuer[proxied] >= 0)]
    works = _operations(schedule, first[(costs.work_ps[first] > 0) & (schedule.receiver[first] >= 0)], dst, worked)
    works = np.repeat(works, execution.receivers)
    receiver = schedule.receiver[works] + np.arange(len(works)) % execution.receivers
    rows = (
        (src[direct] * width + schedule.issuer[direct], direct, start[direct], last[direct]),
        (src[packs] * width + schedule.issuer[packs], packs, start[packs], packed[packs]),
        (src[proxied] * width + execution.groups, proxied, packed[proxied], (packed + costs.overhead_ps)[proxied]),
        (dst[works] * width + receiver, works, (worked - costs.work_ps)[works], worked[works]),
    )
    worker, transfer, begin, end = (np.concatenate([row[k] for row in rows]).astype(np.int64) for k in range(4))
    return worker, transfer, begin, end


def _operations(schedule: Schedule, works: I64, dst: I64, worked: I64) -> I64:
    """Of messages that are worked on, the first one of each operation, which may reduce several of the same chunks."""
    costs = schedule.costs
    assert costs is not None
    is_planned = (_is_planned(schedule) & (worked - costs.work_ps == schedule.work_from_ps))[works]
    alone = np.where(is_planned, -1, works)
    columns = alone, dst[works], schedule.receiver[works], worked[works]
    keys = zip(*(column.tolist() for column in columns), strict=True)
    chunks = _chunks_of(schedule, works)
    first: dict[tuple[object, ...], int] = {}
    for t, key, moved in zip(works.tolist(), keys, chunks, strict=True):
        first.setdefault((*key, moved), t)
    return np.array(list(first.values()), dtype=np.int64)


def _chunks_of(schedule: Schedule, transfers: I64) -> list[object]:
    """The chunks in the messages of some transfers."""
    if not schedule.has_messages:
        return list(schedule.chunk[transfers].tolist())
    chunks: dict[int, list[int]] = {}
    for leader, chunk in zip(schedule.leader.tolist(), schedule.chunk.tolist(), strict=True):
        chunks.setdefault(leader, []).append(chunk)
    return [frozenset(chunks[t]) for t in transfers.tolist()]


def issuing_gpus(schedule: Schedule) -> I64:
    """The GPU that issues each transfer: its first root, or the end of a reduction inside a switch."""
    shape, route = schedule.shape, schedule.route
    root, end = shape.root_node[shape.root_ptr[:-1]], shape.end_node[shape.end_ptr[:-1]]
    return np.asarray(np.where(shape.reduces_inside, end, root)[route], dtype=np.int64)
