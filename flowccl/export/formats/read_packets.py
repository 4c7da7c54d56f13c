"""Packets of MSCCL++ plans (protocol LL): which steps wait for them, and whether plain data is where packets are.

A packet carries its flag, so a step that reads packets waits for the step that writes them. Cells of packets are "p":
slot k of the scratch as packets has the bytes of the plain chunks 2 k and 2 k + 1.
"""

from flowccl.export.proof.program import Cell, RuntimeProgram

PACKET_STEPS = frozenset({"ppkt", "rppkt", "upkt", "repkt"})
"""Put packets, read and put packets, unpack packets, reduce packets."""


def connect_packets(program: RuntimeProgram, max_bytes: int) -> None:
    """Let every step that reads packets wait for those that write them, and record what is wrong with packets."""
    writer: dict[Cell, int] = {}
    plain: dict[Cell, int] = {}
    for n, operation in enumerate(program.operations):
        for cell in sorted(operation.writes() | operation.reads()):
            if cell[1] == "s":
                plain.setdefault(cell, n)
        for cell in sorted(cell for cell in operation.writes() if cell[1] == "p"):
            if cell in writer:
                words = f"{operation} and {program.operations[writer[cell]]} both write packets {_name(cell)}"
                program.found("packet", f"{words}: a reader may take those of either")
            writer[cell] = n
    for n, operation in enumerate(program.operations):
        senders = {writer.get(cell, -1) for cell in operation.reads() if cell[1] == "p"}
        for sender in sorted(senders):
            operation.pops.append(("packets", sender, n))
            if sender >= 0:
                program.operations[sender].pushes.append(("packets", sender, n))
    _check_plain(program, writer, plain, max_bytes)


def _check_plain(program: RuntimeProgram, writer: dict[Cell, int], plain: dict[Cell, int], max_bytes: int) -> None:
    """Check that plain data in scratch is never where packets are, in this call or in one with another size."""
    if not program.packets or not plain:
        if writer and not program.packets:
            program.found("packet", "packets need protocol LL, with which scratch has room for their flags")
        return
    if program.min_bytes != max_bytes:
        operation = program.operations[min(plain.values())]
        words = "plain data in scratch could be taken for packets after a call with another size"
        program.found("packet", f"{operation}: {words}: min_message_size and max_message_size must be equal")
    for (rank, _, index), n in plain.items():
        cell = (rank, "p", index // 2)
        if cell in writer:
            words = f"uses s[{index}] of gpu {rank} for plain data, where the packets {_name(cell)} are"
            program.found("packet", f"{program.operations[n]}: {words}")


def _name(cell: Cell) -> str:
    return f"s[{cell[2]}] of gpu {cell[0]}"
