"""Running plans: the steps of a rank on its buffers, and all ranks in one process on numpy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.resharding.copying import RankStreams, copy_own, rank_streams
from flowccl.resharding.plan import ReshardPlan
from flowccl.resharding.reference import rank_values
from flowccl.resharding.steps import RankStep, SlicedMessage, StepTable, step_table

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
    slot_of: dict[tuple[int, int], int] = field(default_factory=dict)

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
            for part, space in self._parts(message, buffer):
                if part in self.slot_of:
                    space[...] = self._slot(part, len(space))
                elif self.have is not None:
                    self.have.read(int(self.plan.cls[part[0]]), *self.plan.span(*part), space)
            result.append((message.peer, buffer))
        return result

    def buffers(self, step: RankStep) -> list[tuple[int, Any]]:
        """Buffers for the messages that the rank receives in a step."""
        result, at = [], self.first_receive
        for message in step.receives:
            result.append((message.peer, self.memory[at : at + message.bytes]))
            at += message.bytes
        return result

    def unpack(self, step: RankStep, buffers: Sequence[Any]) -> None:
        """Write received slices to the tensors, and keep those that go on."""
        for part in [part for part in self.slot_of if self.relayed[part[0]] + part[1] <= step.number]:
            self.free.append(self.slot_of.pop(part))
        demand = self.plan.schedule.demand
        for message, buffer in zip(step.receives, buffers, strict=True):
            for part, space in self._parts(message, buffer):
                if self.want is not None and self.rank in demand.destinations(part[0]):
                    self.want.write(int(self.plan.cls[part[0]]), *self.plan.span(*part), space)
                if self.relayed.get(part[0], -1) + part[1] > step.number:
                    self.slot_of[part] = self.free.pop()
                    self._slot(part, len(space))[...] = space

    def _slot(self, part: tuple[int, int], size: int) -> Any:
        at = self.first_slot + self.slot_of[part] * self.slot_bytes
        return self.memory[at : at + size]

    def _parts(self, message: SlicedMessage, buffer: Any) -> list[tuple[tuple[int, int], Any]]:
        at, result = 0, []
        for part in message.parts:
            begin, end = self.plan.span(*part)
            result.append((part, buffer[at : at + end - begin]))
            at += end - begin
        return result


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
        runs.append(RankRun(plan, table, rank, have, want, np.zeros(table.memory_bytes(rank), dtype=np.uint8)))
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


def check_on_numpy(plan: ReshardPlan) -> tuple[int, int]:
    """Run a plan on data of known values; return the number of wrong bytes and of all bytes of the targets."""
    sources = {rank: rank_values(plan.source, rank) for rank in plan.source.ranks}
    wanted = {rank: rank_values(plan.target, rank) for rank in plan.target.ranks}
    targets = {rank: {name: ~values for name, values in found.items()} for rank, found in wanted.items()}
    run_on_numpy(plan, sources, targets)
    pairs = [(targets[rank][name], values) for rank, found in wanted.items() for name, values in found.items()]
    return sum(int(np.count_nonzero(got != values)) for got, values in pairs), sum(values.size for _, values in pairs)
