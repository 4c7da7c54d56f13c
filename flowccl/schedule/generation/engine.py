"""List scheduling of messages: methods bring routes and an order, the engine brings times.

The engine takes everything that a machine and a runtime can have: links and limits that are shared by rate, routes with
several starts or ends, release times, reduction order, threadblocks, proxies, and receivers that work.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.runtimes.execution import Execution
from flowccl.runtimes.limits import CHANNELS_PER_BLOCK
from flowccl.schedule.generation.precedence import data_pairs, soonest_starts
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.timing import spread
from flowccl.topology.topology import Topology

I64 = NDArray[np.int64]
_NEVER = np.iinfo(np.int64).max
_OPERATIONS = (58, 4, 4)  # of a threadblock, less those that begin and end a call; of a send; of work after an arrival


@dataclass(frozen=True, eq=False)
class Engine:
    """The messages of a schedule, prepared for list scheduling in any order.

    The schedule is valid: it says which data each transfer waits for. `topology` is the machine on which its messages
    are timed, by default that of the schedule; it has the same links, but may have limits and costs that the schedule
    does not know. `message` joins transfers in other messages than the schedule does.
    """

    schedule: Schedule
    execution: Execution | None = None
    topology: Topology | None = None
    message: NDArray[np.int32] | None = None

    def run(self, key: NDArray[np.number] | None = None, least: float = 1.0, give_up_ps: int = _NEVER) -> Schedule | None:  # type: ignore[type-arg]
        """Return the schedule with the times of the engine: of the messages that wait, the least key goes first.

        By default, messages keep the order of the schedule. A message waits where other messages leave it less than
        `least` of the rate that it could have. None where the groups cannot hold the messages, where reductions wait
        for each other, or where a message would start after `give_up_ps`.
        """
        from flowccl.schedule.generation.engine_kernels import Shares, run_engine

        timed, count = self._timed, len(self._first)
        order = self.schedule.start_ps[self._first] if key is None else key[self._first]
        rank = np.empty(count, dtype=np.int64)
        rank[np.lexsort((self._first, self.schedule.start_ps[self._first], order))] = np.arange(count)
        topology = timed.topology
        bandwidth = np.concatenate((topology.link_GBps, topology.limit_GBps))
        groups, operations = (0, (0, 0, 0)) if self.execution is None else (self.execution.groups, _OPERATIONS)
        peers = 0 if self.execution is None else CHANNELS_PER_BLOCK
        shares = Shares(bandwidth, groups, *operations, peers, len(topology.nodes))
        done, start, rate, issuer, receiver, work_from = run_engine(
            self._messages._replace(rank=rank), shares, float(least), int(give_up_ps)
        )
        if not done:
            return None
        return replace(
            timed,
            start_ps=start[self._of],
            issuer=issuer[self._of],
            receiver=receiver[self._of],
            work_from_ps=work_from[self._of],
            rate_GBps=np.where(rate < self._messages.rate_GBps, rate, 0.0)[self._of],
        )

    @cached_property
    def _timed(self) -> Schedule:
        return replace(
            self.schedule,
            topology=self.topology or self.schedule.topology,
            message=self.schedule.message if self.message is None else self.message,
            execution=self.execution,
            issuer=np.zeros(0, dtype=np.int32),
            receiver=np.zeros(0, dtype=np.int32),
            work_from_ps=np.zeros(0, dtype=np.int64),
            rate_GBps=np.zeros(0),
        )

    @cached_property
    def _first(self) -> I64:
        """The first transfer of every message."""
        return np.flatnonzero(self._timed.leader == np.arange(len(self.schedule)))

    @cached_property
    def _of(self) -> I64:
        """The message of every transfer."""
        return np.searchsorted(self._first, self._timed.leader)

    @cached_property
    def tail_ps(self) -> I64:
        """For every transfer, the time from its start to the end of its last successor, on free links."""
        from flowccl.schedule.generation.generation_kernels import longest_tails

        messages = self._messages
        takes = self._takes_ps
        before = np.repeat(np.arange(len(self._first)), np.diff(messages.after_ptr))
        gone = takes[before] - self._rest_ps[before] + messages.work_ps[before]
        lag = np.where(messages.from_end, gone, 0) + messages.after_ps
        last_first = np.argsort(self.schedule.start_ps[self._first], kind="stable")[::-1].copy()
        return longest_tails(last_first, messages.after_ptr, messages.after, lag, takes)[self._of]

    @cached_property
    def _takes_ps(self) -> I64:
        """The time of every message from its start to its last arrival, on free links."""
        timing = self._timed.timing
        takes = np.zeros(len(self.schedule), dtype=np.int64)
        np.maximum.at(takes, timing.end_transfer, timing.end_arrival_ps - self.schedule.start_ps[timing.end_transfer])
        return takes[self._first]

    @cached_property
    def _rest_ps(self) -> I64:
        """The part of `_takes_ps` after the last byte has left its sender."""
        m = self._messages
        flow = np.where(m.rigid, 0, np.ceil(m.wire_bytes * 1000.0 / m.rate_GBps)).astype(np.int64)
        return self._takes_ps - m.pack_ps - m.overhead_ps - flow

    @cached_property
    def _messages(self):  # type: ignore[no-untyped-def]
        from flowccl.schedule.generation.engine_kernels import Messages

        schedule, first = self._timed, self._first
        shape, timing, costs, topology = schedule.shape, schedule.timing, schedule.costs, schedule.topology
        count, none = len(first), np.zeros(len(first), dtype=np.int64)
        route = schedule.route[first]
        rigid = _rigid_routes(schedule)[route]
        slowest = np.full(len(shape.routes), np.inf)
        np.minimum.at(slowest, shape.segment_route, shape.segment_GBps)
        rate = slowest[route] if costs is None else np.minimum(slowest[route], costs.rate_GBps[first])
        lead = none if costs is None else costs.lead_ps[first]
        arrival = _ends(schedule)
        work = none if costs is None else costs.work_ps[first]
        hold = np.zeros(len(schedule), dtype=np.int64)
        np.maximum.at(hold, timing.root_transfer, timing.root_to_ps - timing.root_from_ps)
        before, after, row, from_end = self._known_waits(count)
        after_ptr = np.searchsorted(before, np.arange(count + 1)).astype(np.int64)
        after_ps = np.where(from_end, arrival[row] if len(arrival) else 0, 0)
        roots, ends = shape.root_ptr[:-1], shape.end_ptr[:-1]
        root, end = shape.root_node[roots][route], shape.end_node[ends][route]
        source = np.where(shape.reduces_inside[route], end, root)
        hops = _hops(schedule, first, lead)
        last = np.zeros(count, dtype=np.int64)
        np.maximum.at(last, self._of[timing.end_transfer], arrival)
        soonest = _soonest(self.schedule, self._of, count)
        if costs is not None:  # a switch reduces what others have only once these have said that they have begun
            soonest = np.where((np.diff(shape.root_ptr) > 1)[route], np.maximum(soonest, last), soonest)
        return Messages(
            none,
            soonest,
            schedule_bytes(schedule)[first],
            rate,
            rigid,
            hold[first] - (none if costs is None else costs.lead_ps[first]),
            none if costs is None else costs.pack_ps[first],
            none if costs is None else costs.overhead_ps[first],
            work,
            last,
            _accumulators(schedule, first, end),
            source.astype(np.int32),
            end.astype(np.int32),
            np.zeros(count, dtype=np.bool_) if costs is None else costs.is_proxied[first],
            *hops,
            after_ptr,
            after,
            after_ps,
            from_end,
        )

    def _known_waits(self, count: int) -> tuple[I64, I64, I64, NDArray[np.bool_]]:
        """Which messages wait for which; kept with the schedule, unless messages are joined here."""
        if self.message is not None:
            return _waits(self.schedule, self._of, count)
        if "waits" not in self.schedule.cache:
            self.schedule.cache["waits"] = _waits(self.schedule, self._of, count)
        known: tuple[I64, I64, I64, NDArray[np.bool_]] = self.schedule.cache["waits"]
        return known


def _accumulators(schedule: Schedule, first: I64, end: NDArray[np.int32]) -> I64:
    """A number for each chunk that a GPU reduces messages into; -1 for messages that are stored.

    The first chunk stands for all chunks of a message.
    """
    reduces = np.flatnonzero(schedule.reduce[first])
    key = schedule.chunk[first[reduces]].astype(np.int64) * len(schedule.topology.nodes) + end[reduces]
    number = np.full(len(first), -1, dtype=np.int64)
    number[reduces] = np.unique(key, return_inverse=True)[1].reshape(-1)
    return number


def schedule_bytes(schedule: Schedule) -> I64:
    """The bytes of each transfer's message that cross the links."""
    return schedule.sent_bytes if schedule.costs is None else schedule.costs.wire_bytes


