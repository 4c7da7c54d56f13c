"""Causality of moves, for runtimes whose senders write into the receiver's memory."""

from flowccl.export.lowering.buffers import BufferSlot


class Causes:
    """Tracks which moves must have been received before another is sent, so that no put overtakes a remote reader.

    With FIFOs, the receiver decides when its memory changes. If the sender writes into that memory (MSCCL++), a slot
    that was used before may be written only if every use of it causally precedes the send. Sets of moves are the bits
    of an int.
    """

    def __init__(self, moves: int) -> None:
        self.before_send = [0] * moves
        self.known: dict[tuple[int, BufferSlot], int] = {}  # moves that precede the data in a slot of a GPU
        self.users: dict[tuple[int, BufferSlot], list[int]] = {}  # moves that used the slot

    def send(self, i: int, rank: int, slot: BufferSlot) -> None:
        """Record that move i reads a slot and leaves: it inherits every cause of the data there."""
        self.before_send[i] |= self.known.get((rank, slot), 0) | 1 << i
        self.users.setdefault((rank, slot), []).append(i)

    def receive(self, i: int, rank: int, slot: BufferSlot) -> None:
        """Record that move i arrives in a slot."""
        self.known[rank, slot] = self.known.get((rank, slot), 0) | self.before_send[i]
        self.users.setdefault((rank, slot), []).append(i)

    def local(self, i: int, rank: int, slots: list[BufferSlot]) -> None:
        """Record that the data of move i is combined with other slots of the same GPU."""
        known = self.before_send[i]
        for slot in slots:
            known |= self.known.get((rank, slot), 0)
            self.users.setdefault((rank, slot), []).append(i)
        self.known[rank, slots[-1]] = known

    def covers(self, i: int, rank: int, slot: BufferSlot) -> bool:
        """Whether all uses of a slot precede the send of move i."""
        return all(self.before_send[i] >> user & 1 for user in self.users.get((rank, slot), []))
