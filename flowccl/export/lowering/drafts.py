"""Drafts of steps: the steps of every GPU before they are assigned to threadblocks."""

from dataclasses import dataclass, field

from flowccl.export.lowering.buffers import BufferSlot

Lane = tuple[str, int, int, int]
"""A sequence of steps that keep their order: ("send" | "recv", peer, route, instance) or ("copy", -1, 0, instance).

A GPU issues operations of a switch in ("group", -1, SWITCH_ROUTE, instance), and the others receive on SWITCH_ROUTE.
"""

SWITCH_ROUTE = -1
SENDS = ("s", "gstore", "glres")
"""Kinds of steps that send."""


@dataclass(slots=True, eq=False)
class Draft:
    """A step without a threadblock. `at` is its position in the common order of all steps of all GPUs.

    `src` and `dst` are the first slots of `count` chunks. The `dst` of a send and the `src` of a plain receive are on
    the peer. `partner` is the other end of a send or receive. Sends of the same `message` travel together; those of the
    same `queue` are sent in order by one threadblock.

    Operations of a switch ("gstore", "glres") write `dst` of all GPUs of a group; `partners` are the receives on all
    others. `glres` reads `src` of all of them, and `loaded` says that on their side.

    One-sided senders and receivers also synchronize: "ready" (the receiver has entered the call) and "await-ready"
    (the sender waits for it); "release" (the receiver no longer uses the scratch that an `early` send wrote before the
    receiver was ready, or the packets of the sender) and "await-release" (the sender waits for it). The `release` of
    an early receive is the step that ends the use of its scratch. `frees` are the slots that a release of packets
    comes after.
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
    early: bool = False
    message: int = -1
    queue: int = -1
    frees: tuple[BufferSlot, ...] = ()
    partners: "tuple[Draft, ...]" = ()
    release: "Draft | None" = None
    loaded: BufferSlot | None = None

    def reads(self) -> list[BufferSlot]:
        """Return the slots of this GPU that the step reads."""
        if self.kind in ("r", "ready", "await-ready", "release", "await-release"):
            return [] if self.loaded is None else _slots(self.loaded, self.count)
        slots = _slots(self.src, self.count)
        return slots + _slots(self.dst, self.count) if self.kind == "re" else slots

    def writes(self) -> list[BufferSlot]:
        """Return the slots of this GPU that the step writes or releases."""
        if self.kind in ("s", "ready", "await-ready", "await-release"):
            return []
        return [*self.frees, *_slots(self.dst, self.count)]


@dataclass(slots=True)
class GpuDrafts:
    """All steps of one GPU in order, and the number of scratch chunks that they use."""

    rank: int
    drafts: list[Draft] = field(default_factory=list)
    scratch: int = 0


def _slots(first: BufferSlot, count: int) -> list[BufferSlot]:
    return [(first[0], first[1] + k) for k in range(count)]
