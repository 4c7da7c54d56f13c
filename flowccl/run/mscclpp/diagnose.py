"""Why a plan hangs: the waits in which its threadblocks are stuck, by the interpreter of exported files."""

from collections import Counter, deque
from collections.abc import Hashable
from pathlib import Path

from flowccl.errors import FlowcclError
from flowccl.export.formats.read_mscclpp import read_mscclpp
from flowccl.export.proof.program import Operation, RuntimeProgram

_MOST = 8  # waits that a message names


def stuck_waits(program: RuntimeProgram) -> list[Operation]:
    """Return the steps at which threadblocks wait forever, in order of rank and threadblock.

    All steps run as early as they can. Every wait takes a token that another step puts, so what one order of execution
    cannot complete, no order can.
    """
    left: dict[tuple[int, int], deque[Operation]] = {}
    for operation in program.operations:
        left.setdefault((operation.rank, operation.block), deque()).append(operation)
    tokens: Counter[Hashable] = Counter()
    moved = True
    while moved:
        moved = False
        for steps in left.values():
            while steps and all(tokens[key] > 0 for key in steps[0].pops):
                step = steps.popleft()
                tokens.subtract(step.pops)
                tokens.update(step.pushes)
                moved = True
    return [steps[0] for _, steps in sorted(left.items()) if steps]


def explain_hang(path: str | Path) -> str:
    """Return a sentence about the waits in which the plan gets stuck, or that the interpreter finds none."""
    try:
        stuck = stuck_waits(read_mscclpp(path))
    except FlowcclError as error:
        return f"the plan could not be interpreted: {error}"
    if not stuck:
        return "the interpreter completes this plan, so the cause is outside the plan"
    names = ", ".join(str(step) for step in stuck[:_MOST])
    more = f" and {len(stuck) - _MOST} more" if len(stuck) > _MOST else ""
    return f"in the interpreter, these wait forever: {names}{more}"
