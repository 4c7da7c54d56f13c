"""The messages of a plan in another order: each starts as soon as its data and its links allow.

The planner places messages one after the other, and a message that waits for its data keeps those behind it on the
same link waiting. Here, a link that is free takes the first message that can start. Then the order is that of the
same plan from its end: messages as late as possible, and as early as possible again in the order that results.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER, pointers
from flowccl.moe.message_kernels import hop_loads
from flowccl.moe.plan import Integers, Plan
from flowccl.schedule.generation.list_scheduling import in_order

if TYPE_CHECKING:
    from flowccl.schedule.generation.queue_kernels import QueuedJobs

Ints = NDArray[np.int64]
_ROUNDS = 3  # orders of small plans
_PLACED = 12_000  # messages: larger plans have fewer orders, so that planning does not take much longer
MOST_MESSAGES = 30_000
"""The largest plan that is tried in another order."""
_CLOSE = 1.01  # times the load of the most loaded link: no further orders


def busiest_ps(plan: Plan) -> int:
    """How long the most loaded link, or limit, carries data: no other order of the messages ends before that."""
    return int(_loads(plan)[1].max(initial=0))


def reordered(plan: Plan, has_times: bool = True) -> Plan:
    """Return the plan with its messages in another order, or the plan itself where none found is earlier.

    Without `has_times`, its starts are only an order, in which messages may be before their data.
    """
    count = len(plan.messages)
    if count == 0 or count > MOST_MESSAGES:
        return plan
    forward, backward, takes, busiest = _forward_and_backward(plan)
    start, best, finish_ps = plan.messages.hop_start_ps, plan, plan.finish_ps if has_times else NEVER
    rounds = min(max(_PLACED // count, 1), _ROUNDS)
    for turn in range(rounds):
        found = in_order(np.argsort(start, kind="stable"), forward)
        if found is None:  # pragma: no cover - messages wait for earlier ones only
            break
        arrival = found + takes
        if int(arrival.max(initial=0)) < finish_ps:
            finish_ps = int(arrival.max(initial=0))
            last = plan.messages.hop_ptr[1:] - 1
            best = replace(plan, messages=replace(plan.messages, hop_start_ps=found, arrival_ps=arrival[last]))
        if finish_ps <= busiest * _CLOSE or turn == rounds - 1:
            break
        late = in_order(np.argsort(-arrival, kind="stable"), backward)
        if late is None:  # pragma: no cover
            break
        start = -(late + takes)
    return best


def _loads(plan: Plan) -> tuple[Ints, Ints]:
    """How long data flows in each hop, and how long each link or limit is busy."""
    messages = plan.messages
    return hop_loads(messages.pair, messages.bytes, messages.hop_ptr, plan.layout.paths.tables)


def _forward_and_backward(plan: Plan) -> tuple["QueuedJobs", "QueuedJobs", Ints, int]:
    """The hops as jobs, and those of the plan from its end; how long each hop takes, and the load of the busiest link.

    From the end, a hop starts when it arrived, and those that bring its data start after it.
    """
    from flowccl.schedule.generation.queue_kernels import QueuedJobs

    messages, paths = plan.messages, plan.layout.paths
    busy, load = _loads(plan)
    hops = np.diff(messages.hop_ptr)
    count = int(messages.hop_ptr[-1])
    place = np.arange(count) + np.repeat(paths.path_ptr[messages.pair] - messages.hop_ptr[:-1], hops)
    route = paths.path_route[place]
    takes = busy + paths.route_latency_ps[route]
    uses = np.diff(paths.use_ptr)[route]
    use_ptr = pointers(uses)
    use = np.arange(use_ptr[-1]) + np.repeat(paths.use_ptr[route] - use_ptr[:-1], uses)
    begin, link = paths.use_offset_ps[use], paths.use_resource[use].astype(np.int32)
    end = begin + np.repeat(busy, uses) + paths.use_more_ps[use]
    before, after = _waits(plan, hops)
    none, never, whole = np.zeros(count, dtype=np.int64), np.full(count, NEVER), np.repeat(takes, uses)
    lanes = pointers(paths.servers)
    forward, backward = (
        QueuedJobs(none, route, *_after(one, other, takes[one], count), none, never, use_ptr, link, since, until, lanes)
        for one, other, since, until in ((before, after, begin, end), (after, before, whole - end, whole - begin))
    )
    return forward, backward, takes, int(load.max(initial=0))


def _after(before: Ints, after: Ints, lag: Ints, count: int) -> tuple[Ints, Ints, Ints]:
    """What waits for each hop: pointer, hops, and how much later they start at the earliest."""
    order = np.argsort(before, kind="stable")
    return pointers(np.bincount(before, minlength=count)), after[order], lag[order]


def _waits(plan: Plan, hops: Ints) -> tuple[Ints, Ints]:
    """The hops that wait for each other (before, after): those of a message, and those of the same data."""
    chunks, hop_ptr, relays = plan.chunks, plan.messages.hop_ptr, plan.chunks.relays
    chunk = np.repeat(np.arange(len(chunks)), np.diff(chunks.entry_ptr))
    begins = np.where(chunks.gather >= 0, chunks.gather, chunks.cross)[relays.chunk]
    there = np.where(relays.fan_out >= 0, relays.fan_out, relays.cross)
    legs: list[tuple[Integers, Integers]] = [(chunks.gather, chunks.cross), (chunks.cross[chunk], chunks.entry_message)]
    legs += [(relays.gather, relays.cross), (relays.cross, relays.fan_out), (there, begins)]
    brings, takes_on = (np.concatenate(column).astype(np.int64) for column in zip(*legs, strict=True))
    both = (brings >= 0) & (takes_on >= 0)
    pairs = np.unique(brings[both] * len(hops) + takes_on[both])
    brings, takes_on = np.divmod(pairs, max(len(hops), 1))
    follows = np.setdiff1d(np.arange(1, hop_ptr[-1]), hop_ptr)
    return np.concatenate((follows - 1, hop_ptr[brings + 1] - 1)), np.concatenate((follows, hop_ptr[takes_on]))
