"""A plan as messages between ranks, step by step, and the memory that they take.

The level of a hop is the number of hops that its chunk made before. A stage is a slice of the chunks of a round. In
step s, the chunks of stage s make their first hop, those of stage s - 1 their second, and so on: the stages overlap.
All that a rank sends to another in a step is one message. A rank waits for all its messages of a step before the next
step, so messages only depend on earlier steps, and no deadlock is possible.

Memories between GPUs are not ranks: what is stored there is sent by the GPU that it came from.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import ScheduleError
from flowccl.resharding.plan import ReshardPlan

I64 = NDArray[np.int64]


class SlicedMessage(NamedTuple):
    """Slices of chunks that go from this rank to `peer`, or come from it, in one step: (chunk, slice) pairs."""

    peer: int
    parts: tuple[tuple[int, int], ...]
    bytes: int


class RankStep(NamedTuple):
    """What a rank sends and receives in a step."""

    number: int
    sends: tuple[SlicedMessage, ...]
    receives: tuple[SlicedMessage, ...]


@dataclass(frozen=True, eq=False)
class StepTable:
    """One row per chunk and hop; slice k of the chunk makes the hop in step `first[row] + k`."""

    plan: ReshardPlan
    first: I64
    src: I64
    dst: I64
    chunk: I64

    @cached_property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.first.max(initial=-1)) + self.plan.slices

    @cached_property
    def slice_bytes(self) -> I64:
        """Bytes of the largest slice of each row's chunk."""
        return -(-self.plan.schedule.demand.chunk_bytes[self.chunk] // self.plan.slices)

    @cached_property
    def _kept(self) -> tuple[I64, I64, I64, I64]:
        """Chunks that ranks relay: rank, chunk, the step in which slice 0 arrives and that in which it is last sent."""
        count = len(self.plan.schedule.demand)
        came, sent = self.dst * count + self.chunk, self.src * count + self.chunk
        order = np.argsort(sent, kind="stable")
        keys, start = np.unique(sent[order], return_index=True)
        last_sent = np.maximum.reduceat(self.first[order], start) if len(keys) else self.first[:0]
        place = np.minimum(np.searchsorted(keys, came), max(len(keys) - 1, 0))
        relayed = np.flatnonzero(keys[place] == came) if len(keys) else np.zeros(0, dtype=np.int64)
        return self.dst[relayed], self.chunk[relayed], self.first[relayed], last_sent[place[relayed]]

    @cached_property
    def slots(self) -> tuple[I64, I64]:
        """For each rank, the most relayed slices that it keeps at once, and the bytes of the largest one.

        A slice leaves its place after it is last sent, before the slices that arrived in the same step are kept.
        """
        ranks, width, slices = self.plan.ranks, self.steps + self.plan.slices + 2, self.plan.slices
        rank, chunk, came, last = self._kept
        change = np.zeros((ranks, width), dtype=np.int64)  # of the change from one step to the next
        for at, by in ((came, 1), (came + slices, -1), (last, -1), (last + slices, 1)):
            np.add.at(change, (rank, at), by)
        kept = np.cumsum(np.cumsum(change, axis=1), axis=1)
        largest = np.zeros(ranks, dtype=np.int64)
        np.maximum.at(largest, rank, -(-self.plan.schedule.demand.chunk_bytes[chunk] // slices))
        return kept.max(axis=1), largest

    @cached_property
    def regions(self) -> tuple[I64, I64, I64]:
        """Bytes of each rank for the messages that it sends in a step, those that it receives, and relayed slices."""
        ranks, width = self.plan.ranks, self.steps + 1
        most = []
        for end in (self.src, self.dst):
            change = np.zeros((ranks, width), dtype=np.int64)
            np.add.at(change, (end, self.first), self.slice_bytes)
            np.add.at(change, (end, self.first + self.plan.slices), -self.slice_bytes)
            most.append(np.cumsum(change, axis=1).max(axis=1))
        count, largest = self.slots
        return most[0], most[1], count * largest

    @property
    def staging_bytes(self) -> int:
        """Memory for messages and relayed slices, on the rank with most of it."""
        return int(np.sum(self.regions, axis=0).max(initial=0))

    def memory_bytes(self, rank: int) -> int:
        """Memory of one rank for messages and relayed slices."""
        return sum(int(region[rank]) for region in self.regions)

    def of(self, rank: int) -> Iterator[RankStep]:
        """Yield the steps in which a rank sends or receives."""
        of_rank = np.flatnonzero((self.src == rank) | (self.dst == rank))
        of_rank = of_rank[np.lexsort((self.chunk[of_rank], self.dst[of_rank], self.src[of_rank]))]
        first, slices = self.first[of_rank], self.plan.slices
        rows = list(
            zip(self.src[of_rank].tolist(), self.dst[of_rank].tolist(), self.chunk[of_rank].tolist(), strict=True)
        )
        for step in range(self.steps):
            active = np.flatnonzero((first <= step) & (step < first + slices))
            if len(active):
                parts = [(*rows[row], step - int(first[row])) for row in active.tolist()]
                yield self._rank_step(rank, step, parts)

    def _rank_step(self, rank: int, step: int, rows: list[tuple[int, int, int, int]]) -> RankStep:
        sends: list[SlicedMessage] = []
        receives: list[SlicedMessage] = []
        for (src, dst), message in groupby(rows, key=lambda row: (row[0], row[1])):
            sized = [(chunk, number, self._part_bytes(chunk, number)) for _, _, chunk, number in message]
            parts = tuple((chunk, number) for chunk, number, size in sized if size)
            if parts:  # slices of tiny chunks may be empty, and do not travel
                made = SlicedMessage(dst if src == rank else src, parts, sum(size for _, _, size in sized))
                (sends if src == rank else receives).append(made)
        return RankStep(step, tuple(sends), tuple(receives))

    def _part_bytes(self, chunk: int, number: int) -> int:
        begin, end = self.plan.span(chunk, number)
        return end - begin

    def relayed(self, rank: int) -> dict[int, int]:
        """The chunks that a rank relays, each with the step in which its slice 0 is last sent."""
        at, chunk, _, last = self._kept
        of_rank = np.flatnonzero(at == rank)
        return dict(zip(chunk[of_rank].tolist(), last[of_rank].tolist(), strict=True))


def step_table(plan: ReshardPlan) -> StepTable:
    """Return the messages of a plan, step by step."""
    schedule = plan.schedule
    timing, nodes = schedule.timing, len(schedule.topology.nodes)
    chunk, root = schedule.chunk.astype(np.int64), np.empty(len(schedule), dtype=np.int64)
    if len(timing.root_node) != len(schedule):
        raise ScheduleError("a transfer of the plan has several senders; plans only copy")
    root[timing.root_transfer] = timing.root_node
    at = (chunk * nodes + root)[timing.end_transfer]
    there = chunk[timing.end_transfer] * nodes + timing.end_node
    level, sender = _levels(plan, at, there, timing.end_node.astype(np.int64))
    kept = np.flatnonzero(timing.end_node < plan.ranks)
    moved = chunk[timing.end_transfer[kept]]
    first = plan.stage[moved] * plan.slices + level[kept]
    columns = (first, sender[kept], timing.end_node[kept].astype(np.int64), moved)
    order = np.lexsort(columns[::-1])
    return StepTable(plan, *(column[order] for column in columns))


def _levels(plan: ReshardPlan, at: I64, there: I64, node: I64) -> tuple[I64, I64]:
    """The level of each delivery, and the rank that sends it; `at` and `there` are (chunk, node) keys of its ends."""
    demand, nodes = plan.schedule.demand, len(plan.schedule.topology.nodes)
    count = len(demand)
    hops = np.full(count * nodes, -1, dtype=np.int64)  # of each chunk at each node: hops until it is there
    carrier = np.full(count * nodes, -1, dtype=np.int64)  # the rank that sends it from there
    owned = np.arange(count) * nodes + demand.source
    hops[owned], carrier[owned] = 0, demand.source
    level, waiting = np.zeros(len(at), dtype=np.int64), np.ones(len(at), dtype=np.bool_)
    while waiting.any():
        known = np.flatnonzero(waiting & (hops[at] >= 0))
        if not len(known):
            raise ScheduleError("a transfer of the plan sends data that its sender never gets")
        waiting[known] = False
        level[known] = hops[at[known]]
        new = known[hops[there[known]] < 0]
        is_rank = node[new] < plan.ranks
        hops[there[new]] = hops[at[new]] + is_rank
        carrier[there[new]] = np.where(is_rank, node[new], carrier[at[new]])
    return level, carrier[at]
