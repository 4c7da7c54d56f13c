"""The operations of one MSCCL++ threadblock.

The threads of a threadblock run on by themselves: a nop, which is a barrier of its threads, stands between a wait and
what needs it, and between the data and the signal that announces it.
"""

from dataclasses import dataclass, field
from typing import Any

from flowccl.export.limits import SEMAPHORES_PER_STEP
from flowccl.export.lowering.buffers import Cell
from flowccl.export.lowering.threadblocks import Block, Step


def count_operations(block: Block) -> int:
    """How many operations a threadblock becomes."""
    writer = Writer("memory", "memory")
    writer.write(
        block, [list(waits_of(step)) for step in block.steps], [[0] * step.awaited for step in block.steps], {}
    )
    return len(writer.operations)


def waits_of(step: Step) -> tuple[tuple[int, int], ...]:
    """What a step must wait for. Not a receive: the plan has made sure that its data comes no earlier."""
    return () if step.kind == "r" else step.waits


@dataclass(slots=True)
class Writer:
    """Writes the operations of one threadblock, with a nop wherever its threads must meet.

    `send_kind` and `recv_kind` are the types of the channels to the two peers.
    """

    send_kind: str
    recv_kind: str
    operations: list[dict[str, Any]] = field(default_factory=list)
    has_waited: bool = False
    has_worked: bool = False
    touched: set[Cell] = field(default_factory=set)

    def write(
        self, block: Block, acquires: list[list[Any]], releases: list[list[Any]], buffers: dict[str, int]
    ) -> None:
        """All steps, each with what it acquires before and releases after."""
        flushed = _flushed(block, releases)
        for step, ids, freed in zip(block.steps, acquires, releases, strict=True):
            for k in range(0, len(ids), SEMAPHORES_PER_STEP):
                self._wait("sem_acquire", semaphore_ids=ids[k : k + SEMAPHORES_PER_STEP])
            self._step(step, buffers, flush=id(step) in flushed)
            for k in range(0, len(freed), SEMAPHORES_PER_STEP):
                self._meet()
                self._add("sem_release", semaphore_ids=freed[k : k + SEMAPHORES_PER_STEP])

    def _channel(self, kind: str, is_recv: bool) -> dict[str, Any]:
        """The send channel comes first in the threadblock's table of its type."""
        return {"channel_ids": [int(is_recv and self.send_kind == kind)], "channel_type": kind}

    def _step(self, step: Step, buffers: dict[str, int], *, flush: bool) -> None:
        """One step. A port reads on after the operation, until flushed: before others write there, and at the end."""
        src, dst = _buffer(step.src, step.count), _buffer(step.dst, step.count)
        if step.kind == "r":
            self._wait("wait", **self._channel(self.recv_kind, True))
        elif step.kind in ("meet", "freed"):
            self._wait("wait", **self._channel(self.send_kind, False))
        elif step.kind in ("here", "free"):
            self._meet()
            self._add("signal", **self._channel(self.recv_kind, True))
        elif step.kind == "s":
            remote = {"buffer_id": buffers.get(step.dst[0], 0), "index": step.dst[1], "size": step.count}
            channel = self._channel(self.send_kind, False)
            if self.send_kind == "port":
                self._meet()
                self._add("pwsf" if flush else "pws", src_buff=[src], dst_buff=[remote], **channel)
                return
            self._work("put", _cells(step.src, step.count), src_buff=[src], dst_buff=[remote], **channel)
            self._meet()
            self._add("signal", **channel)
        elif step.kind == "cpy":
            cells = _cells(step.src, step.count) | _cells(step.dst, step.count)
            self._work("copy", cells, src_buff=[src], dst_buff=[dst])
        else:
            cells = _cells(step.src, step.count) | _cells(step.dst, step.count)
            self._work("re", cells, src_buff=[dst, src], dst_buff=[dst])

    def _add(self, name: str, **fields: Any) -> None:
        self.operations.append({"name": name, **fields})

    def _wait(self, name: str, **fields: Any) -> None:
        """One thread waits; the others do not."""
        if self.has_worked:
            self._meet()
        self._add(name, **fields)
        self.has_waited = True

    def _work(self, name: str, cells: set[Cell], **fields: Any) -> None:
        """All threads work on some cells."""
        if self.has_waited or self.touched & cells:
            self._meet()
        self._add(name, **fields)
        self.has_worked = True
        self.touched |= cells

    def _meet(self) -> None:
        if self.has_waited or self.has_worked:
            self._add("nop")
        self.has_waited = self.has_worked = False
        self.touched.clear()


def _flushed(block: Block, releases: list[list[Any]]) -> set[int]:
    """Sends (by id) that must have read their data before the next step: the last, and the last before a release."""
    flushed, release = set(), True
    for step, freed in zip(reversed(block.steps), reversed(releases), strict=True):
        release = release or bool(freed)
        if step.kind == "s" and release:
            flushed.add(id(step))
            release = False
    return flushed


def _buffer(cell: Cell, count: int) -> dict[str, Any]:
    return {"type": cell[0], "index": cell[1], "size": count}


def _cells(cell: Cell, count: int) -> set[Cell]:
    return {(cell[0], cell[1] + k) for k in range(count)}
