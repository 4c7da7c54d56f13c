"""From transfers to moves: one chunk from one GPU to another, in an order that no runtime can get stuck in.

Runtimes know GPUs and connections between two of them. A route through plain switches is such a connection; a
multicast is one move to each of its ends; a sum inside a switch, or a stay in host memory, cannot be said.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flowccl.errors import InputError
from flowccl.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Move:
    """One chunk from one GPU to another; added to what is there where `reduce`.

    `way` tells apart the routes that the schedule uses between the two: only on one of them things arrive in order.
    Moves of one `message` travel together; -1 travels alone.
    """

    chunk: int
    src: int
    dst: int
    reduce: bool
    start_ps: int
    arrival_ps: int
    transfer: int
    way: int = 0
    latency_ps: int = 0
    message: int = -1


def moves_of(schedule: Schedule) -> list[Move]:
    """All moves of a schedule by their start; second deliveries of the same data are left out."""
    timing, demand, gpus = schedule.timing, schedule.demand, schedule.demand.num_gpus
    roots = np.bincount(timing.root_transfer, minlength=len(schedule))
    for i in np.flatnonzero(roots != 1).tolist():
        raise InputError(
            f"transfer {i} (chunk {schedule.chunk[i]}) adds up {roots[i]} inputs inside a switch; these runtimes only "
            "send from one gpu to another: synthesize on a machine whose switches do not reduce"
        )
    for i, node in zip(timing.root_transfer.tolist(), timing.root_node.tolist(), strict=True):
        _check_gpu(schedule, i, node, "leaves")
    for i, node in zip(timing.end_transfer.tolist(), timing.end_node.tolist(), strict=True):
        _check_gpu(schedule, i, node, "enters")
    root = np.zeros(len(schedule), dtype=np.int64)
    root[timing.root_transfer] = timing.root_node
    summed = np.asarray(np.diff(demand.source_ptr) > 1)
    summed[schedule.chunk[schedule.reduce]] = True
    held = set((demand.source_chunk.astype(np.int64) * gpus + demand.source_rank).tolist())
    moves = []
    ways: dict[tuple[int, int], dict[tuple[int, ...], int]] = {}
    for row in np.argsort(timing.end_arrival_ps, kind="stable").tolist():
        i = int(timing.end_transfer[row])
        chunk, dst = int(schedule.chunk[i]), int(timing.end_node[row])
        if not summed[chunk]:
            if chunk * gpus + dst in held:
                continue
            held.add(chunk * gpus + dst)
        start, arrival = int(schedule.start_ps[i]), int(timing.end_arrival_ps[row])
        found = ways.setdefault((int(root[i]), dst), {})
        links = schedule.routes.links(int(schedule.route[i]))
        way = found.setdefault(links, len(found))
        latency = int(schedule.topology.link_latency_ps[list(links)].sum())
        adds, message = bool(schedule.reduce[i]), int(schedule.message[i])
        moves.append(Move(chunk, int(root[i]), dst, adds, start, arrival, i, way, latency, message))
    return sorted(moves, key=lambda move: (move.start_ps, move.transfer, move.dst))


def _check_gpu(schedule: Schedule, transfer: int, node: int, verb: str) -> None:
    name = schedule.topology.nodes[node].name
    if node >= schedule.topology.num_gpus:
        raise InputError(
            f"transfer {transfer} (chunk {schedule.chunk[transfer]}) {verb} {name}, a host memory; these runtimes only "
            "send from one gpu to another: synthesize on a machine without host memories"
        )
    if node >= schedule.demand.num_gpus:
        raise InputError(
            f"transfer {transfer} (chunk {schedule.chunk[transfer]}) {verb} {name}, which is not one of the "
            f"{schedule.demand.num_gpus} ranks; a relay must be a rank of the communicator"
        )


@dataclass(frozen=True, slots=True)
class Event:
    """A move is sent or received; `move` is its place in the list of moves."""

    move: int
    sends: bool


def order_events(moves: list[Move], depth: int, *, ahead: bool) -> list[Event]:
    """One order of all sends and receives that every GPU keeps, so that nothing can deadlock.

    It agrees with the schedule on every (gpu, chunk): who reads before whom writes. With `ahead` it is the order of
    the schedule's times, for as many channels as `channels_needed` says. Without, no connection ever holds more than
    `depth` chunks. If every threadblock keeps the order, the earliest event that has not happened can always happen.
    """
    if ahead:
        events = [(move.start_ps, 1, i) for i, move in enumerate(moves)]
        events += [(move.arrival_ps, 0, i) for i, move in enumerate(moves)]
        return [Event(i, sends == 1) for _, sends, i in sorted(events)]
    for by_time in (True, False):
        order = _Throttle(moves, depth, by_time).run()
        if len(order) == 2 * len(moves):
            return order
    done = {event.move for event in order if event.sends}
    stuck = moves[next(i for i in range(len(moves)) if i not in done or Event(i, False) not in order)]
    raise InputError(
        f"transfer {stuck.transfer} (chunk {stuck.chunk}, gpu {stuck.src} -> {stuck.dst}): the schedule needs more "
        f"chunks in flight on one connection than the {depth} that the runtime holds; export with --proto LL"
    )


class _Throttle:
    """Orders events by time, but holds back sends whose connection is full; or receives everything at once."""

    def __init__(self, moves: list[Move], depth: int, by_time: bool) -> None:
        self.moves, self.depth, self.by_time = moves, depth, by_time
        self.blockers, self.waiters = _conflicts(moves)
        self.order: list[Event] = []
        self.flight: dict[tuple[int, int], deque[int]] = {}
        self.held: dict[tuple[int, int], list[int]] = {}
        self.ready: list[tuple[int, int]] = []
        for i in range(len(moves)):
            self._offer(2 * i)

    def run(self) -> list[Event]:
        while self.ready:
            _, event = heapq.heappop(self.ready)
            i, receives = divmod(event, 2)
            pair = self.moves[i].src, self.moves[i].dst
            flight = self.flight.setdefault(pair, deque())
            if not receives and len(flight) >= self.depth:
                self.held.setdefault(pair, []).append(event)
                continue
            self.order.append(Event(i, not receives))
            if receives:
                flight.popleft()
                for held in self.held.pop(pair, []):
                    self._offer(held)
            else:
                flight.append(i)
            for waiter in self.waiters[event]:
                self.blockers[waiter] -= 1
                if self.moves[waiter // 2] is not self.moves[i] or not waiter % 2:
                    self._offer(waiter)
            if flight:
                self._offer(2 * flight[0] + 1)
        return self.order

    def _offer(self, event: int) -> None:
        """Make an event a candidate, if nothing blocks it: a receive must be the next of its connection."""
        if self.blockers[event]:
            return
        move = self.moves[event // 2]
        if not event % 2:
            heapq.heappush(self.ready, (move.start_ps, event))
            return
        flight = self.flight.get((move.src, move.dst))
        entry = (move.arrival_ps if self.by_time else -1, event)
        if flight and flight[0] == event // 2 and entry not in self.ready:
            heapq.heappush(self.ready, entry)


def channels_needed(moves: list[Move], depth: int) -> dict[tuple[int, int, int], int]:
    """For every (src, dst, way) the channels that hold what the schedule has in flight there, `depth` on each."""
    flights: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for move in moves:
        flights.setdefault((move.src, move.dst, move.way), []).extend(((move.start_ps, 1), (move.arrival_ps, -1)))
    result = {}
    for lane, events in flights.items():
        now = most = 0
        for _, step in sorted(events):  # at the same instant, what arrives comes first
            now += step
            most = max(most, now)
        result[lane] = -(-most // depth)
    return result


def _conflicts(moves: list[Move]) -> tuple[list[int], list[list[int]]]:
    """For events 2i (send of move i) and 2i + 1 (its receive): how many must come before, and which wait for it."""
    touch: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for i, move in enumerate(moves):
        touch.setdefault((move.src, move.chunk), []).append((move.start_ps, 1, 2 * i))
        touch.setdefault((move.dst, move.chunk), []).append((move.arrival_ps, 0, 2 * i + 1))
    blockers = [0] * (2 * len(moves))
    waiters: list[list[int]] = [[] for _ in blockers]

    def after(first: int, second: int) -> None:
        waiters[first].append(second)
        blockers[second] += 1

    for i in range(len(moves)):
        after(2 * i, 2 * i + 1)
    for events in touch.values():
        _order_touches(moves, sorted(events), after)
    return blockers, waiters


def _order_touches(moves: list[Move], events: list[tuple[int, int, int]], after: Callable[[int, int], None]) -> None:
    """What touches one chunk on one GPU, in order of time; sums that nobody reads between may come in any order."""
    before: list[int] = []  # all of the group must come after these
    group: list[int] = []
    readers: list[int] = []
    for _, sends, event in events:
        if sends:
            for other in group or before:
                after(other, event)
            readers.append(event)
            continue
        joins = moves[event // 2].reduce and not readers and all(moves[e // 2].reduce for e in group)
        if not joins:
            before, group, readers = [*group, *readers], [], []
        for other in before:
            after(other, event)
        group.append(event)
