"""The order in which groups of threadblocks issue messages and work on them, where they repeat their operations."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flowccl.runtimes.execution import Execution
from flowccl.schedule.clock import reduced_together
from flowccl.schedule.schedule import Schedule

if TYPE_CHECKING:
    from flowccl.schedule.generation.engine_state_kernels import MessageArrays, Turns

I64 = NDArray[np.int64]


def no_turns() -> "Turns":
    """The engine chooses the order."""
    from flowccl.schedule.generation.engine_state_kernels import Turns

    none, never = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_)
    return Turns(none, none, none, never, none, none, never, none, none, none)


def turns_of(schedule: Schedule, execution: Execution, messages: "MessageArrays", first: I64, of: I64) -> "Turns":
    """Each group issues messages and works on them in the order of the schedule.

    `first` is the first transfer of every message, `of` the message of every transfer.
    """
    from flowccl.schedule.generation.engine_state_kernels import Turns

    groups = execution.groups
    issuer, receiver = schedule.issuer[first].astype(np.int64), schedule.receiver[first].astype(np.int64)
    lead = of[reduced_together(schedule)[first]]
    leads = lead == np.arange(len(first))
    places = groups * len(schedule.topology.nodes)
    place = np.full(2 * len(first), -1, dtype=np.int64)
    posts = _posts(schedule, execution, messages, first, places)
    place[0::2] = np.where(issuer >= 0, messages.source * groups + issuer, posts)
    place[1::2] = np.where((messages.work_ps > 0) & leads, messages.target * groups + receiver, -1)
    time = np.stack((schedule.start_ps[first], schedule.work_from_ps[first]), axis=1).reshape(-1)
    order = np.lexsort((np.arange(len(place)), time, place))
    order = order[place[order] >= 0]
    same = np.diff(place[order]) == 0
    head = np.full(max(places, int(place.max(initial=-1)) + 1), -1, dtype=np.int64)
    begins = np.append(True, ~same) if len(order) else np.zeros(0, dtype=np.bool_)
    head[place[order][begins]] = order[begins]
    parked, worked = np.zeros(len(place), dtype=np.bool_), np.zeros(len(first), dtype=np.bool_)
    chains = _chains(messages, schedule.work_from_ps[first], leads)
    members = np.argsort(lead, kind="stable")
    next_one = _following(members, np.diff(lead[members]) == 0, len(first))
    missing = np.bincount(lead, minlength=len(first))
    return Turns(place, _following(order, same, len(place)), head, parked, *chains, worked, lead, next_one, missing)


def _following(order: I64, same: NDArray[np.bool_], count: int) -> I64:
    """The next one of each in an order, where it is of the same kind; else -1."""
    following = np.full(count, -1, dtype=np.int64)
    following[order[:-1][same]] = order[1:][same]
    return following


def _posts(schedule: Schedule, execution: Execution, messages: "MessageArrays", first: I64, places: int) -> I64:
    """The place of each message over a NIC: that of the threadblock which posts all parts of a chunk; else -1."""
    columns = schedule.route[first], schedule.reduce[first], schedule.chunk[first] // execution.loops
    _, post = np.unique(np.stack(columns), axis=1, return_inverse=True)
    return np.where(messages.proxied, places + post.reshape(-1), -1)


def _chains(messages: "MessageArrays", time: I64, leads: NDArray[np.bool_]) -> tuple[I64, I64]:
    """For each message that leads, the one that is reduced into the same chunk before it, and the one after it.

    -1: there is none.
    """
    row = np.repeat(np.arange(len(time)), np.diff(messages.into_ptr))
    into, row = messages.into[leads[row]], row[leads[row]]
    order = np.lexsort((time[row], into))
    pairs = np.flatnonzero(np.diff(into[order]) == 0)
    before, after = np.full((2, len(time)), -1, dtype=np.int64)
    before[row[order[pairs + 1]]], after[row[order[pairs]]] = row[order[pairs]], row[order[pairs + 1]]
    return before, after
