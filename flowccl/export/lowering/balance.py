"""Other groups for the jobs of a schedule, where some threadblocks would have too many operations.

A job is what a group does for a message: issue it, pack it, or work on it after its arrival. Its time stays; any group
of the GPU that is free then can do it. The engine prefers groups with low numbers, so that few threadblocks are used.
"""

from dataclasses import replace

import numpy as np

from flowccl.errors import InputError
from flowccl.runtimes.execution import Execution
from flowccl.runtimes.limits import ISSUE_OPERATIONS, RECEIVE_OPERATIONS
from flowccl.schedule.messages import Messages
from flowccl.schedule.schedule import Schedule


def balanced(schedule: Schedule, messages: Messages, execution: Execution, posters: int) -> Schedule:
    """Return the schedule with its jobs spread evenly over all groups that `posters` threadblocks leave.

    `messages` are those of the schedule, or the same from one GPU to itself, which then stands for all. Raise
    InputError where those do not suffice.
    """
    groups = min(execution.groups, (execution.sms - posters) // execution.width)
    costs, timing = schedule.costs, schedule.timing
    assert costs is not None
    first = messages.first
    issued, usable = np.zeros(len(schedule), dtype=np.int64), np.zeros(len(schedule), dtype=np.int64)
    np.maximum.at(issued, timing.root_transfer, timing.root_to_ps)
    np.maximum.at(usable, timing.end_transfer, timing.end_arrival_ps)
    packed = schedule.start_ps + costs.pack_ps
    until = np.where(costs.is_proxied, packed, issued)
    sends = np.flatnonzero(schedule.issuer[first] >= 0)
    works = np.flatnonzero(schedule.receiver[first] >= 0)
    rows = [
        (int(schedule.start_ps[first[m]]), int(until[first[m]]), 1, int(m), int(messages.src[m])) for m in sends
    ] + [
        (
            int(usable[first[m]] - costs.work_ps[first[m]]),
            int(usable[first[m]]),
            0,
            int(m),
            int(messages.end[messages.end_ptr[m]]),
        )
        for m in works
    ]
    issuer, receiver = schedule.issuer[first].copy(), schedule.receiver[first].copy()
    nodes = 1 + int(max(messages.src.max(initial=0), messages.end.max(initial=0)))
    free, load = np.zeros((nodes, groups), dtype=np.int64), np.zeros((nodes, groups), dtype=np.int64)
    for begin, end, is_send, m, rank in sorted(rows):
        several = 1 if is_send else execution.receivers
        until, most = (
            column[rank, : groups // several * several].reshape(-1, several).max(axis=1) for column in (free, load)
        )
        able = np.flatnonzero(until <= begin)
        if not len(able):
            raise InputError(
                f"mscclpp cannot run this schedule on {execution.sms} threadblocks: {posters} of them post messages to "
                "the NIC; synthesize with a larger --sms"
            )
        group = int(able[np.argmin(most[able])]) * several
        (issuer if is_send else receiver)[m] = group
        free[rank, group : group + several] = end
        load[rank, group : group + several] += ISSUE_OPERATIONS if is_send else RECEIVE_OPERATIONS
        if is_send:  # those that wait for it
            for other in messages.end[messages.end_ptr[m] : messages.end_ptr[m + 1]].tolist():
                load[other, group] += 1
    of = np.searchsorted(first, schedule.leader)
    return replace(schedule, issuer=issuer[of], receiver=receiver[of])
