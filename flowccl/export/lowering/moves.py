"""From transfers to moves of one chunk from one GPU to another, in an order without deadlock.

Runtimes know GPUs and connections between pairs of them. A route through plain switches is such a connection, and a
multicast becomes one move to each of its ends. Reductions inside switches and data staged in host memory are refused.
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
    """One chunk from one GPU to another; with `reduce`, the receiver reduces it with its own data.

    `route` numbers the routes that the schedule uses between the two GPUs; order is kept only within a route. Moves of
    the same `message` travel together; -1 means alone.
    """

    chunk: int
    src: int
    dst: int
    reduce: bool
    start_ps: int
    arrival_ps: int
    transfer: int
    route: int = 0
    message: int = -1


def moves_of(schedule: Schedule, target: str = "RUNTIME") -> list[Move]:
    """Return all moves of a schedule by start time; repeated deliveries of the same data are omitted.

    Error messages name the `target`.
    """
    timing, demand, gpus = schedule.timing, schedule.demand, schedule.demand.num_gpus
    roots = np.bincount(timing.root_transfer, minlength=len(schedule))
    for i in np.flatnonzero(roots != 1).tolist():
        raise InputError(
            f"transfer {i} (chunk {schedule.chunk[i]}) reduces {roots[i]} inputs inside a switch, which {target} "
            f"cannot do; synthesize with --for {target}, which uses only what the runtime has"
        )
    check_ranks(schedule)
    root = np.zeros(len(schedule), dtype=np.int64)
    root[timing.root_transfer] = timing.root_node
    reduced = np.asarray(np.diff(demand.source_ptr) > 1)
    reduced[schedule.chunk[schedule.reduce]] = True
    present = set((demand.source_chunk.astype(np.int64) * gpus + demand.source_rank).tolist())
    moves = []
    routes: dict[tuple[int, int], dict[tuple[int, ...], int]] = {}
    for row in np.argsort(timing.end_arrival_ps, kind="stable").tolist():
        i = int(timing.end_transfer[row])
        chunk, dst = int(schedule.chunk[i]), int(timing.end_node[row])
        if not reduced[chunk]:
            if chunk * gpus + dst in present:
                continue
            present.add(chunk * gpus + dst)
        start, arrival = int(schedule.start_ps[i]), int(timing.end_arrival_ps[row])
        found = routes.setdefault((int(root[i]), dst), {})
        links = schedule.routes.links(int(schedule.route[i]))
        route = found.setdefault(links, len(found))
        adds, message = bool(schedule.reduce[i]), int(schedule.message[i])
        moves.append(Move(chunk, int(root[i]), dst, adds, start, arrival, i, route, message))
    return sorted(moves, key=lambda move: (move.start_ps, move.transfer, move.dst))


def check_ranks(schedule: Schedule) -> None:
    """Raise InputError if some transfer leaves or enters a node that is not a rank."""
    timing, ranks = schedule.timing, schedule.demand.num_gpus
    for verb, transfer, node in (
        ("leaves", timing.root_transfer, timing.root_node),
        ("enters", timing.end_transfer, timing.end_node),
    ):
        for row in np.flatnonzero(node >= ranks).tolist():
            _check_gpu(schedule, int(transfer[row]), int(node[row]), verb)


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
            f"{schedule.demand.num_gpus} ranks; relays must be ranks of the communicator"
        )


def multicasts(schedule: Schedule) -> bool:
    """Whether a switch copies data to several GPUs in some transfer."""
    return len(schedule.timing.end_transfer) > len(schedule)


@dataclass(frozen=True, slots=True)
class Event:
    """The send or the receive of a move; `move` is its index in the list of moves."""

    move: int
    sends: bool


def order_events(moves: list[Move], depth: int, *, ahead: bool) -> list[Event]:
    """Return one common order of all sends and receives; deadlock is impossible if every GPU keeps it.

    For every (gpu, chunk) the order of reads and writes is that of the schedule. With `ahead`, events are in the order
    of the schedule's times, which needs the number of channels that `channels_needed` returns. Otherwise no connection
    ever has more than `depth` chunks in flight. If every threadblock keeps the order, the earliest pending event can
    always proceed.
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
        f"transfer {stuck.transfer} (chunk {stuck.chunk}, gpu {stuck.src} -> {stuck.dst}): the schedule has more "
        f"chunks in flight on one connection than the {depth} that the runtime buffers; export with --proto LL"
    )


class _Throttle:
    """Orders events by time but delays sends whose connection is full; without `by_time`, receives come first."""

    def __init__(self, moves: list[Move], depth: int, by_time: bool) -> None:
        self.moves, self.depth, self.by_time = moves, depth, by_time
        self.blockers, self.waiters = _conflicts(moves)
        self.order: list[Event] = []
        self.flight: dict[tuple[int, int], deque[int]] = {}
        self.delayed: dict[tuple[int, int], list[int]] = {}
        self.ready: list[tuple[int, int]] = []
        self.queued: set[int] = set()  # receives in `ready`
        for i in range(len(moves)):
            self._offer(2 * i)

    def run(self) -> list[Event]:
        while self.ready:
            _, event = heapq.heappop(self.ready)
            self.queued.discard(event)
            i, receives = divmod(event, 2)
            pair = self.moves[i].src, self.moves[i].dst
            flight = self.flight.setdefault(pair, deque())
            if not receives and len(flight) >= self.depth:
                self.delayed.setdefault(pair, []).append(event)
                continue
            self.order.append(Event(i, not receives))
            if receives:
                flight.popleft()
                for delayed in self.delayed.pop(pair, []):
                    self._offer(delayed)
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
        """Queue an event if nothing blocks it; a receive must be the next of its connection."""
        if self.blockers[event]:
            return
        move = self.moves[event // 2]
        if not event % 2:
            heapq.heappush(self.ready, (move.start_ps, event))
            return
        flight = self.flight.get((move.src, move.dst))
        if flight and flight[0] == event // 2 and event not in self.queued:
            heapq.heappush(self.ready, (move.arrival_ps if self.by_time else -1, event))
            self.queued.add(event)


def channels_needed(moves: list[Move], depth: int) -> dict[tuple[int, int, int], int]:
    """Return for every (src, dst, route) the channels needed for its chunks in flight, with `depth` chunks on each."""
    flights: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for move in moves:
        flights.setdefault((move.src, move.dst, move.route), []).extend(((move.start_ps, 1), (move.arrival_ps, -1)))
    result = {}
    for lane, events in flights.items():
        now = most = 0
        for _, step in sorted(events):  # at equal times, arrivals come first
            now += step
            most = max(most, now)
        result[lane] = -(-most // depth)
    return result


def _conflicts(moves: list[Move]) -> tuple[list[int], list[list[int]]]:
    """Return predecessor counts and successors of the events 2i (send of move i) and 2i + 1 (its receive)."""
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
    """Order the events of one chunk on one GPU by time; reductions with no read between them may be in any order."""
    before: list[int] = []  # every event of the group must come after these
    group: list[int] = []
    readers: list[int] = []
    for _, sends, event in events:
        if sends:
            for other in group or before:
                after(other, event)
            readers.append(event)
            continue
        same_group = moves[event // 2].reduce and not readers and all(moves[e // 2].reduce for e in group)
        if not same_group:
            before, group, readers = [*group, *readers], [], []
        for other in before:
            after(other, event)
        group.append(event)
