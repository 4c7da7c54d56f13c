"""Bundles: the moves of one message, which are one step where their chunks are adjacent at both ends."""

from itertools import pairwise

from flowccl.export.lowering.buffers import BufferSlot
from flowccl.export.lowering.moves import Move


def bundles_of(moves: list[Move]) -> dict[int, tuple[int, ...]]:
    """Return for every move the moves of its message, if these are several; reductions have places of their own.

    Chunks that are adjacent at both ends are one step, so that a message of the schedule is one of the program.
    """
    together: dict[tuple[int, int, int, int], list[int]] = {}
    for i, move in enumerate(moves):
        if move.message >= 0 and not move.reduce:
            together.setdefault((move.src, move.dst, move.route, move.message), []).append(i)
    several = [tuple(bundle) for bundle in together.values() if len(bundle) > 1]
    return {i: bundle for bundle in several for i in bundle}


def are_adjacent(slots: list[BufferSlot]) -> bool:
    """Whether each slot is the one after the slot before it."""
    return all(after == (before[0], before[1] + 1) for before, after in pairwise(slots))
