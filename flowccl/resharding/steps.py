"""A plan as messages between ranks, step by step, and the memory that they take.

The level of a message is the number of hops that its chunk made before. In step s, the chunks of stage s make their
first hop, those of stage s - 1 their second, and so on: the stages overlap. All chunks that a rank sends to another in
a step are one message. A rank waits for all its messages of a step before the next step, so messages only depend on
earlier steps, and no deadlock is possible.

Memories between GPUs are not ranks: what is stored there is sent by the GPU that it came from.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import ScheduleError
from flowccl.resharding.plan import ReshardPlan

I64 = NDArray[np.int64]


class Message(NamedTuple):
    """Chunks that go from this rank to `peer`, or come from it, in one step."""

    peer: int
    chunks: tuple[int, ...]
    bytes: int


class RankStep(NamedTuple):
    """What a rank sends and receives in a step."""

    number: int
    sends: tuple[Message, ...]
    receives: tuple[Message, ...]


@dataclass(frozen=True, eq=False)
class StepTable:
    """One row per chunk and hop, in the order of (step, sender, receiver, chunk)."""

    plan: ReshardPlan
    step: I64
    src: I64
    dst: I64
    chunk: I64

    @property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.step.max(initial=-1)) + 1

    @cached_property
    def bytes(self) -> I64:
        """Bytes of each row."""
        return self.plan.schedule.demand.chunk_bytes[self.chunk]

    @cached_property
    def _kept(self) -> tuple[I64, I64, I64, I64]:
        """Chunks that ranks relay: rank, chunk, the step in which each arrives and that in which it is last sent."""
        count = len(self.plan.schedule.demand)
        came, sent = self.dst * count + self.chunk, self.src * count + self.chunk
        order = np.argsort(sent, kind="stable")
        keys, first = np.unique(sent[order], return_index=True)
        last_sent = np.maximum.reduceat(self.step[order], first) if len(keys) else self.step[:0]
        place = np.minimum(np.searchsorted(keys, came), max(len(keys) - 1, 0))
        relayed = np.flatnonzero(keys[place] == came) if len(keys) else np.zeros(0, dtype=np.int64)
        return self.dst[relayed], self.chunk[relayed], self.step[relayed], last_sent[place[relayed]]

    @cached_property
    def slots(self) -> tuple[I64, I64]:
        """For each rank, the most relayed chunks that it keeps at once, and the bytes of the largest one."""
        ranks, width = self.plan.ranks, self.steps + 2
        rank, chunk, came, last = self._kept
        change = np.zeros(ranks * width, dtype=np.int64)
        np.add.at(change, rank * width + came, 1)
        np.add.at(change, rank * width + last + 1, -1)
        largest = np.zeros(ranks, dtype=np.int64)
        np.maximum.at(largest, rank, self.plan.schedule.demand.chunk_bytes[chunk])
        return np.cumsum(change.reshape(ranks, width), axis=1).max(axis=1), largest

    @cached_property
    def regions(self) -> tuple[I64, I64, I64]:
        """Bytes of each rank for the messages that it sends in a step, those that it receives, and relayed chunks."""
        ranks, steps = self.plan.ranks, max(self.steps, 1)
        most = [
            np.bincount(who * steps + self.step, self.bytes, ranks * steps).reshape(ranks, steps).max(axis=1)
            for who in (self.src, self.dst)
        ]
        count, largest = self.slots
        return most[0].astype(np.int64), most[1].astype(np.int64), count * largest

    @property
    def staging_bytes(self) -> int:
        """Memory for messages and relayed chunks, on the rank with most of it."""
        return int(np.sum(self.regions, axis=0).max(initial=0))

    def of(self, rank: int) -> list[RankStep]:
        """The steps in which a rank sends or receives."""
        mine = np.flatnonzero((self.src == rank) | (self.dst == rank))
        columns = (self.step, self.src, self.dst, self.chunk, self.bytes)
        rows = list(zip(*(column[mine].tolist() for column in columns), strict=True))
        result = []
        for step, inside in groupby(rows, key=lambda row: row[0]):
            sends, receives = [], []
            for (src, dst), message in groupby(list(inside), key=lambda row: (row[1], row[2])):
                parts = list(message)
                made = Message(dst if src == rank else src, tuple(p[3] for p in parts), sum(p[4] for p in parts))
                (sends if src == rank else receives).append(made)
            result.append(RankStep(step, tuple(sends), tuple(receives)))
        return result

    def relayed(self, rank: int) -> dict[int, int]:
        """The chunks that a rank relays, each with the step in which it is last sent."""
        who, chunk, _, last = self._kept
        mine = np.flatnonzero(who == rank)
        return dict(zip(chunk[mine].tolist(), last[mine].tolist(), strict=True))


def step_table(plan: ReshardPlan) -> StepTable:
    """Return the messages of a plan, step by step."""
    schedule = plan.schedule
    timing, nodes = schedule.timing, len(schedule.topology.nodes)
    chunk, root = schedule.chunk.astype(np.int64), np.empty(len(schedule), dtype=np.int64)
    if len(timing.root_node) != len(schedule):
        raise ScheduleError("a transfer of the plan has several senders; plans only copy")
    root[timing.root_transfer] = timing.root_node
    count = len(schedule.demand)
    level = np.full(count * nodes, -1, dtype=np.int64)  # of each chunk at each node: hops until it is there
    carrier = np.full(count * nodes, -1, dtype=np.int64)  # the rank that sends it from there
    owned = np.arange(count) * nodes + schedule.demand.source
    level[owned], carrier[owned] = 0, schedule.demand.source
    at, there = chunk * nodes + root, chunk[timing.end_transfer] * nodes + timing.end_node
    is_rank = timing.end_node < plan.ranks
    waiting = np.ones(len(there), dtype=np.bool_)
    row_level = np.zeros(len(there), dtype=np.int64)
    while waiting.any():
        known = np.flatnonzero(waiting & (level[at[timing.end_transfer]] >= 0))
        if not len(known):
            raise ScheduleError("a transfer of the plan sends data that its sender never gets")
        waiting[known] = False
        feeder = at[timing.end_transfer[known]]
        row_level[known] = level[feeder]
        new = known[level[there[known]] < 0]
        feeder = at[timing.end_transfer[new]]
        level[there[new]] = level[feeder] + is_rank[new]
        carrier[there[new]] = np.where(is_rank[new], timing.end_node[new], carrier[feeder])
    kept = np.flatnonzero(is_rank)
    src, dst = carrier[at[timing.end_transfer[kept]]], timing.end_node[kept].astype(np.int64)
    moved = chunk[timing.end_transfer[kept]]
    step = plan.stage[moved] + row_level[kept]
    order = np.lexsort((moved, dst, src, step))
    return StepTable(plan, step[order], src[order], dst[order], moved[order])
