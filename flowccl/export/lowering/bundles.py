"""Bundles: the moves of one message, which are one step where their chunks are adjacent at both ends."""

from itertools import pairwise

from flowccl.export.lowering.buffers import BufferSlot
from flowccl.export.lowering.moves import Move

EARLY_SEND_DIVISOR = 50  # send early if the latency of a signal is more than 1/50 of the finish


def bundles_of(moves: list[Move]) -> dict[int, tuple[int, ...]]:
    """Return for every move the moves of its message, if these are several; reductions have places of their own.

    Chunks that are adjacent at both ends are one step, so that a message of the schedule is one of the program.
    """
    together: dict[tuple[int, int, int, int], list[int]] = {}
    for i, move in enumerate(moves):
        if move.message >= 0 and not move.reduce and not move.group:
            together.setdefault((move.src, move.dst, move.route, move.message), []).append(i)
    several = [tuple(bundle) for bundle in together.values() if len(bundle) > 1]
    return {i: bundle for bundle in several for i in bundle}


def are_adjacent(slots: list[BufferSlot]) -> bool:
    """Whether each slot is the one after the slot before it."""
    return all(after == (before[0], before[1] + 1) for before, after in pairwise(slots))


def early_moves(moves: list[Move], bundles: dict[int, tuple[int, ...]]) -> set[int]:
    """Return the moves that waiting for the receiver would delay: the first message of each route, if that matters.

    Waiting takes the latency of a signal. A send that starts later than that is not delayed, and if the whole schedule
    takes much longer, an extra copy does not pay off.
    """
    finish_ps = max((move.arrival_ps for move in moves), default=0)
    first: dict[tuple[int, int, int], int] = {}
    for i, move in enumerate(moves):
        if move.group:
            continue
        first.setdefault((move.src, move.dst, move.route), i)
    early = [i for i in first.values() if moves[i].start_ps < moves[i].latency_ps > finish_ps / EARLY_SEND_DIVISOR]
    return {k for i in early for k in bundles.get(i, (i,))}
