"""Whether a program can be called again and again, where a GPU writes into the memory of another one.

The other may still be busy with what came before the call. A write into its input or output must therefore come after
one of its own steps of this call. Scratch belongs to the program, so it may be written before that; but then all that
touch the chunk there must be over before the writer's own last step, for after that the next call may write it again.
"""

from flowccl.export.proof.program import Cell, Finding, Program


def early_writes(program: Program, before: list[list[int]], order: list[int]) -> list[Finding]:
    """Writes that may come while the other GPU is not in the call yet, or not out of the call before."""
    operations = program.operations
    entered = [0] * len(operations)  # ranks that have surely begun, as bits
    for n in order:
        for other in before[n]:
            entered[n] |= entered[other]
        entered[n] |= 1 << operations[n].rank
    left = [1 << operation.rank for operation in operations]  # ranks that surely take a step later
    for n in reversed(order):
        for other in before[n]:
            left[other] |= left[n]
    users: dict[Cell, list[int]] = {}
    for n in order:
        for cell in operations[n].reads() | operations[n].writes():
            users.setdefault(cell, []).append(n)
    findings = []
    for n in order:
        operation = operations[n]
        for cell in sorted(operation.writes()):
            rank, buffer, index = cell
            if rank == operation.rank or entered[n] >> rank & 1:
                continue
            name = f"{operation}: writes {buffer}[{index}] of gpu {rank}"
            late = next((m for m in users[cell] if not left[m] >> operation.rank & 1), None)
            if buffer != "s":
                findings.append(Finding("entry", f"{name}, which may not be in the call yet"))
            elif late is not None:
                words = f"and does not wait for {operations[late]}, which may come after it in the next call"
                findings.append(Finding("entry", f"{name} before that is in the call, {words}"))
    return findings
