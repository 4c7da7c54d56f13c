"""Serial schedule generation: places transfers in a given order, each as early as links, limits and data allow.

For links that change their bandwidth, where durations depend on the start; everything else is for the engine.
"""

import heapq
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from flowccl.schedule.generation.engine import Engine
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.timing import Timing, replay
from flowccl.topology.topology import Topology

_Key = tuple[int, int]  # chunk, node


def generate_serial(schedule: Schedule, order: NDArray[np.int64]) -> Schedule:
    """Return the schedule with its transfers placed in this order, each as early as possible.

    `order` lists the first transfer of each message. A node receives the same data before each of its sends as in this
    order. Buffer limits are ignored.
    """
    placed = _Placed(schedule)
    start = np.zeros(len(schedule), dtype=np.int64)
    by_leader = np.argsort(schedule.leader, kind="stable")
    bounds = np.searchsorted(schedule.leader[by_leader], np.arange(len(schedule) + 1))
    for i in order.tolist():
        members = by_leader[bounds[i] : bounds[i + 1]]
        times = _Times(schedule, members)
        at = 0
        while True:
            wait = placed.wait(members, times.at(at))
            if wait <= 0:
                break
            at += wait
        start[members] = at
        placed.add(members, times.at(at))
    return replace(schedule, start_ps=start)


def within_limits(schedule: Schedule, topology: Topology | None = None) -> Schedule:
    """Return a schedule with times at which all links and limits are within their bandwidth, in its own order.

    Its transfers come after what they wait for, but may use links and limits that others use at the same time. Buffer
    limits are ignored. `topology` has the same links, and may have limits and costs that the schedule does not know.
    """
    topology = topology or schedule.topology
    made = None if topology.changes else Engine(schedule, topology=topology).run()
    return generate_serial(replace(schedule, topology=topology), sequence(schedule)) if made is None else made


def sequence(schedule: Schedule) -> NDArray[np.int64]:
    """Return an order of the transfers in which each send comes after the deliveries that precede it.

    In reductions, and at nodes that cannot copy, later deliveries come after the send. Otherwise the earliest transfer
    comes first. The first transfer of a message stands for the message.
    """
    timing = schedule.timing
    last = schedule.start_ps.copy()
    np.maximum.at(last, timing.root_transfer, timing.root_from_ps)
    gives_away = bool(np.any(schedule.topology.stores & ~schedule.topology.copies))
    if not (schedule.demand.reduces or gives_away):
        order: NDArray[np.int64] = np.lexsort((schedule.start_ps, last)).astype(np.int64)
        first: NDArray[np.int64] = order[schedule.leader[order] == order]
        return first
    return _reductions_in_order(schedule, last.tolist())


def fits(schedule: Schedule) -> bool:
    """Whether all links and limits are within their bandwidth, and GPUs reduce one chunk at a time."""
    timing, topology = schedule.timing, schedule.topology
    shared = timing.shared_links(topology)
    order = np.lexsort((timing.hop_from_ps, timing.hop_link))
    order = order[~shared[timing.hop_link[order]]]
    link, begin, end = timing.hop_link[order], timing.hop_from_ps[order], timing.hop_to_ps[order]
    if np.any((link[1:] == link[:-1]) & (begin[1:] < end[:-1])):
        return False
    busy = timing.reducing[np.lexsort((timing.end_whole_ps[timing.reducing], timing.end_node[timing.reducing]))]
    same = timing.end_node[busy[1:]] == timing.end_node[busy[:-1]]
    if np.any(same & (timing.end_whole_ps[busy[1:]] < timing.end_arrival_ps[busy[:-1]])):
        return False
    groups = [(np.isin(timing.hop_link, limit.links), limit.bandwidth_GBps) for limit in topology.limits]
    groups += [(timing.hop_link == link, topology.links[link].bandwidth_GBps) for link in np.flatnonzero(shared)]
    return all(_within(timing, np.flatnonzero(members), bandwidth) for members, bandwidth in groups)


def _within(timing: Timing, rows: NDArray[np.int64], bandwidth_GBps: float) -> bool:
    """Whether the rates of some hops never add up to more than a bandwidth."""
    time = np.concatenate((timing.hop_to_ps[rows], timing.hop_from_ps[rows]))
    step = np.concatenate((-timing.hop_GBps[rows], timing.hop_GBps[rows]))
    return not np.any(np.cumsum(step[np.argsort(time, kind="stable")]) > bandwidth_GBps * (1 + 1e-9))


