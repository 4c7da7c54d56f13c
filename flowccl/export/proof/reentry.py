"""Check that a program can be called repeatedly if GPUs write into each other's memory.

The target GPU may still be busy with the work before the call. A write into its input or output must therefore come
after one of its own steps of this call. Scratch belongs to the program and may be written earlier. In that case, all
accesses to the chunk must complete before the writer's last step, because the next call may write it again after that.

An operation of a switch also loads from other GPUs. It must come after a step of each GPU whose memory it accesses, and
before another one, because before and after the call that memory may contain other data.
"""

from flowccl.export.proof.program import Cell, Finding, RuntimeProgram


def early_writes(program: RuntimeProgram, before: list[list[int]], order: list[int]) -> list[Finding]:
    """Return the writes that may happen before the target GPU has entered the call, or left the previous one."""
    operations = program.operations
    entered = [0] * len(operations)  # ranks that must have entered the call, as bits
    for n in order:
        for other in before[n]:
            entered[n] |= entered[other]
        entered[n] |= 1 << operations[n].rank
    left = [1 << operation.rank for operation in operations]  # ranks that must have a later step, as bits
    for n in reversed(order):
        for other in before[n]:
            left[other] |= left[n]
    users: dict[Cell, list[int]] = {}  # made when the first write needs it
    findings = []
    for n in order:
        operation = operations[n]
        if operation.group:
            findings += _outside(program, n, entered[n], left[n])
            continue
        for cell in sorted(operation.writes()):
            rank, buffer, index = cell
            if rank == operation.rank or entered[n] >> rank & 1:
                continue
            users = users or _users(program, order)
            name = f"{operation}: writes {buffer}[{index}] of gpu {rank}"
            late = next((m for m in users[cell] if not left[m] >> operation.rank & 1), None)
            if buffer in ("i", "o"):
                findings.append(Finding("entry", f"{name}, which may not have entered the call yet"))
            elif late is not None:
                words = f"and does not wait for {operations[late]}, which may come after the write of the next call"
                findings.append(Finding("entry", f"{name} before that gpu has entered the call, {words}"))
    return findings


def _users(program: RuntimeProgram, order: list[int]) -> dict[Cell, list[int]]:
    """Return the steps that access each chunk, in order."""
    users: dict[Cell, list[int]] = {}
    for n in order:
        for cell in program.operations[n].reads() | program.operations[n].writes():
            users.setdefault(cell, []).append(n)
    return users


def _outside(program: RuntimeProgram, n: int, entered: int, left: int) -> list[Finding]:
    """Return the GPUs that may not be in the call while an operation of a switch accesses their memory."""
    operation = program.operations[n]
    findings = []
    for rank in sorted({cell[0] for cell in operation.reads() | operation.writes()} - {operation.rank}):
        for inside, words in ((entered, "may not have entered the call yet"), (left, "may have left the call")):
            if not inside >> rank & 1:
                findings.append(Finding("entry", f"{operation}: accesses the memory of gpu {rank}, which {words}"))
    return findings
