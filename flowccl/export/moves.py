"""From transfers to moves: one chunk from one GPU to another, in an order that no runtime can get stuck in.

Runtimes know GPUs and connections between two of them. A route through plain switches is such a connection; a
multicast is one move to each of its ends; a sum inside a switch, or a stay in host memory, cannot be said.
"""

import heapq
from collections import deque
from dataclasses import dataclass

import numpy as np

from flowccl.errors import InputError
from flowccl.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Move:
    """One chunk from one GPU to another; added to what is there where `reduce`."""

    chunk: int
    src: int
    dst: int
    reduce: bool
    start_ps: int
    arrival_ps: int
    transfer: int


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
    for row in np.argsort(timing.end_arrival_ps, kind="stable").tolist():
        i = int(timing.end_transfer[row])
        chunk, dst = int(schedule.chunk[i]), int(timing.end_node[row])
        if not summed[chunk]:
            if chunk * gpus + dst in held:
                continue
            held.add(chunk * gpus + dst)
        start, arrival = int(schedule.start_ps[i]), int(timing.end_arrival_ps[row])
        moves.append(Move(chunk, int(root[i]), dst, bool(schedule.reduce[i]), start, arrival, i))
    return sorted(moves, key=lambda move: (move.start_ps, move.transfer, move.dst))


def _check_gpu(schedule: Schedule, transfer: int, node: int, verb: str) -> None:
    name = schedule.topology.nodes[node].name
    if node >= schedule.topology.num_gpus:
        raise InputError(
            f"transfer {transfer} (chunk {schedule.chunk[transfer]}) {verb} {name}, a host memory; these runtimes only "
            "send from one gpu to another: synthesize on a machine without it, such as dgx_a100:2:nvlink"
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


def order_events(moves: list[Move], depth: int) -> list[Event]:
    """One order of all sends and receives that every GPU keeps, so that nothing can deadlock.

    It agrees with the schedule on every (gpu, chunk): who reads before whom writes. A receive follows its send as
    closely as that allows, so that no connection ever holds more than `depth` chunks. If every threadblock keeps
    this order, the earliest event that has not happened yet can always happen.
    """
    blockers, waiters = _conflicts(moves)
    sent: list[int] = []
    queues: dict[tuple[int, int], deque[int]] = {}
    order: list[Event] = []
    arrived: set[int] = set()
    ready = [i for i in range(len(moves)) if not blockers[2 * i]]
    heapq.heapify(ready)  # moves are sorted by start, so the number is the priority
    deferred: list[int] = []

    def done(event: int) -> None:
        order.append(Event(event // 2, event % 2 == 0))
        for waiter in waiters[event]:
            blockers[waiter] -= 1
            if not blockers[waiter] and waiter % 2 == 0:
                heapq.heappush(ready, waiter // 2)

    def receive() -> None:
        """Receive whatever is at the head of its connection and not held up by a reader."""
        progress = True
        while progress:
            progress = False
            for queue in queues.values():
                while queue and not blockers[2 * queue[0] + 1]:
                    arrived.add(queue[0])
                    done(2 * queue.popleft() + 1)
                    progress = True
        while deferred:
            heapq.heappush(ready, deferred.pop())

    while ready:
        i = heapq.heappop(ready)
        queue = queues.setdefault((moves[i].src, moves[i].dst), deque())
        if len(queue) >= depth:
            deferred.append(i)
            continue
        sent.append(i)
        queue.append(i)
        done(2 * i)
        if not blockers[2 * i + 1] and queue[0] == i:  # the common case: at once
            queue.popleft()
            done(2 * i + 1)
        if not queue:
            del queues[moves[i].src, moves[i].dst]
        if queues:
            receive()
            for pair in [pair for pair, waiting in queues.items() if not waiting]:
                del queues[pair]
    if len(order) != 2 * len(moves):
        stuck = moves[next(i for i in range(len(moves)) if blockers[2 * i] or i in deferred)]
        raise InputError(
            f"transfer {stuck.transfer} (chunk {stuck.chunk}, gpu {stuck.src} -> {stuck.dst}): the schedule needs more "
            f"chunks in flight on one connection than the {depth} that the runtime holds"
        )
    return order


def channels_needed(moves: list[Move], depth: int) -> dict[tuple[int, int], int]:
    """For every pair of GPUs the channels that hold what the schedule has in flight between them, `depth` on each."""
    flights: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for move in moves:
        flights.setdefault((move.src, move.dst), []).extend(((move.start_ps, 1), (move.arrival_ps, -1)))
    result = {}
    for pair, events in flights.items():
        now = most = 0
        for _, step in sorted(events):  # at the same instant, what arrives comes first
            now += step
            most = max(most, now)
        result[pair] = -(-most // depth)
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
        last, readers = -1, []
        for _, sends, event in sorted(events):
            if last >= 0:
                after(last, event)
            if sends:
                readers.append(event)
                continue
            for reader in readers:
                after(reader, event)
            last, readers = event, []
    return blockers, waiters