def _reductions_in_order(schedule: Schedule, last: list[int]) -> NDArray[np.int64]:
    """Topological order (Kahn) of the arrivals before each send, the send, and the arrivals after it."""
    timing, leader = schedule.timing, schedule.leader.tolist()
    sends: dict[_Key, list[tuple[int, int]]] = {}
    for i, node, at in zip(timing.root_transfer, timing.root_node, timing.root_from_ps, strict=True):
        sends.setdefault((int(schedule.chunk[i]), int(node)), []).append((int(at), int(i)))
    after: list[list[int]] = [[] for _ in range(len(schedule))]
    open_before = [0] * len(schedule)
    for i, node, at in zip(timing.end_transfer, timing.end_node, timing.end_arrival_ps, strict=True):
        for sent, j in sends.get((int(schedule.chunk[i]), int(node)), ()):
            first, second = (leader[i], leader[j]) if at <= sent else (leader[j], leader[i])
            after[first].append(second)
            open_before[second] += 1
    ready = [(last[i], i) for i in range(len(schedule)) if not open_before[i] and leader[i] == i]
    heapq.heapify(ready)
    order = []
    while ready:
        _, i = heapq.heappop(ready)
        order.append(i)
        for j in after[i]:
            open_before[j] -= 1
            if not open_before[j]:
                heapq.heappush(ready, (last[j], j))
    rest = sorted(set(leader) - set(order), key=lambda i: (last[i], i))  # empty, except for unusual multicasts
    return np.array(order + rest, dtype=np.int64)


class _Times:
    """The timing of one message for any start; a shift of one timing, unless links change."""

    def __init__(self, schedule: Schedule, members: NDArray[np.int64]) -> None:
        self.schedule = schedule
        self.size = schedule.sent_bytes[members]
        self.route, self.adds = schedule.route[members], schedule.reduce[members]
        self.leader = None if len(members) == 1 else np.zeros(len(members), dtype=np.int64)
        self.known: tuple[int, Timing] | None = None

    def at(self, start: int) -> Timing:
        """Return the timing for this start."""
        if self.known is not None and self.known[0] == start:
            return self.known[1]
        if self.known is not None and not self.schedule.topology.changes:
            self.known = (start, _shifted(self.known[1], start - self.known[0]))
        else:
            topology, shape = self.schedule.topology, self.schedule.shape
            starts = np.full(len(self.size), start, dtype=np.int64)
            self.known = (start, replay(topology, shape, self.size, self.route, starts, self.leader, self.adds))
        return self.known[1]


def _reducing(timing: Timing) -> list[tuple[int, int, int]]:
    """The intervals in which nodes reduce, as (node, from, until); node n has the number -1 - n, which no link has."""
    busy = timing.reducing
    columns = (-1 - timing.end_node[busy], timing.end_whole_ps[busy], timing.end_arrival_ps[busy])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _shifted(timing: Timing, by: int) -> Timing:
    moved = {name: getattr(timing, name) + by for name in Timing.__annotations__ if name.endswith("_ps")}
    return replace(timing, **moved)


