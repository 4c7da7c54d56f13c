"""List scheduling of messages: methods bring routes and an order, the engine brings times.

The engine takes everything that a machine and a runtime can have: links and limits that are shared by rate, routes with
several starts or ends, release times, reduction order, threadblocks, proxies, and receivers that work.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flowccl.runtimes.execution import Execution
from flowccl.runtimes.limits import (
    AGAIN_OPERATIONS,
    CHANNELS_PER_BLOCK,
    FIRST_OPERATIONS,
    FURTHER_OPERATIONS,
    ISSUE_OPERATIONS,
    RECEIVE_OPERATIONS,
    USABLE_OPERATIONS,
)
from flowccl.schedule.clock import reduced_together
from flowccl.schedule.generation.precedence import data_pairs, soonest_starts
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.timing import spread
from flowccl.topology.symmetry.regular_groups import RegularGroup
from flowccl.topology.topology import Topology

if TYPE_CHECKING:
    from flowccl.schedule.generation.engine_kernels import MessageArrays, Turns

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
Waits = tuple[I64, I64, I64, NDArray[np.bool_]]
_NEVER = int(np.iinfo(np.int64).max)
_PACKED_AGAIN = 3  # times that messages are scheduled anew because another order has more to pack
_OPERATIONS = (USABLE_OPERATIONS, RECEIVE_OPERATIONS, AGAIN_OPERATIONS, FURTHER_OPERATIONS)


@dataclass(frozen=True, eq=False)
class Engine:
    """The messages of a schedule, prepared for list scheduling in any order.

    The schedule is valid: it says which data each transfer waits for. `topology` is the machine on which its messages
    are timed, by default that of the schedule; it has the same links, but may have limits and costs that the schedule
    does not know. `message` joins transfers in other messages than the schedule does. No message is faster than
    `pace_GBps` of its first transfer, where that is above 0. Where threadblocks repeat their operations, each group
    does things in the order of the schedule, unless not `in_turn`: then the engine chooses groups as elsewhere. With a
    symmetry `group`, the schedule is that of GPU 0's data, and its images run at the same times.
    """

    schedule: Schedule
    execution: Execution | None = None
    topology: Topology | None = None
    message: NDArray[np.int32] | None = None
    pace_GBps: NDArray[np.float64] | None = None
    in_turn: bool = True
    group: RegularGroup | None = None

    def run(self, key: NDArray[Any] | None = None, least: float = 1.0, give_up_ps: int = _NEVER) -> Schedule | None:
        """Return the schedule with the times of the engine: of the messages that wait, the least key goes first.

        By default, messages keep the order of the schedule. A message waits where other messages leave it less than
        `least` of the rate that it could have. None where the groups cannot send the messages, where reductions wait
        for each other, or where a message would start after `give_up_ps`.
        """
        from flowccl.schedule.generation.engine_kernels import Capacity, run_engine
        from flowccl.schedule.generation.orbits import of_orbits

        topology, first = self._target.topology, self._first
        order = (self.schedule.start_ps if key is None else key)[first]
        rank = np.empty(len(first), dtype=np.int64)
        rank[np.lexsort((first, self.schedule.start_ps[first], order))] = np.arange(len(first))
        bandwidth = np.concatenate((topology.link_GBps, topology.limit_GBps))
        if self.execution is None:
            capacity = Capacity(bandwidth, 0, 0, 0, 0, 0, 1, 0, len(topology.nodes))
        else:
            together, groups = self.execution.most_together, self.execution.groups
            capacity = Capacity(bandwidth, groups, *_OPERATIONS, together, CHANNELS_PER_BLOCK, len(topology.nodes))
        if self.group is not None:
            capacity = of_orbits(capacity, self.group)
        messages = self._messages._replace(rank=rank)
        for _ in range(_PACKED_AGAIN):
            found = self._with_times(run_engine(messages, capacity, self._turns, float(least), int(give_up_ps)))
            if found is None or found.costs is None:
                return found
            needed_ps = found.costs.pack_ps[first]
            if not np.any(needed_ps > messages.pack_ps):
                return self._packed(found, messages.pack_ps - needed_ps)
            messages = messages._replace(pack_ps=np.maximum(needed_ps, messages.pack_ps))
        return None

    @property
    def _turns(self) -> "Turns":
        """The order of what each group does, as in the schedule, where threadblocks repeat their operations."""
        from flowccl.schedule.generation.engine_kernels import Turns

        none = np.zeros(0, dtype=np.int64)
        if self.execution is None or self.execution.loops == 1 or not self.in_turn:
            never = np.zeros(0, dtype=np.bool_)
            return Turns(none, none, none, never, none, none, never, none, none, none)
        schedule, first, groups, messages = self.schedule, self._first, self.execution.groups, self._messages
        issuer, receiver = schedule.issuer[first].astype(np.int64), schedule.receiver[first].astype(np.int64)
        lead = self._of[reduced_together(schedule)[first]]
        leads = lead == np.arange(len(first))
        place = np.full(2 * len(first), -1, dtype=np.int64)
        place[0::2] = np.where(issuer >= 0, messages.source * groups + issuer, self._post_of)
        place[1::2] = np.where((messages.work_ps > 0) & leads, messages.target * groups + receiver, -1)
        time = np.stack((schedule.start_ps[first], schedule.work_from_ps[first]), axis=1).reshape(-1)
        order = np.lexsort((np.arange(len(place)), time, place))
        order = order[place[order] >= 0]
        following = np.full(len(place), -1, dtype=np.int64)
        same = np.diff(place[order]) == 0
        following[order[:-1][same]] = order[1:][same]
        places = max(groups * len(self._target.topology.nodes), int(place.max(initial=-1)) + 1)
        head = np.full(places, -1, dtype=np.int64)
        begins = np.append(True, ~same) if len(order) else np.zeros(0, dtype=np.bool_)
        head[place[order][begins]] = order[begins]
        parked, worked = np.zeros(len(place), dtype=np.bool_), np.zeros(len(first), dtype=np.bool_)
        chains = self._chains(schedule.work_from_ps[first], leads)
        members = np.argsort(lead, kind="stable")
        same = np.diff(lead[members]) == 0
        next_one = np.full(len(first), -1, dtype=np.int64)
        next_one[members[:-1][same]] = members[1:][same]
        missing = np.bincount(lead, minlength=len(first))
        return Turns(place, following, head, parked, *chains, worked, lead, next_one, missing)

    @property
    def _post_of(self) -> I64:
        """The place of each message over a NIC: that of the threadblock which posts all parts of a chunk; else -1."""
        assert self.execution is not None
        first, places = self._first, self.execution.groups * len(self._target.topology.nodes)
        schedule = self.schedule
        columns = schedule.route[first], schedule.reduce[first], schedule.chunk[first] // self.execution.loops
        _, post = np.unique(np.stack(columns), axis=1, return_inverse=True)
        return np.where(self._messages.proxied, places + post.reshape(-1), -1)

    def _chains(self, time: I64, leads: NDArray[np.bool_]) -> tuple[I64, I64]:
        """For each message that leads, the one that is reduced into the same chunk before it, and the one after it.

        -1: there is none.
        """
        messages = self._messages
        row = np.repeat(np.arange(len(time)), np.diff(messages.into_ptr))
        into, row = messages.into[leads[row]], row[leads[row]]
        order = np.lexsort((time[row], into))
        pairs = np.flatnonzero(np.diff(into[order]) == 0)
        before, after = np.full((2, len(time)), -1, dtype=np.int64)
        before[row[order[pairs + 1]]], after[row[order[pairs]]] = row[order[pairs]], row[order[pairs + 1]]
        return before, after

    def _with_times(self, times: tuple[bool, I64, F64, I32, I32, I64]) -> Schedule | None:
        """The schedule with times that the engine found; None where it found none."""
        done, start, rate, issuer, receiver, work_from = times
        if not done:
            return None
        of = self._of
        found = replace(
            self._target,
            start_ps=start[of],
            issuer=issuer[of],
            receiver=receiver[of],
            work_from_ps=work_from[of],
            rate_GBps=np.where(rate < self._full_GBps, rate, 0.0)[of],
        )
        return found if _keeps_reductions(self.schedule, found) else None

    def _packed(self, found: Schedule, less_ps: I64) -> Schedule | None:
        """The schedule with what there is to pack in its own order, which may be less than what was expected.

        Messages with less to pack start later, so that they leave as planned. None where that changes what to pack.
        """
        assert found.costs is not None
        if not less_ps.any():
            return found
        idle = (less_ps > 0) & (found.costs.pack_ps[self._first] == 0)
        issuer = np.where(idle[self._of], -1, found.issuer).astype(np.int32)
        made = replace(found, start_ps=found.start_ps + less_ps[self._of], issuer=issuer)
        return made if made.costs is not None and np.array_equal(made.costs.pack_ps, found.costs.pack_ps) else None

    @cached_property
    def tail_ps(self) -> I64:
        """For every transfer, the time from its start to the end of its last successor, on free links.

        What is reduced into the same chunk of a GPU is worked on one after the other, in the order of the schedule.
        """
        from flowccl.schedule.generation.generation_kernels import longest_tails

        messages, takes = self._messages, self._takes_ps
        before = np.repeat(np.arange(len(self._first)), np.diff(messages.after_ptr))
        flow = np.where(messages.rigid, 0, np.ceil(messages.wire_bytes * 1000.0 / messages.rate_GBps))
        gone = messages.pack_ps + messages.overhead_ps + flow.astype(np.int64) + messages.work_ps
        lag = np.where(messages.from_end, gone[before], 0) + messages.after_ps
        first, then = self._reduced_in_turn
        before, after = np.append(before, first), np.append(messages.after, then)
        lag = np.append(lag, gone[first] - gone[then] + messages.work_ps[then])
        order = np.argsort(before, kind="stable")
        ptr = np.searchsorted(before[order], np.arange(len(self._first) + 1))
        tails: I64 = longest_tails(self._in_time[::-1].copy(), ptr, after[order], lag[order], takes)[self._of]
        return tails

    @property
    def _in_time(self) -> I64:
        """The messages in the order of the schedule."""
        return np.argsort(self.schedule.start_ps[self._first], kind="stable")

    @property
    def _reduced_in_turn(self) -> tuple[I64, I64]:
        """Pairs of messages that are reduced into the same chunk of a GPU, each with the next one in the schedule."""
        messages, turn = self._messages, np.empty(len(self._first), dtype=np.int64)
        turn[self._in_time] = np.arange(len(turn))
        row = np.repeat(np.arange(len(turn)), np.diff(messages.into_ptr))
        worked = messages.work_ps[row] > 0
        row, into = row[worked], messages.into[worked]
        order = np.lexsort((turn[row], into))
        same = np.diff(into[order]) == 0
        return row[order][:-1][same], row[order][1:][same]

    @cached_property
    def _target(self) -> Schedule:
        """The schedule on the machine on which it is timed; its own times do not count."""
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
        return np.flatnonzero(self._target.leader == np.arange(len(self.schedule)))

    @cached_property
    def _of(self) -> I64:
        """The message of every transfer."""
        return np.searchsorted(self._first, self._target.leader)

    @cached_property
    def _takes_ps(self) -> I64:
        """The time of every message from its start to its last arrival, on free links."""
        timing = self._target.timing
        takes = np.zeros(len(self.schedule), dtype=np.int64)
        np.maximum.at(takes, timing.end_transfer, timing.end_arrival_ps - self.schedule.start_ps[timing.end_transfer])
        return takes[self._first]

    @cached_property
    def _full_GBps(self) -> F64:
        """The highest rate of every message."""
        shape, costs = self._target.shape, self._target.costs
        slowest = np.full(len(shape.routes), np.inf)
        np.minimum.at(slowest, shape.segment_route, shape.segment_GBps)
        full = slowest[self._target.route[self._first]]
        return full if costs is None else np.minimum(full, costs.rate_GBps[self._first])

    @property
    def _planned_GBps(self) -> F64:
        """The highest rate that every message may have."""
        if self.pace_GBps is None:
            return self._full_GBps
        planned = self.pace_GBps[self._first]
        return np.where(planned > 0, np.minimum(planned, self._full_GBps), self._full_GBps)

    @cached_property
    def _messages(self) -> "MessageArrays":
        from flowccl.schedule.generation.engine_kernels import MessageArrays
        from flowccl.schedule.generation.orbits import in_orbits

        schedule, first, of = self._target, self._first, self._of
        shape, timing, costs = schedule.shape, schedule.timing, schedule.costs
        count, route, none = len(first), schedule.route[first], np.zeros(len(first), dtype=np.int64)
        lead = none if costs is None else costs.lead_ps[first]
        arrival = _arrivals(schedule)
        last, soonest, sending = none.copy(), none.copy(), np.zeros(len(schedule), dtype=np.int64)
        np.maximum.at(last, of[timing.end_transfer], arrival)
        np.maximum.at(soonest, of, soonest_starts(self.schedule))
        np.maximum.at(sending, timing.root_transfer, timing.root_to_ps - timing.root_from_ps)
        if costs is not None:  # a switch reduces what others have only once these have said that they have begun
            soonest = np.where((np.diff(shape.root_ptr) > 1)[route], np.maximum(soonest, last), soonest)
        root, end = shape.root_node[shape.root_ptr[:-1]][route], shape.end_node[shape.end_ptr[:-1]][route]
        work = none if costs is None else costs.work_ps[first]
        starts, works = _split(self.waits, work > 0)
        before, after, row, from_end = starts
        into_ptr, into = _accumulators(schedule, of, end)
        hop_ptr, resource, weight, offset, takes, GBps = _hops(schedule, first, lead)
        pack = none if costs is None else costs.pack_ps[first]
        forwards = np.isin(np.arange(count), after[from_end]) | (pack > 0)
        made = MessageArrays(
            rank=none,
            soonest_ps=soonest,
            wire_bytes=(schedule.sent_bytes if costs is None else costs.wire_bytes)[first],
            rate_GBps=self._planned_GBps,
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
        return made if self.group is None else in_orbits(made, self.group)

    @property
    def waits(self) -> Waits:
        """Which messages come after which; kept with the schedule, unless messages are joined here."""
        count = len(self._first)
        if self.message is not None:
            return _waits(self.schedule, self._of, count)
        if "waits" not in self.schedule.cache:
            self.schedule.cache["waits"] = _waits(self.schedule, self._of, count)
        known: Waits = self.schedule.cache["waits"]
        return known


def in_same_order(schedule: Schedule, other: Schedule) -> Schedule | None:
    """Return a schedule with the messages of another, valid one, in the same order, with the times of the engine.

    It has the same transfers, but chunks of other sizes or another machine with the same links.
    """
    schedule.cache["waits"] = Engine(other, other.execution).waits
    schedule.cache["leaves first"] = leaves_first(other)
    return Engine(schedule, other.execution).run(other.start_ps)


def _waits(schedule: Schedule, of: I64, count: int) -> Waits:
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
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    graph = csr_matrix((np.ones(len(x), dtype=np.int8), (x, y)), (count, count))
    _, part = connected_components(graph, connection="strong")
    return np.asarray(part[x] == part[y])


def leaves_first(schedule: Schedule) -> list[tuple[I64, I64]]:
    """Pairs (root row, end row): the data leaves the node before other data arrives there."""
    return [(pairs.x, pairs.y) for pairs in data_pairs(schedule) if pairs.sooner == "root_from_ps"]


def _keeps_reductions(draft: Schedule, made: Schedule) -> bool:
    """Whether everything that leaves before data arrives at its node in one schedule does so in the other one."""
    if "leaves first" not in draft.cache:
        draft.cache["leaves first"] = leaves_first(draft)
    leaves, arrives = made.timing.root_from_ps, made.timing.end_arrival_ps
    return all(bool(np.all(leaves[x] < arrives[y])) for x, y in draft.cache["leaves first"])


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
