"""Drafts of steps: the steps of every GPU before they are assigned to threadblocks."""

from dataclasses import dataclass, field

from flowccl.export.lowering.buffers import BufferSlot

Lane = tuple[str, int, int, int]
"""A sequence of steps that keep their order: ("send" | "recv", peer, route, instance) or ("copy", -1, 0, instance)."""


@dataclass(slots=True, eq=False)
class Draft:
    """A step without a threadblock. `at` is its position in the common order of all steps of all GPUs.

    `src` and `dst` are the first slots of `count` chunks. The `dst` of a send and the `src` of a plain receive are on
    the peer. `partner` is the other end of a send or receive. Sends of the same `message` travel together.
    """

    kind: str
    rank: int
    lane: Lane
    at: int
    src: BufferSlot
    dst: BufferSlot
    count: int = 1
    partner: "Draft | None" = None
    channel: int = 0
    message: int = -1

    def reads(self) -> list[BufferSlot]:
        """Return the slots of this GPU that the step reads."""
        if self.kind == "r":
            return []
        slots = _slots(self.src, self.count)
        return slots + _slots(self.dst, self.count) if self.kind == "re" else slots

    def writes(self) -> list[BufferSlot]:
        """Return the slots of this GPU that the step writes."""
        return [] if self.kind == "s" else _slots(self.dst, self.count)


@dataclass(slots=True)
class GpuDrafts:
    """All steps of one GPU in order, and the number of scratch chunks that they use."""

    rank: int
    drafts: list[Draft] = field(default_factory=list)
    scratch: int = 0


def _slots(first: BufferSlot, count: int) -> list[BufferSlot]:
    return [(first[0], first[1] + k) for k in range(count)]
