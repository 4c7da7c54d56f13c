"""Packets of MSCCL++ plans (protocol LL): which steps wait for them, and whether plain data is where packets are.

A packet carries its flag, so a step that reads packets waits for the step that writes them. Cells of packets are "p":
slot k of the scratch as packets has the bytes of the plain chunks 2 k and 2 k + 1.
"""

import numpy as np

from flowccl.export.proof.program import RuntimeProgram
from flowccl.export.proof.steps import BUFFERS, I64, StepArrays, by_step, codes_of, owners, parts_of

_PACKETS, _SCRATCH = BUFFERS.index("p"), BUFFERS.index("s")


def connect_packets(table: StepArrays, program: RuntimeProgram, max_bytes: int) -> None:
    """Let every step that reads packets wait for those that write them, and record what is wrong with packets."""
    writes, reads = (parts_of(cells)[1] == _PACKETS for cells in (table.target, table.source))
    if not writes.any() and not reads.any():
        return
    order = np.argsort(table.target[writes], kind="stable")
    cell, writer = table.target[writes][order], owners(table.assign_ptr)[writes][order]
    for k in np.flatnonzero(np.diff(cell) == 0).tolist():
        one, other = table.operation(int(writer[k + 1])), table.operation(int(writer[k]))
        words = f"{one} and {other} both write packets {_name(int(cell[k]))}"
        program.found("packet", f"{words}: a reader may take those of either")
    wanted, reader = table.source[reads], table.read_step[reads]
    place = np.searchsorted(cell, wanted, side="right") - 1
    known = place >= 0
    known[known] = cell[place[known]] == wanted[known]
    sender = np.where(known, writer[place] if len(writer) else -1, -1)
    _check_plain(table, program, cell, max_bytes)
    pairs = np.unique(np.stack((reader, sender), axis=1), axis=0)
    key = len(table.connections) + np.arange(len(pairs))
    table.connections += [("packets", one, n) for n, one in pairs.tolist()]
    table.by_proxy = np.append(table.by_proxy, np.full(len(pairs), -1))
    table.pop_ptr, table.pop = _with(table.pop_ptr, table.pop, pairs[:, 0], key)
    sent = pairs[:, 1] >= 0
    table.push_ptr, table.push = _with(table.push_ptr, table.push, pairs[sent, 1], key[sent])


def _check_plain(table: StepArrays, program: RuntimeProgram, packets: I64, max_bytes: int) -> None:
    """Check that plain data in scratch is never where packets are, in this call or in one with another size."""
    if not program.packets:
        program.found("packet", "packets need protocol LL, with which scratch has room for their flags")
        return
    step, cell = table.accesses()
    rank, buffer, index = parts_of(cell)
    plain = np.flatnonzero(buffer == _SCRATCH)
    if len(plain) and program.min_bytes != max_bytes:
        words = "plain data in scratch could be taken for packets after a call with another size"
        first = table.operation(int(step[plain].min()))
        program.found("packet", f"{first}: {words}: min_message_size and max_message_size must be equal")
    covered = codes_of(rank[plain], _PACKETS, index[plain] // 2)
    for k in plain[np.isin(covered, packets)].tolist():
        words = f"uses s[{index[k]}] of gpu {rank[k]} for plain data, where the packets"
        name = _name(int(codes_of(rank[k], _PACKETS, index[k] // 2)))
        program.found("packet", f"{table.operation(int(step[k]))}: {words} {name} are")


def _name(code: int) -> str:
    rank, _, index = parts_of(np.array(code))
    return f"s[{index}] of gpu {rank}"


def _with(ptr: I64, values: I64, step: I64, more: I64) -> tuple[I64, I64]:
    """Return lists of steps with further members at their ends."""
    return by_step(np.concatenate((owners(ptr), step)), np.concatenate((values, more)), len(ptr) - 1)
