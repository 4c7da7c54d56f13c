"""Running plans: the steps of a rank on its buffers, and all ranks in one process on numpy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.resharding.copying import RankStreams, copy_own, rank_streams
from flowccl.resharding.plan import ReshardPlan
from flowccl.resharding.steps import Message, RankStep, StepTable, step_table

Bytes = NDArray[np.uint8]
Exchange = Callable[[Sequence[tuple[int, Any]], Sequence[tuple[int, Any]]], None]
"""Sends and receives all messages of a step: (peer, buffer) each; returns when all are complete."""


@dataclass(eq=False)
class RankRun:
    """One rank of a plan: its streams, its memory (a flat array of bytes), and the relayed chunks in it."""

    plan: ReshardPlan
    table: StepTable
    rank: int
    have: RankStreams | None
    want: RankStreams | None
    memory: Any
    slot_of: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sends, receives, _ = (int(region[self.rank]) for region in self.table.regions)
        self.first_receive, self.first_slot = sends, sends + receives
        count, self.slot_bytes = (int(column[self.rank]) for column in self.table.slots)
        self.free = list(range(count))[::-1]
        self.relayed = self.table.relayed(self.rank)

    def run(self, exchange: Exchange) -> None:
        """Run all steps, and copy what the rank both has and wants."""
        if self.have is not None and self.want is not None:
            copy_own(self.plan.traffic, self.have, self.want)
        for step in self.table.of(self.rank):
            sends, receives = self.packed(step), self.buffers(step)
            exchange(sends, receives)
            self.unpack(step, [buffer for _, buffer in receives])

    def packed(self, step: RankStep) -> list[tuple[int, Any]]:
        """The messages that the rank sends in a step."""
        result, at = [], 0
        for message in step.sends:
            buffer = self.memory[at : at + message.bytes]
            at += message.bytes
            for chunk, part in self._parts(message, buffer):
                if chunk in self.slot_of:
                    part[...] = self._slot(chunk, len(part))
                elif self.have is not None:
                    plan = self.plan
                    self.have.read(int(plan.cls[chunk]), int(plan.begin[chunk]), int(plan.end[chunk]), part)
            result.append((message.peer, buffer))
        for chunk in [chunk for chunk in self.slot_of if self.relayed[chunk] <= step.number]:
            self.free.append(self.slot_of.pop(chunk))
        return result

    def buffers(self, step: RankStep) -> list[tuple[int, Any]]:
        """Buffers for the messages that the rank receives in a step."""
        result, at = [], self.first_receive
        for message in step.receives:
            result.append((message.peer, self.memory[at : at + message.bytes]))
            at += message.bytes
        return result

    def unpack(self, step: RankStep, buffers: Sequence[Any]) -> None:
        """Write received chunks to the tensors, and keep those that go on."""
        plan, demand = self.plan, self.plan.schedule.demand
        for message, buffer in zip(step.receives, buffers, strict=True):
            for chunk, part in self._parts(message, buffer):
                if self.want is not None and self.rank in demand.destinations(chunk):
                    self.want.write(int(plan.cls[chunk]), int(plan.begin[chunk]), int(plan.end[chunk]), part)
                if self.relayed.get(chunk, -1) > step.number:
                    self.slot_of[chunk] = self.free.pop()
                    self._slot(chunk, len(part))[...] = part

    def _slot(self, chunk: int, size: int) -> Any:
        at = self.first_slot + self.slot_of[chunk] * self.slot_bytes
        return self.memory[at : at + size]

    def _parts(self, message: Message, buffer: Any) -> list[tuple[int, Any]]:
        size, at, result = self.plan.schedule.demand.chunk_bytes, 0, []
        for chunk in message.chunks:
            end = at + int(size[chunk])
            result.append((chunk, buffer[at:end]))
            at = end
        return result


def rank_memory_bytes(table: StepTable, rank: int) -> int:
    """Bytes of the memory of a rank's run."""
    return sum(int(region[rank]) for region in table.regions)


def run_on_numpy(
    plan: ReshardPlan, sources: dict[int, dict[str, Bytes]], targets: dict[int, dict[str, Bytes]]
) -> StepTable:
    """Run a plan in this process: the tensors of all ranks as arrays of bytes, with the shapes of their shards."""
    table, found = step_table(plan), plan.traffic
    runs = []
    for rank in range(plan.ranks):
        have = rank_streams(found, rank, "source", sources[rank].__getitem__) if rank in sources else None
        want = rank_streams(found, rank, "target", targets[rank].__getitem__) if rank in targets else None
        if have is not None and want is not None:
            copy_own(found, have, want)
        runs.append(RankRun(plan, table, rank, have, want, np.zeros(rank_memory_bytes(table, rank), dtype=np.uint8)))
    steps: dict[int, dict[int, RankStep]] = {}
    for rank in range(plan.ranks):
        for step in table.of(rank):
            steps.setdefault(step.number, {})[rank] = step
    for number in sorted(steps):
        sent = {
            (rank, peer): buffer for rank, step in steps[number].items() for peer, buffer in runs[rank].packed(step)
        }
        for rank, step in steps[number].items():
            buffers = [buffer for _, buffer in runs[rank].buffers(step)]
            for message, buffer in zip(step.receives, buffers, strict=True):
                buffer[...] = sent[message.peer, rank]
            runs[rank].unpack(step, buffers)
    return table
