"""MSCCL++ threadblocks that send packets (protocol LL), and where the packets are.

Scratch of s chunks has 2 s chunks of bytes, because a packet is data and flag. Packets of slot k use the bytes of the
plain chunks 2 k and 2 k + 1. Plain data (partial sums for other GPUs) comes after all packets.
"""

from dataclasses import dataclass, field

from flowccl.export.formats.mscclpp_operations import OperationWriter, buffer_of, slots_of
from flowccl.export.lowering.buffers import BufferSlot
from flowccl.export.lowering.threadblocks import Step, Threadblock

_RECEIVES, _SENDS = ("relay", "r", "rrc"), ("forward", "s")


@dataclass(frozen=True, slots=True)
class PacketLayout:
    """The scratch of one GPU: `relays` are the packets of forwarded chunks, `plain` the places of plain chunks.

    `arrivals` has the first packet of every receive: by sender and channel, in order.
    """

    relays: dict[int, int]
    plain: dict[int, int]
    arrivals: dict[tuple[int, int], list[int]]
    packets: int

    @property
    def scratch(self) -> int:
        """Number of scratch chunks; each has room for the packets of a chunk, or for two plain chunks."""
        return self.packets + -(-len(self.plain) // 2)


def packet_layout(blocks: tuple[Threadblock, ...]) -> PacketLayout:
    """Return where the packets and the plain chunks of a GPU are; adjacent chunks stay adjacent."""
    steps = [step for block in blocks for step in block.steps]
    kept = sorted({step.dst[1] + k for step in steps if step.kind == "relay" for k in range(step.count)})
    relays = {index: packet for packet, index in enumerate(kept)}
    arrivals: dict[tuple[int, int], list[int]] = {}
    packets = len(relays)
    for block in blocks:
        for step in block.steps:
            if step.kind in _RECEIVES:
                known = step.kind == "relay"
                arrivals.setdefault((block.recv, block.channel), []).append(relays[step.dst[1]] if known else packets)
                packets += 0 if known else step.count
    used = sorted({slot[1] for step in steps for slot in _plain_slots(step) if slot[0] == "s"})
    return PacketLayout(relays, {index: 2 * packets + k for k, index in enumerate(used)}, arrivals, packets)


def _plain_slots(step: Step) -> set[BufferSlot]:
    """Return the slots of its own GPU that a step uses as plain data."""
    if step.kind in ("cpy", "rrc"):
        return slots_of(step.src, step.count) | slots_of(step.dst, step.count)
    if step.kind in ("r", "s"):
        return slots_of(step.dst if step.kind == "r" else step.src, step.count)
    return set()


@dataclass(slots=True)
class PacketWriter(OperationWriter):
    """Writes the operations of a threadblock that sends packets to the slots `targets` and gets them in `arrivals`."""

    relays: dict[int, int] = field(default_factory=dict)
    plain: dict[int, int] = field(default_factory=dict)
    targets: list[int] = field(default_factory=list)
    arrivals: list[int] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=dict)

    def _step(self, step: Step, buffers: dict[tuple[int, str], int], *, flush: bool) -> None:
        """Write one step. Packets order themselves: only plain data needs barriers."""
        own = _plain_slots(step)
        if step.kind in _SENDS:
            to = [{"buffer_id": 0, "index": self._next("targets", self.targets), "size": step.count}]
            channel = self._send_channel(step)
            if step.kind == "forward":
                source = buffer_of(("s", self.relays.get(step.src[1], 0)), step.count)
                self._work("rppkt", own, src_buff=[source], dst_buff=to, **channel)
            else:
                self._work("ppkt", own, src_buff=[self._at(step.src, step.count)], dst_buff=to, **channel)
        elif step.kind in _RECEIVES:
            packets = buffer_of(("s", self._next("arrivals", self.arrivals)), step.count)
            into = [self._at(step.dst, step.count)]
            if step.kind == "r":
                self._work("upkt", own, src_buff=[packets], dst_buff=into)
            elif step.kind == "rrc":
                self._work("repkt", own, src_buff=[self._at(step.src, step.count), packets], dst_buff=into)
        elif step.kind == "cpy":
            sources, into = [self._at(step.src, step.count)], [self._at(step.dst, step.count)]
            self._work("copy", own, src_buff=sources, dst_buff=into)
        else:
            OperationWriter._step(self, step, buffers, flush=flush)

    def _next(self, name: str, slots: list[int]) -> int:
        number = self.counted.get(name, 0)
        self.counted[name] = number + 1
        return slots[number] if slots else 0

    def _at(self, slot: BufferSlot, count: int) -> dict[str, object]:
        return buffer_of((slot[0], self.plain.get(slot[1], 0)) if slot[0] == "s" else slot, count)


def count_packet_operations(block: Threadblock) -> int:
    """Return the number of operations of a threadblock that sends packets."""
    writer = PacketWriter("memory", "memory")
    acquires = [list(range(len(step.waits))) for step in block.steps]
    writer.write(block, acquires, [list(range(step.awaited)) for step in block.steps], {})
    return len(writer.operations)


def packet_writer(block: Threadblock, own: PacketLayout, peer: PacketLayout | None, rank: int) -> PacketWriter:
    """Return the writer of a threadblock of GPU `rank`, with the layouts of its scratch and of that of its receiver."""
    targets = [] if peer is None else peer.arrivals[rank, block.channel]
    arrivals = own.arrivals.get((block.recv, block.channel), [])
    kind = "memory" if block.send >= 0 else ""
    return PacketWriter(kind, "memory", relays=own.relays, plain=own.plain, targets=targets, arrivals=arrivals)
