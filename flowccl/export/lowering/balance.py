"""Other groups for the jobs of a schedule, where some threadblocks would have too many operations.

A job is what a group does for a message: issue it, pack it, or work on it after its arrival, together with what is
reduced in the same operation. Its time stays; any group of the GPU that is free then can do it. The engine prefers
groups with low numbers, so that few threadblocks are used.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from flowccl.arrays import NEVER
from flowccl.errors import InputError
from flowccl.export.lowering.actions import MessageMoments, moments_of
from flowccl.runtimes.execution import Execution
from flowccl.runtimes.limits import FURTHER_OPERATIONS, ISSUE_OPERATIONS, RECEIVE_OPERATIONS
from flowccl.schedule.clock import reduced_together
from flowccl.schedule.messages import NIC, Messages
from flowccl.schedule.schedule import Schedule


class _Job(NamedTuple):
    """What a group of a GPU does from one time until another, for some messages: it issues one, or works on several."""

    begin_ps: int
    end_ps: int
    issues: bool
    messages: list[int]
    rank: int

    @property
    def operations(self) -> int:
        """The operations of the group."""
        return ISSUE_OPERATIONS if self.issues else RECEIVE_OPERATIONS + FURTHER_OPERATIONS * (len(self.messages) - 1)


def balanced(schedule: Schedule, messages: Messages, execution: Execution, posters: int) -> Schedule:
    """Return the schedule with its jobs spread evenly over all groups that `posters` threadblocks leave.

    `messages` are those of the schedule, or the same from one GPU to itself, which then stands for all. Raise
    InputError where those do not suffice.
    """
    groups = min(execution.groups, (execution.sms - posters) // execution.width)
    nodes = 1 + int(max(messages.src.max(initial=0), messages.end.max(initial=0)))
    free, load = np.zeros((2, nodes, groups), dtype=np.int64)
    issuer, receiver = schedule.issuer[messages.first].copy(), schedule.receiver[messages.first].copy()
    times = moments_of(schedule, messages)
    for job in sorted([*_issues(schedule, messages, times), *_works(schedule, messages, times)]):
        several = 1 if job.issues else execution.receivers
        until, operations = free[job.rank], load[job.rank]
        if several > 1:
            teams = groups // several * several
            until, operations = (column[:teams].reshape(-1, several).max(axis=1) for column in (until, operations))
        team = int(np.argmin(np.where(until <= job.begin_ps, operations, NEVER)))
        if until[team] > job.begin_ps:
            raise InputError(
                f"mscclpp cannot run this schedule on {execution.sms} threadblocks: {posters} of them post messages to "
                "the NIC; synthesize with a larger --sms"
            )
        group = team * several
        (issuer if job.issues else receiver)[job.messages] = group
        free[job.rank, group : group + several] = job.end_ps
        load[job.rank, group : group + several] += job.operations
        if job.issues:  # those that wait for it
            (m,) = job.messages
            load[messages.end[messages.end_ptr[m] : messages.end_ptr[m + 1]], group] += 1
    of = np.searchsorted(messages.first, schedule.leader)
    return replace(schedule, issuer=issuer[of], receiver=receiver[of])


def _issues(schedule: Schedule, messages: Messages, times: MessageMoments) -> Iterator[_Job]:
    """The jobs of groups that issue or pack messages."""
    until = np.where(messages.kind == NIC, times.posted, times.issued).tolist()
    begin, src = times.start.tolist(), messages.src.tolist()
    for m in np.flatnonzero(schedule.issuer[messages.first] >= 0).tolist():
        yield _Job(begin[m], until[m], True, [m], src[m])


def _works(schedule: Schedule, messages: Messages, times: MessageMoments) -> Iterator[_Job]:
    """The jobs of groups that work on what has arrived; messages that are reduced in one operation are one job."""
    assert schedule.costs is not None
    first, end = messages.first, times.usable
    begin, works = end - schedule.costs.work_ps[first], np.flatnonzero(schedule.receiver[first] >= 0)
    together = reduced_together(schedule)[first[works]]
    order = np.argsort(together, kind="stable")
    for some in np.split(works[order], 1 + np.flatnonzero(np.diff(together[order]))):
        if len(some):
            rank = int(messages.end[messages.end_ptr[some[0]]])
            yield _Job(int(begin[some].min()), int(end[some].max()), False, some.tolist(), rank)