@dataclass
class _Placed:
    """The transfers placed so far: busy intervals of links and limits, arrivals and sends of every (chunk, node)."""

    schedule: Schedule
    links: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    limits: dict[int, list[tuple[int, int, float]]] = field(default_factory=dict)
    arrivals: dict[_Key, list[int]] = field(default_factory=dict)
    sends: dict[_Key, list[int]] = field(default_factory=dict)
    longest: int = 0  # the longest busy interval under a limit

    def __post_init__(self) -> None:
        demand = self.schedule.demand
        self.reduced = np.diff(demand.source_ptr) > 1
        self.members = [frozenset(limit.links) for limit in self.schedule.topology.limits]
        self.stored: dict[_Key, int] = {}  # the last arrival that was stored, not reduced
        owned = (demand.source_chunk.tolist(), demand.source_rank.tolist(), demand.available_ps.tolist())
        for chunk, rank, ready in zip(*owned, strict=True):
            self.arrivals[chunk, rank] = [ready]

    def wait(self, members: NDArray[np.int64], timing: Timing) -> int:
        """Return 0 if the message can have these times, else how much later to try."""
        adds = bool(self.schedule.reduce[members[0]])
        waits = [self._available_since(chunk, node) - at for chunk, node, at in self._sends(members, timing)]
        waits += [self._after(chunk, node, adds) - at for chunk, node, at in self._arrivals(members, timing)]
        hops = list(zip(timing.hop_link.tolist(), timing.hop_from_ps.tolist(), timing.hop_to_ps.tolist(), strict=True))
        waits += [self._link_free(link, begin, end) - begin for link, begin, end in (*hops, *_reducing(timing))]
        wait = max(waits)
        return wait if wait > 0 or not self.schedule.topology.limits else self._limit_wait(hops, timing)

    def _sends(self, members: NDArray[np.int64], timing: Timing) -> list[tuple[int, int, int]]:
        """(chunk, node, time) of all sends."""
        chunk = self.schedule.chunk[members[timing.root_transfer]]
        return list(zip(chunk.tolist(), timing.root_node.tolist(), timing.root_from_ps.tolist(), strict=True))

    def _arrivals(self, members: NDArray[np.int64], timing: Timing) -> list[tuple[int, int, int]]:
        """(chunk, node, time) of all arrivals."""
        chunk = self.schedule.chunk[members[timing.end_transfer]]
        return list(zip(chunk.tolist(), timing.end_node.tolist(), timing.end_arrival_ps.tolist(), strict=True))

    def _available_since(self, chunk: int, node: int) -> int:
        """When the node has the data of its next send: all arrivals of a reduction, else the first one.

        A node that cannot copy needs one arrival per send.
        """
        came = self.arrivals.get((chunk, node), [0])
        if self.reduced[chunk]:
            return max(came)
        gave = 0 if self.schedule.topology.nodes[node].copies else len(self.sends.get((chunk, node), ()))
        return sorted(came)[min(gave, len(came) - 1)]

    def _after(self, chunk: int, node: int, adds: bool) -> int:
        """The earliest arrival: in a reduction, after earlier sends, and a stored value after those it replaces.

        A node that cannot copy receives the chunk again only after it has sent it.
        """
        if not self.reduced[chunk] and self.schedule.topology.nodes[node].copies:
            return 0
        key = (chunk, node)
        before = [self.stored.get(key, -1)] if adds else self.arrivals.get(key, [])
        latest: int = max([-1, *before, *self.sends.get(key, ())])
        return latest + 1

    def _link_free(self, link: int, begin: int, end: int) -> int:
        """The end of a conflicting busy interval, or `begin`."""
        busy = self.links.get(link, [])
        place = bisect_right(busy, (begin, end))
        for other in busy[max(place - 1, 0) : place + 1]:
            if other[0] < end and other[1] > begin:
                return other[1]
        return begin

    def _limit_wait(self, hops: list[tuple[int, int, int]], timing: Timing) -> int:
        """0 if all limits are satisfied with these hops, else the time until a conflicting transfer has ended."""
        for number, limit in enumerate(self.schedule.topology.limits):
            rates = zip(hops, timing.hop_GBps.tolist(), strict=True)
            bookings = [(b, e, GBps) for (link, b, e), GBps in rates if link in self.members[number]]
            for begin, end, _ in bookings:
                busy = self.limits.get(number, [])
                low = bisect_left(busy, (begin - self.longest, 0, 0.0))
                others = [other for other in busy[low : bisect_left(busy, (end, 0, 0.0))] if other[1] > begin]
                for at in [begin, *(other[0] for other in others if other[0] > begin)]:
                    use = sum(GBps for b, e, GBps in (*bookings, *others) if b <= at < e)
                    ends = [e for b, e, _ in others if b <= at < e]
                    if use > limit.bandwidth_GBps * (1 + 1e-9) and ends:
                        return min(ends) - begin
        return 0

    def add(self, members: NDArray[np.int64], timing: Timing) -> None:
        """Place a message."""
        for node, begin, end in _reducing(timing):
            insort(self.links.setdefault(node, []), (begin, end))
        columns = (timing.hop_link, timing.hop_from_ps, timing.hop_to_ps, timing.hop_GBps)
        for link, begin, end, GBps in zip(*(column.tolist() for column in columns), strict=True):
            insort(self.links.setdefault(link, []), (begin, end))
            for number, shared in enumerate(self.members):
                if link in shared:
                    insort(self.limits.setdefault(number, []), (begin, end, GBps))
                    self.longest = max(self.longest, end - begin)
        for chunk, node, at in self._sends(members, timing):
            self.sends.setdefault((chunk, node), []).append(at)
        for chunk, node, at in self._arrivals(members, timing):
            self.arrivals.setdefault((chunk, node), []).append(at)
            if not self.schedule.reduce[members[0]]:
                self.stored[chunk, node] = max(at, self.stored.get((chunk, node), -1))
