"""The operations of one MSCCL++ threadblock.

The threads of a threadblock run independently. A nop is a barrier of its threads: it separates a wait from the
operations that depend on it, and data from the signal that announces it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from flowccl.export.lowering.buffers import BufferSlot
from flowccl.export.lowering.drafts import SENDS
from flowccl.export.lowering.threadblocks import Step, Threadblock
from flowccl.runtimes.limits import CHANNELS_PER_OPERATION, SEMAPHORES_PER_STEP

_WAITS = ("r", "await-ready", "await-release")


def count_operations(block: Threadblock) -> int:
    """Return the number of operations of a threadblock, without writing them; channels are memory channels."""
    count = 0
    waited = worked = False
    touched: set[BufferSlot] = set()
    times = max(1, -(-len(block.members) // CHANNELS_PER_OPERATION))  # operations that signal all, or wait for all
    for step in block.steps:
        kind = step.kind
        waits = -(-len(step.waits) // SEMAPHORES_PER_STEP) + (kind in _WAITS) * times
        if waits:
            count += waits + worked
            worked, waited = False, True
            touched.clear()
        if kind in ("ready", "release"):
            count += 1 + (waited or worked)
            waited = worked = False
            touched.clear()
        elif kind not in _WAITS:
            slots = slots_of(step.src, step.count)
            slots |= set() if kind == "s" else slots_of(step.dst, step.count)
            if waited or not touched.isdisjoint(slots):
                count += 1
                waited = False
                touched.clear()
            count += 1
            worked = True
            touched |= slots
            if kind in SENDS:
                count += 1 + times
                worked = False
                touched.clear()
        if step.awaited:
            count += -(-step.awaited // SEMAPHORES_PER_STEP) + (waited or worked)
            waited = worked = False
            touched.clear()
    return count


@dataclass(slots=True)
class OperationWriter:
    """Writes the operations of one threadblock, with a nop wherever its threads need a barrier.

    `send_kind` and `recv_kind` are the types of the channels to its peers; `sends` is the number of those that it sends
    to. A threadblock that issues operations of a switch has memory channels to all `members` of its group instead, and
    `switches`, its switch channel of each buffer.
    """

    send_kind: str
    recv_kind: str
    sends: int = 1
    members: int = 0
    switches: dict[str, int] = field(default_factory=dict)
    operations: list[dict[str, Any]] = field(default_factory=list)
    has_waited: bool = False
    has_worked: bool = False
    touched: set[BufferSlot] = field(default_factory=set)

    def write(
        self,
        block: Threadblock,
        acquires: list[list[Any]],
        releases: list[list[Any]],
        buffers: dict[tuple[int, str], int],
    ) -> None:
        """Write all steps, each with the semaphores that it acquires before and releases after.

        `buffers` are the places of remote buffers, (target, buffer), in the table of the threadblock.
        """
        flushed = _flushed(block, releases)
        for step, ids, freed in zip(block.steps, acquires, releases, strict=True):
            for k in range(0, len(ids), SEMAPHORES_PER_STEP):
                self._wait("sem_acquire", semaphore_ids=ids[k : k + SEMAPHORES_PER_STEP])
            self._step(step, buffers, flush=id(step) in flushed)
            for k in range(0, len(freed), SEMAPHORES_PER_STEP):
                self._barrier()
                self._add("sem_release", semaphore_ids=freed[k : k + SEMAPHORES_PER_STEP])

    def _send_channel(self, step: Step) -> dict[str, Any]:
        """Return the fields of the channel of a send; those channels are first in the threadblock's table."""
        return {"channel_ids": [step.target], "channel_type": self.send_kind}

    def _recv_channel(self) -> dict[str, Any]:
        """Return the fields of the channel to the peer that sends."""
        before = self.sends if self.send_kind == self.recv_kind else 0
        return {"channel_ids": [before], "channel_type": self.recv_kind}

    def _step(self, step: Step, buffers: dict[tuple[int, str], int], *, flush: bool) -> None:
        """Write one step. A port reads its source until it is flushed: before others write there, and at the end."""
        src, dst = buffer_of(step.src, step.count), buffer_of(step.dst, step.count)
        if step.kind == "r":
            self._wait("wait", **self._recv_channel())
        elif step.kind == "await-ready" and self.members:
            for channels in self._all_members():
                self._wait("wait", **channels)
        elif step.kind in ("await-ready", "await-release"):
            self._wait("wait", **self._send_channel(step))
        elif step.kind in ("ready", "release"):
            self._barrier()
            self._add("signal", **self._recv_channel())
        elif step.kind == "s":
            place = buffers.get((step.target, step.dst[0]), 0)
            remote = {"buffer_id": place, "index": step.dst[1], "size": step.count}
            channel = self._send_channel(step)
            if self.send_kind == "port":
                self._barrier()
                self._add("pwsf" if flush else "pws", src_buff=[src], dst_buff=[remote], **channel)
                return
            self._work("put", slots_of(step.src, step.count), src_buff=[src], dst_buff=[remote], **channel)
            self._barrier()
            self._add("signal", **channel)
        elif step.kind in ("gstore", "glres"):
            self._through_switch(step, src)
        elif step.kind == "cpy":
            slots = slots_of(step.src, step.count) | slots_of(step.dst, step.count)
            self._work("copy", slots, src_buff=[src], dst_buff=[dst])
        else:
            slots = slots_of(step.src, step.count) | slots_of(step.dst, step.count)
            self._work("re", slots, src_buff=[dst, src], dst_buff=[dst])

    def _through_switch(self, step: Step, src: dict[str, Any]) -> None:
        """Write an operation of a switch, and signal all GPUs of the group."""
        target = {"switch_channel_id": self.switches[step.dst[0]], "index": step.dst[1], "size": step.count}
        if step.kind == "glres":
            src = {"switch_channel_id": self.switches[step.src[0]], "index": step.src[1], "size": step.count}
        channel = {"channel_ids": [target["switch_channel_id"]], "channel_type": "switch"}
        slots = slots_of(step.src, step.count) | slots_of(step.dst, step.count)
        self._work(step.kind, slots, src_buff=[src], dst_buff=[target], **channel)
        self._barrier()
        for channels in self._all_members():
            self._add("signal", **channels)

    def _all_members(self) -> Iterator[dict[str, Any]]:
        """Yield the fields of operations that together use the channels to all members."""
        for k in range(0, self.members, CHANNELS_PER_OPERATION):
            ids = list(range(k, min(k + CHANNELS_PER_OPERATION, self.members)))
            yield {"channel_ids": ids, "channel_type": "memory"}

    def _add(self, name: str, **fields: Any) -> None:
        self.operations.append({"name": name, **fields})

    def _wait(self, name: str, **fields: Any) -> None:
        """Write an operation in which one thread waits and the others do not."""
        if self.has_worked:
            self._barrier()
        self._add(name, **fields)
        self.has_waited = True

    def _work(self, name: str, slots: set[BufferSlot], **fields: Any) -> None:
        """Write an operation in which all threads work on some slots."""
        if self.has_waited or self.touched & slots:
            self._barrier()
        self._add(name, **fields)
        self.has_worked = True
        self.touched |= slots

    def _barrier(self) -> None:
        if self.has_waited or self.has_worked:
            self._add("nop")
        self.has_waited = self.has_worked = False
        self.touched.clear()


def _flushed(block: Threadblock, releases: list[list[Any]]) -> set[int]:
    """Return the sends (by id) to be flushed immediately: the last send, and the last before each semaphore release."""
    flushed, release = set(), True
    for step, freed in zip(reversed(block.steps), reversed(releases), strict=True):
        release = release or bool(freed)
        if step.kind == "s" and release:
            flushed.add(id(step))
            release = False
    return flushed


def buffer_of(slot: BufferSlot, count: int) -> dict[str, Any]:
    """Return some chunks of a buffer, as plans write them."""
    return {"type": slot[0], "index": slot[1], "size": count}


def slots_of(slot: BufferSlot, count: int) -> set[BufferSlot]:
    """Return the slots of some chunks."""
    return {(slot[0], slot[1] + k) for k in range(count)}