def _rigid_routes(schedule: Schedule) -> NDArray[np.bool_]:
    """Routes that a message crosses at one rate only: over store-and-forward switches or links with overheads."""
    segments = np.bincount(schedule.shape.segment_route, minlength=len(schedule.routes))
    return np.asarray((segments > 1) | schedule.topology.has_overheads)


def _ends(schedule: Schedule) -> I64:
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


def _soonest(schedule: Schedule, of: I64, count: int) -> I64:
    soonest = np.zeros(count, dtype=np.int64)
    np.maximum.at(soonest, of, soonest_starts(schedule))
    return soonest


def _hops(schedule: Schedule, first: I64, lead: I64) -> tuple[NDArray[np.generic], ...]:
    """Hops of the messages on links and limits: pointer, resource, weight, from, for, rate."""
    shape, topology, timing = schedule.shape, schedule.topology, schedule.timing
    message, hop = spread(shape.routes.ptr, schedule.route[first])
    link = shape.routes.link[hop]
    offset = shape.hop_offset_ps[hop]
    row = np.searchsorted(timing.hop_transfer, first)  # the hops of a transfer are in the order of its route
    size = np.diff(shape.routes.ptr)[schedule.route[first]]
    rows = np.repeat(row, size) + np.arange(len(hop)) - np.repeat(np.cumsum(size) - size, size)
    begin = schedule.start_ps[first] + lead
    offset = timing.hop_from_ps[rows] - begin[message]
    takes, GBps = timing.hop_to_ps[rows] - timing.hop_from_ps[rows], timing.hop_GBps[rows]
    resource, weight = link.astype(np.int64), shape.hop_weight[hop]
    if topology.limits:
        pointer, limit = topology.link_limits
        times = np.diff(pointer)[link]
        again = np.repeat(np.arange(len(link)), times)
        which = limit[np.repeat(pointer[:-1][link], times) + np.arange(len(again)) - np.repeat(np.cumsum(times) - times, times)]
        message, resource = np.concatenate((message, message[again])), np.concatenate((resource, len(topology.links) + which))
        offset, takes = np.concatenate((offset, offset[again])), np.concatenate((takes, takes[again]))
        GBps, weight = np.concatenate((GBps, GBps[again])), np.concatenate((weight, weight[again]))
        message, resource, offset, takes, GBps, weight = _merged_limits(message, resource, offset, takes, GBps, weight)
    order = np.argsort(message, kind="stable")
    ptr = np.searchsorted(message[order], np.arange(len(first) + 1)).astype(np.int64)
    return ptr, resource[order].astype(np.int32), weight[order], offset[order], takes[order], GBps[order]


