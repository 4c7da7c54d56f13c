"""Steps of every GPU, before and after they are assigned to threadblocks."""

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

    @property
    def connection(self) -> "Connection":
        """The connection of the step."""
        lane = self.lane
        return (lane[1], self.rank, *lane[2:]) if lane[0] == "recv" else (self.rank, *lane[1:])

    def reads(self) -> list[BufferSlot]:
        """Return the slots of this GPU that the step reads."""
        if self.kind == "r":
            return []
        slots = _slots(self.src, self.count)
        return slots + _slots(self.dst, self.count) if self.kind == "re" else slots

    def writes(self) -> list[BufferSlot]:
        """Return the slots of this GPU that the step writes."""
        return [] if self.kind == "s" else _slots(self.dst, self.count)


Connection = tuple[int, int, int, int]
"""(sender, receiver, route, instance), or (rank, -1, 0, instance) for the local copies of a rank."""

Splits = dict[Connection, int]
"""The number of channels over which the steps of a connection are spread; 1 if it is not named."""


@dataclass(frozen=True, slots=True)
class LoweringStrategy:
    """How steps become threadblocks.

    `merge` adjacent chunks; `share` threadblocks between receives and sends; `fuse` a receive and the send after it
    into one instruction; `ahead`: use enough channels for senders to run ahead of receivers as in the schedule.
    """

    merge: bool = False
    share: bool = False
    fuse: bool = False
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction on `count` chunks from `src` to `dst`.

    `waits` are (threadblock, step) of the same GPU; `awaited` is the number of steps that wait for this one. The `dst`
    of a send and the `src` of a plain receive are on the peer. A fused step forwards the chunks that it stores.
    """

    kind: str
    src: BufferSlot
    dst: BufferSlot
    count: int
    waits: tuple[tuple[int, int], ...]
    awaited: int


@dataclass(slots=True, eq=False)
class Threadblock:
    """A threadblock with at most one peer to send to and one to receive from, on one channel; -1 means none."""

    send: int
    recv: int
    channel: int
    drafts: list[Draft]
    steps: list[Step] = field(default_factory=list)

    @property
    def connections(self) -> list[Connection]:
        """The connections of its steps."""
        return list(dict.fromkeys(draft.connection for draft in self.drafts))

    @property
    def num_steps(self) -> int:
        """The number of steps in the file, with the nops for further waits."""
        return sum(max(1, len(step.waits)) for step in self.steps)


@dataclass(slots=True)
class GpuSteps:
    """All steps of one GPU in order, the number of scratch chunks that they use, and its threadblocks."""

    rank: int
    drafts: list[Draft] = field(default_factory=list)
    scratch: int = 0
    blocks: list[Threadblock] = field(default_factory=list)


def _slots(first: BufferSlot, count: int) -> list[BufferSlot]:
    return [(first[0], first[1] + k) for k in range(count)]
