"""What has surely happened before a send, for runtimes whose senders write into the receiver's memory."""

from flowccl.export.lowering.buffers import Cell


class Causes:
    """Which moves have surely been received before another is sent: a put must not overtake a reader far away.

    With FIFOs the receiver decides when its memory changes. Where the sender writes into it (MSCCL++), a cell that
    was used before may be written only if every use of it has caused this send. Sets of moves are bits of an int.
    """

    def __init__(self, moves: int) -> None:
        self.before_send = [0] * moves
        self.cell: dict[tuple[int, Cell], int] = {}  # moves known where this cell's data is
        self.users: dict[tuple[int, Cell], list[int]] = {}  # moves that used the cell on its GPU

    def send(self, i: int, rank: int, cell: Cell) -> None:
        """Move i reads a cell and leaves: everything known there is known to it."""
        self.before_send[i] = self.cell.get((rank, cell), 0) | 1 << i
        self.users.setdefault((rank, cell), []).append(i)

    def receive(self, i: int, rank: int, cell: Cell) -> None:
        """Move i arrives in a cell."""
        self.cell[rank, cell] = self.cell.get((rank, cell), 0) | self.before_send[i]
        self.users.setdefault((rank, cell), []).append(i)

    def local(self, i: int, rank: int, cells: list[Cell]) -> None:
        """Move i's data is added up with other cells of the same GPU."""
        known = self.before_send[i]
        for cell in cells:
            known |= self.cell.get((rank, cell), 0)
            self.users.setdefault((rank, cell), []).append(i)
        self.cell[rank, cells[-1]] = known

    def covers(self, i: int, rank: int, cell: Cell) -> bool:
        """Whether all users of a cell have caused move i."""
        return all(self.before_send[i] >> user & 1 for user in self.users.get((rank, cell), []))
