"""Queues: the short messages that a GPU sends over one link, which one threadblock sends in the schedule's order.

Threadblocks that each serve one peer compete for the link that they share, and messages overtake those that the
schedule sends first. A message is short if a threadblock moves it within the overhead of the link; long ones need the
bandwidth of several threadblocks.
"""

from collections import Counter, defaultdict
from dataclasses import replace

from flowccl.export.lowering.drafts import Draft, GpuDrafts
from flowccl.export.lowering.moves import Move
from flowccl.schedule.schedule import Schedule

THREADBLOCK_GBps = 48.0  # a put by one threadblock of 1024 threads, measured on an H200 (docs/gpu.md)


def with_queues(schedule: Schedule, moves: list[Move]) -> list[Move]:
    """Return the moves, those of queues with their link: all messages over it are short and stay on one host."""
    topology = schedule.topology
    overhead = topology.link_overhead_ps
    host = [node.host for node in topology.nodes]
    size: Counter[tuple[int, int, int]] = Counter()  # bytes of every message to a GPU; -1 - move where it has one chunk
    for i, move in enumerate(moves):
        size[move.dst, move.route, _message(i, move)] += int(schedule.demand.chunk_bytes[move.chunk])
    links: dict[int, bool] = defaultdict(lambda: True)
    first = [_first_link(schedule, move) for move in moves]
    for i, (move, link) in enumerate(zip(moves, first, strict=True)):
        transfer_ps = size[move.dst, move.route, _message(i, move)] * 1000 / THREADBLOCK_GBps
        links[link] &= not move.group and host[move.src] == host[move.dst] and transfer_ps <= overhead[link]
    return [replace(move, queue=link) if links[link] else move for move, link in zip(moves, first, strict=True)]


def _message(i: int, move: Move) -> int:
    return move.message if move.message >= 0 else -1 - i


def _first_link(schedule: Schedule, move: Move) -> int:
    return int(schedule.routes.links(int(schedule.route[move.transfer]))[0])


def parts_of_queues(
    gpu_drafts: list[GpuDrafts], splits: dict[tuple[int, int, int, int], int]
) -> dict[int, tuple[int, int, int]]:
    """Return for every send of a queue, by its id, the threadblock that sends it: (link, instance, part).

    A queue that does not fit in one threadblock is cut into as many parts as `splits` says, one after the other.
    """
    queues: dict[tuple[int, int, int, int], list[Draft]] = defaultdict(list)
    for gpu in gpu_drafts:
        for draft in sorted(gpu.drafts, key=lambda draft: draft.at):
            if draft.kind == "s" and draft.queue >= 0:
                queues[queue_of(draft)].append(draft)
    return {
        id(draft): (draft.queue, draft.lane[3], k * splits.get(queue, 1) // len(drafts))
        for queue, drafts in queues.items()
        for k, draft in enumerate(drafts)
    }


def queue_of(send: Draft) -> tuple[int, int, int, int]:
    """Return the key of the queue of a send among connections: (sender, -2 - link, 0, instance)."""
    return send.rank, -2 - send.queue, 0, send.lane[3]


def has_queues(moves: list[Move]) -> bool:
    """Whether some GPU sends short messages to several peers over one link, so that their order is at stake."""
    peers = {(move.queue, move.dst) for move in moves if move.queue >= 0}
    return bool(peers) and max(Counter(link for link, _ in peers).values()) > 1
