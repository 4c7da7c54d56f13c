"""Which transfers of a schedule are collected in one message."""

import numpy as np
from numpy.typing import NDArray

from flowccl.schedule.generation.precedence import stages_of
from flowccl.schedule.schedule import Schedule


def staged_messages(schedule: Schedule, by_piece: bool) -> NDArray[np.int32]:
    """Return message numbers with which everything of a stage that takes the same route is one message.

    The stage of a transfer is the most transfers that must come before it, one after the other. `by_piece`: the first
    pieces of all blocks are one message, the second ones another.
    """
    key = "messages by piece" if by_piece else "messages by stage"
    if key not in schedule.cache:
        schedule.cache[key] = _staged_messages(schedule, by_piece)
    found: NDArray[np.int32] = schedule.cache[key]
    return found


def _staged_messages(schedule: Schedule, by_piece: bool) -> NDArray[np.int32]:
    piece = schedule.chunk % schedule.demand.pieces if by_piece else np.zeros_like(schedule.chunk)
    stage = stages_of(schedule)
    order = np.lexsort((np.arange(len(stage)), piece, stage, schedule.reduce, schedule.route))
    columns = np.stack([schedule.route, schedule.reduce, stage, piece])[:, order]
    starts = np.append(True, np.any(columns[:, 1:] != columns[:, :-1], axis=0))
    message = np.empty(len(stage), dtype=np.int32)
    message[order] = order[starts][np.cumsum(starts) - 1]
    return message


def merged_messages(schedule: Schedule) -> NDArray[np.int32] | None:
    """Return message numbers with which messages of the same route are joined in pairs; None where there are none.

    A message takes the next one of its route along if its data is there before the first one has left.
    """
    costs = schedule.costs
    if costs is None or not len(schedule):
        return None
    ready, leader = _ready_ps(schedule), schedule.leader
    first = np.flatnonzero(leader == np.arange(len(schedule)))
    order = first[np.lexsort((schedule.start_ps[first], schedule.reduce[first], schedule.route[first]))]
    same = np.diff(schedule.route[order]) == 0
    same &= schedule.reduce[order][1:] == schedule.reduce[order][:-1]
    joins = same & (ready[order][1:] <= (schedule.start_ps + costs.lead_ps)[order][:-1])
    run = np.arange(len(joins)) - np.maximum.accumulate(np.where(joins, -1, np.arange(len(joins))))
    joins &= run % 2 == 1  # in pairs: a further pass joins more
    if not joins.any():
        return None
    target = np.arange(len(schedule))
    target[order[1:][joins]] = order[:-1][joins]
    return target[leader].astype(np.int32)


def _ready_ps(schedule: Schedule) -> NDArray[np.int64]:
    """When the data of each message is at its sender."""
    from flowccl.schedule.generation.precedence import feeding, soonest_starts

    timing = schedule.timing
    ready = soonest_starts(schedule)
    root, end = feeding(schedule)
    np.maximum.at(ready, timing.root_transfer[root], timing.end_arrival_ps[end])
    whole = np.zeros(len(schedule), dtype=np.int64)
    np.maximum.at(whole, schedule.leader, ready)
    return whole[schedule.leader]