def _merged_limits(
    message: I64, resource: I64, offset: I64, takes: I64, GBps: NDArray[np.float64], weight: NDArray[np.float64]
) -> tuple[I64, I64, I64, I64, NDArray[np.float64], NDArray[np.float64]]:
    """Hops of a message on the same resource at the same time become one with their total weight."""
    key = np.stack((message, resource, offset, takes), axis=1)
    once, first, inverse = np.unique(key, axis=0, return_index=True, return_inverse=True)
    total = np.bincount(inverse.reshape(-1), weight)
    return once[:, 0], once[:, 1], once[:, 2], once[:, 3], GBps[first], total


def _waits(schedule: Schedule, of: I64, count: int) -> tuple[I64, I64, I64, NDArray[np.bool_]]:
    """Which messages wait for which: (message, message that waits, end row of the first, whether for its arrival).

    Two messages that each must start before the other one arrives are not ordered: both start when they can.
    """
    timing, rows = schedule.timing, []
    for pairs in data_pairs(schedule):
        ended = pairs.sooner == "end_arrival_ps"
        x = of[(timing.end_transfer if ended else timing.root_transfer)[pairs.x]]
        y = of[(timing.root_transfer if pairs.later == "root_from_ps" else timing.end_transfer)[pairs.y]]
        rows.append((x, y, pairs.x if ended else np.zeros(len(x), dtype=np.int64), np.full(len(x), ended)))
    x, y, row, ended = (np.concatenate([part[k] for part in rows]) for k in range(4))
    mutual = ~ended
    if mutual.any():
        mutual &= np.isin(x * count + y, y * count + x)
    keep = np.flatnonzero((x != y) & ~mutual)
    keep = keep[np.lexsort((y[keep], x[keep]))]
    return x[keep], y[keep], row[keep], ended[keep]
