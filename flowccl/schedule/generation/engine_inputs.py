"""What the engine takes of a schedule: its messages by number, what they need, and which come after which."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import components
from flowccl.runtimes.limits import FIRST_OPERATIONS, ISSUE_OPERATIONS
from flowccl.schedule.generation.precedence import data_pairs, soonest_starts
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.timing import spread

if TYPE_CHECKING:
    from flowccl.schedule.generation.engine_state_kernels import MessageArrays

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Waits = tuple[I64, I64, I64, NDArray[np.bool_]]


def messages_of(
    draft: Schedule, schedule: Schedule, first: I64, of: I64, waits: Waits, rate_GBps: F64
) -> "MessageArrays":
    """Return the messages of a schedule, which is `draft` on the machine where it is timed.

    `first` is the first transfer of every message, `of` the message of every transfer.
    """
    from flowccl.schedule.generation.engine_state_kernels import MessageArrays

    shape, timing, costs = schedule.shape, schedule.timing, schedule.costs
    count, route, none = len(first), schedule.route[first], np.zeros(len(first), dtype=np.int64)
    lead = none if costs is None else costs.lead_ps[first]
    arrival = _arrivals(schedule)
    last, soonest, sending = none.copy(), none.copy(), np.zeros(len(schedule), dtype=np.int64)
    np.maximum.at(last, of[timing.end_transfer], arrival)
    np.maximum.at(soonest, of, soonest_starts(draft))
    np.maximum.at(sending, timing.root_transfer, timing.root_to_ps - timing.root_from_ps)
    if costs is not None:  # a switch reduces what others have only once these have said that they have begun
        soonest = np.where((np.diff(shape.root_ptr) > 1)[route], np.maximum(soonest, last), soonest)
    root, end = shape.root_node[shape.root_ptr[:-1]][route], shape.end_node[shape.end_ptr[:-1]][route]
    work = none if costs is None else costs.work_ps[first]
    starts, works = _split(waits, work > 0)
    before, after, row, from_end = starts
    into_ptr, into = _accumulators(schedule, of, end)
    hop_ptr, resource, weight, offset, takes, GBps = _hops(schedule, first, lead)
    pack = none if costs is None else costs.pack_ps[first]
    forwards = np.isin(np.arange(count), after[from_end]) | (pack > 0)
    return MessageArrays(
        rank=none,
        soonest_ps=soonest,
        wire_bytes=(schedule.sent_bytes if costs is None else costs.wire_bytes)[first],
        rate_GBps=rate_GBps,
        rigid=_rigid_routes(schedule)[route],
        operations=np.where(forwards, ISSUE_OPERATIONS, FIRST_OPERATIONS),
        sending_ps=sending[first] - lead,
        pack_ps=pack,
        overhead_ps=none if costs is None else costs.overhead_ps[first],
        work_ps=work,
        further_ps=none if costs is None else costs.further_ps[first],
        arrive_ps=last,
        into_ptr=into_ptr,
        into=into,
        source=np.where(shape.reduces_inside[route], end, root).astype(np.int32),
        target=end.astype(np.int32),
        peer=end.astype(np.int32),
        proxied=np.zeros(count, dtype=np.bool_) if costs is None else costs.is_proxied[first],
        hop_ptr=hop_ptr,
        hop_resource=resource.astype(np.int32),
        hop_weight=weight,
        hop_from_ps=offset,
        hop_for_ps=takes,
        hop_GBps=GBps,
        after_ptr=np.searchsorted(before, np.arange(count + 1)).astype(np.int64),
        after=after,
        after_ps=np.where(from_end, arrival[row] if len(arrival) else 0, 0),
        from_end=from_end,
        work_after_ptr=np.searchsorted(works[0], np.arange(count + 1)).astype(np.int64),
        work_after=works[1],
    )


def waits_of(schedule: Schedule, of: I64, count: int) -> Waits:
    """Which messages come after which: (message, later message, end row of the first, whether its arrival counts).

    Where its arrival does not count, the first message leaves before the later one arrives.
    """
    timing, rows = schedule.timing, []
    for pairs in data_pairs(schedule):
        ended = pairs.sooner == "end_arrival_ps"
        x = of[(timing.end_transfer if ended else timing.root_transfer)[pairs.x]]
        y = of[(timing.root_transfer if pairs.later == "root_from_ps" else timing.end_transfer)[pairs.y]]
        rows.append((x, y, pairs.x if ended else np.zeros(len(x), dtype=np.int64), np.full(len(x), ended)))
    x, y, row = (np.concatenate([part[k] for part in rows]).astype(np.int64) for k in range(3))
    from_end: NDArray[np.bool_] = np.concatenate([part[3] for part in rows])
    keep = np.flatnonzero(x != y)
    keep = keep[np.lexsort((y[keep], x[keep]))]
    return x[keep], y[keep], row[keep], from_end[keep]


def _split(waits: Waits, is_worked_on: NDArray[np.bool_]) -> tuple[Waits, tuple[I64, I64]]:
    """Divide what comes after what: messages that start later, and messages that are worked on later.

    A message that is worked on may arrive before data leaves its receiver, if the work on it begins after that. Others
    start after it. Messages that each must leave before another one of them arrives are not ordered, if nothing is
    worked on: all start when they can.
    """
    x, y, _, from_end = waits
    works = ~from_end & is_worked_on[y]
    starts = ~works
    if not (from_end | works).all():
        starts &= from_end | ~_in_cycles(x, y, len(is_worked_on))
    return tuple(column[starts] for column in waits), (x[works], y[works])  # type: ignore[return-value]


def _in_cycles(x: I64, y: I64, count: int) -> NDArray[np.bool_]:
    """Which pairs (before, after) are part of a cycle."""
    part = components(count, x, y, strong=True)
    return np.asarray(part[x] == part[y])


def _accumulators(schedule: Schedule, of: I64, end: NDArray[np.int32]) -> tuple[I64, I64]:
    """For each message, pointer and number of each chunk of a GPU that it is reduced into."""
    reduces = np.flatnonzero(schedule.reduce)
    reduces = reduces[np.argsort(of[reduces], kind="stable")]
    key = schedule.chunk[reduces].astype(np.int64) * len(schedule.topology.nodes) + end[of[reduces]]
    ptr = np.searchsorted(of[reduces], np.arange(len(end) + 1)).astype(np.int64)
    return ptr, np.unique(key, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _rigid_routes(schedule: Schedule) -> NDArray[np.bool_]:
    """Routes that a message crosses at one rate only: over store-and-forward switches or links with overheads."""
    segments = np.bincount(schedule.shape.segment_route, minlength=len(schedule.routes))
    return np.asarray((segments > 1) | schedule.topology.has_overheads)


def _arrivals(schedule: Schedule) -> I64:
    """For each end row, the time from the last byte at the sender (rigid: the first) until the data is whole there."""
    shape, timing, costs = schedule.shape, schedule.timing, schedule.costs
    _, end = spread(shape.end_ptr, schedule.route)
    hop = shape.end_hop[end]
    latency = shape.hop_offset_ps[hop] + schedule.topology.link_latency_ps[shape.routes.link[hop]]
    signal = 0 if costs is None else costs.signal_ps[timing.end_transfer]
    lead = 0 if costs is None else costs.lead_ps[timing.end_transfer]
    whole = timing.end_whole_ps - schedule.start_ps[timing.end_transfer] - lead
    rigid = _rigid_routes(schedule)[schedule.route[timing.end_transfer]]
    return np.asarray(np.where(rigid, whole, latency + signal), dtype=np.int64)


def rates_leaving_capacity(messages: "MessageArrays", bandwidth: F64) -> F64:
    """Return rates of messages with which each leaves the slowest one that shares a link with it its own rate there."""
    owner = np.repeat(np.arange(len(messages.rate_GBps)), np.diff(messages.hop_ptr))
    rate_there = messages.rate_GBps[owner] * messages.hop_weight
    least = np.full(len(bandwidth), np.inf)
    np.minimum.at(least, messages.hop_resource, rate_there)
    least = least[messages.hop_resource]
    spare = bandwidth[messages.hop_resource] - least
    faster = (rate_there > least) & (spare > 0) & ~messages.rigid[owner]
    rate = messages.rate_GBps.copy()
    np.minimum.at(rate, owner[faster], spare[faster] / messages.hop_weight[faster])
    return rate


def _hops(schedule: Schedule, first: I64, lead: I64) -> tuple[I64, I64, F64, I64, I64, F64]:
    """Hops of the messages on links, and on limits behind them: (pointer, resource, weight, from, for, rate)."""
    shape, topology, timing = schedule.shape, schedule.topology, schedule.timing
    message, hop = spread(shape.routes.ptr, schedule.route[first])
    size = np.diff(shape.routes.ptr)[schedule.route[first]]
    row = np.searchsorted(timing.hop_transfer, first)  # the hops of a transfer are in the order of its route
    row = np.repeat(row, size) + np.arange(len(hop)) - np.repeat(np.cumsum(size) - size, size)
    resource = shape.routes.link[hop].astype(np.int64)
    offset = timing.hop_from_ps[row] - (schedule.start_ps[first] + lead)[message]
    takes, GBps, weight = timing.hop_to_ps[row] - timing.hop_from_ps[row], timing.hop_GBps[row], shape.hop_weight[hop]
    alone = np.where(topology.link_overhead_ps[resource] > 0, topology.link_GBps[resource], GBps)  # one at a time
    if topology.limits:
        pointer, limit = topology.link_limits
        times = np.diff(pointer)[resource]
        again = np.repeat(np.arange(len(resource)), times)
        inside = np.arange(len(again)) - np.repeat(np.cumsum(times) - times, times)
        which = len(topology.links) + limit[np.repeat(pointer[:-1][resource], times) + inside].astype(np.int64)
        message, resource = np.append(message, message[again]), np.append(resource, which)
        offset, takes = np.append(offset, offset[again]), np.append(takes, takes[again])
        GBps, weight = np.append(alone, GBps[again]), np.append(weight, weight[again])
        key = np.stack((message, resource, offset, takes), axis=1)  # links of a limit at the same time are one hop
        once, chosen, inverse = np.unique(key, axis=0, return_index=True, return_inverse=True)
        weight, GBps = np.bincount(inverse.reshape(-1), weight).astype(np.float64), GBps[chosen]
        message, resource, offset, takes = once.T.copy()
    else:
        GBps = alone
    order = np.argsort(message, kind="stable")
    ptr = np.searchsorted(message[order], np.arange(len(first) + 1)).astype(np.int64)
    return ptr, resource[order], weight[order], offset[order], takes[order], GBps[order]
